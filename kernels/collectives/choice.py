"""Which algorithm carries out an operation: a pure function of what all ranks know alike."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernels.collectives.adapters import absent_adapters
from kernels.collectives.algorithm import Algorithm
from kernels.collectives.algorithms import algorithms_for
from kernels.collectives.calls import Contract, Reduction
from kernels.collectives.costs import SEEDS, LinkCosts
from kernels.collectives.fabric import DEVICES, EVIDENCE, TRANSPORTS, Transport
from kernels.collectives.group import Group
from kernels.errors import ImplUnavailable, NoImplementation
from kernels.ledger import Decision, Rejection, Source
from kernels.spec import Tier

AUTO = "auto"


def bucket_of(size_bytes: int) -> int:
    """A size down to a power of two."""
    return 1 << (size_bytes.bit_length() - 1) if size_bytes else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be carried out. `size_bytes` is the same number on all ranks."""

    operation: str
    contract: Contract
    size_bytes: int
    dtype: str
    num_ranks: int
    device: str = "cpu"
    reduction: Reduction = "sum"

    @property
    def bucket_bytes(self) -> int:
        """What decisions are made and kept for."""
        return bucket_of(self.size_bytes)

    def __str__(self) -> str:
        """Short form for tables."""
        how = "" if self.reduction == "sum" else f"{self.reduction} of "
        return f"{how}{self.dtype} from {self.bucket_bytes} B, {self.num_ranks} ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What choices rest on: measured constants and choices, or the seeds.

    `chosen` holds measured choices by (operation, contract, bucket), `times_us` what they took;
    `evidence` says where all of it is from. Buckets that were not measured use the constants.
    """

    links: Mapping[str, LinkCosts]
    chosen: Mapping[tuple[str, str, int], str]
    evidence: str
    times_us: Mapping[tuple[str, str, int], float] = field(
        default_factory=dict[tuple[str, str, int], float]
    )

    @property
    def digest(self) -> str:
        """The same on all ranks, or they would choose differently."""
        links = sorted((name, str(costs)) for name, costs in self.links.items())
        text = f"{links} {sorted(self.chosen.items())}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


SEED = Knowledge(links=SEEDS, chosen={}, evidence="seed constants, nothing measured here")


def choose(
    question: Question,
    group: Group,
    *,
    transports: Sequence[Transport] = TRANSPORTS,
    knowledge: Knowledge = SEED,
    asked: str = AUTO,
    where: str = "",
) -> tuple[Algorithm, Decision]:
    """The algorithm and the decision with its reasons.

    A name that is asked for is met or refused. `auto` takes a measured choice, else the least
    predicted time among those that keep the contract.

    Raises:
        ImplUnavailable: the name asked for does not exist or cannot serve.
        NoImplementation: nothing keeps this contract on the transports that are open.
    """
    candidates = algorithms_for(question.operation)
    unmet = {a.name: _unmet(a, question, group, transports) for a in candidates}
    usable = [a for a in candidates if not unmet[a.name]]
    times_s = {a.name: _predicted_s(a, question, knowledge) for a in usable}
    if asked != AUTO:
        chosen, source = _explicit(asked, candidates, unmet, question), "explicit"
    else:
        chosen, source = _automatic(usable, times_s, question, knowledge, unmet)
    return chosen, _decision(question, chosen, asked, source, where, times_s, unmet, knowledge)


def _unmet(
    algorithm: Algorithm, question: Question, group: Group, transports: Sequence[Transport]
) -> tuple[str, ...]:
    reasons: list[str] = []
    if question.contract not in algorithm.contracts:
        kept = ", ".join(algorithm.contracts)
        reasons.append(f"keeps {kept}, not {question.contract}")
    if algorithm.transport not in transports:
        reasons.append(f"{algorithm.transport} is not open")
    if DEVICES[algorithm.transport] != question.device:
        reasons.append(f"moves {DEVICES[algorithm.transport]} tensors, not {question.device} ones")
    found = algorithm.unmet(group), algorithm.unmet_values(question.dtype, question.reduction)
    return (*reasons, *filter(None, found))


def _predicted_s(algorithm: Algorithm, question: Question, knowledge: Knowledge) -> float:
    links = knowledge.links.get(algorithm.transport, SEEDS[algorithm.transport])
    return algorithm.cost_s(question.bucket_bytes, question.num_ranks, links)


def _explicit(
    asked: str,
    candidates: Sequence[Algorithm],
    unmet: Mapping[str, tuple[str, ...]],
    question: Question,
) -> Algorithm:
    found = next((a for a in candidates if a.name == asked), None)
    if found is None:
        names = ", ".join(a.name for a in candidates)
        raise ImplUnavailable(f"{question.operation} has no {asked!r}; there are: {names}")
    if unmet[asked]:
        raise ImplUnavailable(
            f"{question.operation}: {asked!r} was asked for and cannot serve {question}: "
            f"{'; '.join(unmet[asked])}. Ask for 'auto' to take the best that fits"
        )
    return found


def _automatic(
    usable: Sequence[Algorithm],
    times_s: Mapping[str, float],
    question: Question,
    knowledge: Knowledge,
    unmet: Mapping[str, tuple[str, ...]],
) -> tuple[Algorithm, Source]:
    if not usable:
        tried = "; ".join(f"{name}: {', '.join(why)}" for name, why in unmet.items())
        raise NoImplementation(
            f"{question.operation} under {question.contract}: nothing fits. {tried}"
        )
    key = (question.operation, question.contract, question.bucket_bytes)
    measured = knowledge.chosen.get(key)
    for algorithm in usable:
        if algorithm.name == measured:
            return algorithm, "tuned"
    return min(usable, key=lambda a: times_s[a.name]), "default"


def _decision(
    question: Question,
    chosen: Algorithm,
    asked: str,
    source: Source,
    where: str,
    times_s: Mapping[str, float],
    unmet: Mapping[str, tuple[str, ...]],
    knowledge: Knowledge,
) -> Decision:
    """Tier: how ranks are joined is no grade of a kernel, so a floor on kernels passes it."""
    predicted_us = times_s[chosen.name] * 1e6
    slower = (
        Rejection(candidate=name, reasons=(f"predicted {time_s * 1e6:.0f} us",))
        for name, time_s in sorted(times_s.items(), key=lambda item: item[1])
        if name != chosen.name
    )
    unfit = (Rejection(candidate=n, reasons=why) for n, why in unmet.items() if why)
    absent = absent_adapters() if question.device != "cpu" else ()
    return Decision(
        kind="collective",
        where=where or f"between {question.num_ranks} ranks",
        what=f"{question.operation} ({question.contract})",
        asked=asked,
        chosen=chosen.name,
        tier=Tier.VENDOR,
        source=source,
        case=str(question),
        reasons=(f"predicted {predicted_us:.0f} us", *filter(None, (chosen.made_by(),))),
        rejected=(*slower, *unfit, *absent),
        evidence=f"{knowledge.evidence}; {EVIDENCE[chosen.transport]}",
    )
