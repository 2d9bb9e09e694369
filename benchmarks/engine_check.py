"""The language engine on a device: its tokens against the CPU's, then prefill and decode timed.

    python -m benchmarks.engine_check [--device cuda] [--layers 16] [--seconds 100]

A Llama of random weights is written to a temporary folder, so no file is needed. Rows of JSON, one
a line; the exit code is 1 where a token is wrong. `benchmarks/gpu_check.sh` runs it on a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.model_config import ModelConfig
from llm_engine.models.parameters import Parameters
from llm_engine.types import GenerationRequest, SamplingParams, TextDelta

Row = dict[str, Any]

# Greedy tokens may differ where two are this close: sums run in another order.
TIE = 1e-3
BATCHES = (1, 8, 32)
PROMPT_TOKENS = 2048
NUM_TOKENS = 64
COPY_BYTES = 1 << 30


def model_folder(folder: Path, num_layers: int) -> Path:
    """Write config, random weights and a tokenizer of one token a byte."""
    raw = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 32768,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 256,
    }
    (folder / "config.json").write_text(json.dumps(raw))
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.ones(shape)
        if len(shape) == 1
        else torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        for name, shape in Parameters.of(ModelConfig.from_mapping(raw)).weights.items()
    }
    save_file({name: x.to(torch.bfloat16) for name, x in tensors.items()}, folder / "m.safetensors")
    _save_tokenizer(folder)
    return folder


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from llm_engine.weights.gguf_tokenizer import byte_level_alphabet

    backend = Tokenizer(models.BPE(vocab=dict(byte_level_alphabet()), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))


def requests(
    num: int, prompt_tokens: int, num_tokens: int, num_top: int = 0
) -> list[GenerationRequest]:
    """Greedy requests whose prompts share no prefix."""
    return [
        GenerationRequest(
            f"r{i}",
            None,
            tuple((7919 * i + 31 * j) % 30000 for j in range(prompt_tokens)),
            SamplingParams(
                temperature=0.0,
                ignore_eos=True,
                max_tokens=num_tokens,
                logprobs=num_top > 0,
                top_logprobs=num_top,
            ),
        )
        for i in range(num)
    ]


@dataclass(slots=True)
class Bench:
    """One model, in engines of several settings."""

    folder: Path
    device: str

    def engine(self, **settings: Any) -> LLMEngine:  # noqa: ANN401 - those of EngineConfig
        """An engine that drafts nothing, so that every token is a step."""
        return LLMEngine.load(
            EngineConfig(model=str(self.folder), speculation="off", prefix_cache=False, **settings)
        )

    def check(self, num_prompts: int = 6) -> Row:
        """Greedy tokens in float32, on the device and on the CPU."""
        asked = requests(num_prompts, 37, 12, num_top=2)
        settings = {"dtype": "float32", "max_model_len": 256, "prefill_chunk_tokens": 64}
        expected = _tokens(self.engine(**settings), asked)
        found = _tokens(self.engine(device=self.device, **settings), asked)
        wrong = [name for name in expected if not _agree(expected[name], found[name])]
        equal = sum(_ids(expected[name]) == _ids(found[name]) for name in expected)
        return {
            "op": "engine", "check": "greedy tokens of the CPU", "passed": not wrong,
            "prompts": num_prompts, "equal": equal, "wrong": wrong,
        }  # fmt: skip

    def times(self, deadline: float) -> Iterator[Row]:
        """Prefill and decode in bfloat16, by graphs and kernel by kernel."""
        read_rate = copy_rate(self.device)
        for graphs in ("auto", "off") if self.device != "cpu" else ("auto",):
            settings: dict[str, Any] = {"dtype": "bfloat16", "graphs": graphs}
            engine = self.engine(device=self.device, max_num_seqs=32, **settings)
            engine.warm_up()
            weights = engine.memory.size_bytes("weights") or _weight_bytes(engine)
            yield self._prefill(engine, graphs)
            for batch in BATCHES:
                if time.monotonic() > deadline:
                    return
                yield self._decode(engine, graphs, batch, weights / read_rate)

    def _prefill(self, engine: LLMEngine, graphs: str) -> Row:
        seconds: list[float] = []
        for i in range(4):
            started_s = time.perf_counter()
            engine.generate(requests(1 + i, PROMPT_TOKENS, 1)[i:])
            seconds.append(time.perf_counter() - started_s)
        rate = PROMPT_TOKENS / statistics.median(seconds[1:])
        return {"op": "engine", "time": "prefill", "graphs": graphs, "tokens_s": rate}

    def _decode(self, engine: LLMEngine, graphs: str, batch: int, least_s: float) -> Row:
        for request in requests(batch, 64, NUM_TOKENS):
            engine.add(request)
        steps: list[float] = []
        while engine.has_work:
            started_s, before = time.perf_counter(), engine.stats().generated_tokens_total
            engine.step()
            if engine.stats().generated_tokens_total - before == batch:
                steps.append(time.perf_counter() - started_s)
        step_s = statistics.median(steps[4:])
        return {
            "op": "engine", "time": f"decode {batch}", "graphs": graphs,
            "tokens_s": batch / step_s, "of_limit": least_s / step_s,
        }  # fmt: skip


def copy_rate(device: str) -> float:
    """Bytes read a second, from a copy that reads and writes as much."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds: list[float] = []
    for _ in range(5):
        _wait(device)
        started_s = time.perf_counter()
        target.copy_(source)
        _wait(device)
        seconds.append(time.perf_counter() - started_s)
    return 2 * COPY_BYTES / min(seconds)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _weight_bytes(engine: LLMEngine) -> int:
    return engine.card.num_parameters * 2


def _tokens(engine: LLMEngine, asked: list[GenerationRequest]) -> dict[str, list[TextDelta]]:
    found: dict[str, list[TextDelta]] = {request.request_id: [] for request in asked}
    for name, event in engine.generate(asked):
        if isinstance(event, TextDelta):
            found[name].append(event)
    return found


def _ids(deltas: list[TextDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def _agree(expected: list[TextDelta], found: list[TextDelta]) -> bool:
    """Equal tokens, up to the first place where the CPU's two likeliest are a tie."""
    entries = [entry for delta in expected for entry in delta.logprobs or ()]
    for ours, theirs, entry in zip(_ids(found), _ids(expected), entries, strict=True):
        if ours != theirs:
            first, second = (top.logprob for top in entry.top[:2])
            return first - second < TIE
    return True


def main() -> int:
    """Print rows; 1 where a token is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_check")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=100.0)
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="lanewise-engine-") as name:
        bench = Bench(model_folder(Path(name), options.layers), options.device)
        row = bench.check()
        print(json.dumps(row), flush=True)
        for timed in bench.times(deadline):
            print(json.dumps(timed), flush=True)
    return 0 if row["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
