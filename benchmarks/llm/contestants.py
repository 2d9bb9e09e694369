"""Who takes part: our engine, and each peer in each of its forms; absent ones with a reason."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.llm.process import Command, EngineAbsent, EngineFailed, EngineProcess

PEERS_FOLDER = Path("~/.cache/lanewise/peers").expanduser()
OURS = "lanewise"
UNPACKED_STAMP = "unpacked_from.txt"
PEERS = ("transformers", "llama.cpp", "vllm")
_MAX_FAILURES = 2
_LOAD_LIMIT_S = 240.0


@dataclass(slots=True, kw_only=True)
class Contestant:
    """An engine in one form. `absent` says why it takes no part, or no longer.

    `only` names the measurements it takes part in; empty: all.

    Invariants: after `_MAX_FAILURES` failures it is absent; until then it is started anew.
    """

    name: str
    form: str
    command: Command
    log: Path
    absent: str = ""
    only: frozenset[str] = frozenset()
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    failures: list[str] = field(default_factory=list[str])
    _process: EngineProcess | None = None

    @property
    def label(self) -> str:
        """Name and form."""
        return f"{self.name} [{self.form}]" if self.form else self.name

    def start(self) -> None:
        """Start and load it, unless it runs.

        Raises: EngineAbsent, EngineFailed.
        """
        if self.absent:
            raise EngineAbsent(self.absent)
        if self._process is None:
            self._process = EngineProcess(self.command, self.log)
            self.facts = self.facts | self.ask("load", timeout_s=_LOAD_LIMIT_S)

    def ask(self, do: str, *, timeout_s: float, **order: Any) -> Any:  # noqa: ANN401 - JSON
        """Give an order; what goes wrong is noted, and raised.

        Raises: EngineAbsent, EngineFailed.
        """
        if self._process is None:
            self.start()
        assert self._process is not None
        try:
            return self._process.ask(do, timeout_s=timeout_s, **order)
        except EngineAbsent as error:
            self.absent, self._process = f"n/a: {error}", None
            raise
        except EngineFailed as error:
            self._process = None
            self.failures.append(f"{do}: {error}")
            if len(self.failures) >= _MAX_FAILURES or do == "load":
                self.absent = f"n/a: {error}"
            raise

    def stop(self) -> None:
        """End its process."""
        if self._process is not None:
            self._process.stop()
            self._process = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all contestants are given alike."""

    model: str
    gguf: Path | None
    threads: int
    logs: Path
    peers_folder: Path = PEERS_FOLDER

    @property
    def environment(self) -> Mapping[str, str]:
        """Thread counts of every library, before it starts a pool."""
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        return {name: str(self.threads) for name in names}

    def log_of(self, label: str) -> Path:
        """The file that an engine's own output goes to."""
        return self.logs / f"{''.join(c if c.isalnum() else '_' for c in label)}.log"


def origin_of(gguf: Path) -> str:
    """What the stamp beside unpacked weights says of the file they came from."""
    return f"{gguf.name} of {gguf.stat().st_size} bytes\n"


def has_bf16_units() -> bool:
    """Whether this CPU multiplies bfloat16 itself; elsewhere fp32 is a library's faster form."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags)


def our_contestant(
    setting: Setting, form: str = "", only: frozenset[str] = frozenset(), **engine: object
) -> Contestant:
    """Our engine; drafts are off unless asked for, since no peer's default drafts."""
    options = {
        "model": setting.model,
        "threads": setting.threads,
        "engine": {"speculation": "off", **engine},
    }
    command = Command(
        python=sys.executable,
        module="benchmarks.llm.lanewise_engine",
        options=options,
        environment=setting.environment,
    )
    log = setting.log_of(f"{OURS}{form}")
    return Contestant(name=OURS, form=form, command=command, log=log, only=only)


def peer_contestants(setting: Setting, names: tuple[str, ...]) -> list[Contestant]:
    """The peers of these names in all their forms."""
    made = {"transformers": _transformers, "llama.cpp": _llama_cpp, "vllm": _vllm}
    return [contestant for name in names for contestant in made[name](setting)]


def _peer(
    setting: Setting,
    name: str,
    form: str,
    module: str,
    python: Path | str,
    **more: Any,  # noqa: ANN401
) -> Contestant:
    environment = {**setting.environment, **more.pop("environment", {})}
    absent = ""
    if setting.gguf is None:
        absent = f"n/a: {setting.model} is no GGUF file"
    elif not Path(python).exists():
        script = f"benchmarks/peers/setup_{module.rpartition('.')[2]}.sh"
        absent = f"n/a: not installed; {script} sets it up"
    command = Command(
        python=str(python),
        module=module,
        options={"gguf": str(setting.gguf), "threads": setting.threads, **more},
        environment=environment,
    )
    log = setting.log_of(name + form)
    return Contestant(name=name, form=form, command=command, log=log, absent=absent)


def _transformers(setting: Setting) -> list[Contestant]:
    module = "benchmarks.peers.transformers_generate"
    dtypes = ("float32", "bfloat16") if has_bf16_units() else ("float32",)
    return [
        _peer(setting, "transformers", dtype, module, sys.executable, dtype=dtype, max_batch=32)
        for dtype in dtypes
    ]


def _llama_cpp(setting: Setting) -> list[Contestant]:
    python = setting.peers_folder / "llama_cpp" / "bin" / "python"
    return [
        _peer(
            setting, "llama.cpp", form, "benchmarks.peers.llama_cpp", python,
            flash_attention=flash, num_slots=32, slot_tokens=768, long_tokens=4608,
        )
        for form, flash in (("flash attention", True), ("plain attention", False))
    ]  # fmt: skip


def _vllm(setting: Setting) -> list[Contestant]:
    folder = setting.peers_folder / "vllm_cpu"
    bind = f"0-{setting.threads - 1}"
    environment = {
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_OMP_THREADS_BIND": bind,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    contestants = [
        _peer(
            setting, "vllm", dtype, "benchmarks.peers.vllm_cpu", folder / "bin" / "python",
            folder=str(folder / "weights"), dtype=dtype, max_model_len=8192, max_num_seqs=32,
            eager=True, environment=environment,
        )
        for dtype in ("bfloat16" if has_bf16_units() else "float32",)
    ]  # fmt: skip
    for contestant in contestants:
        contestant.absent = contestant.absent or _not_unpacked(folder / "weights", setting)
    return contestants


def _not_unpacked(weights: Path, setting: Setting) -> str:
    """Why the unpacked weights are not those of the GGUF; empty where they are."""
    stamp = weights / UNPACKED_STAMP
    origin = stamp.read_text() if stamp.is_file() else "nothing"
    if setting.gguf is not None and origin == origin_of(setting.gguf):
        return ""
    script = f"benchmarks/peers/setup_vllm_cpu.sh {weights.parent} {setting.gguf}"
    return f"n/a: {weights} holds {origin.strip()}, not {setting.gguf}; {script} unpacks it"
