"""The layouts part of `plan`: found, put into the document, and printed as one table."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels.errors import KernelError
from kernels.hardware.errors import HardwareError
from kernels.plan_formats import choose_formats
from llm_engine.errors import LLMError
from llm_engine.plan import families as llm
from llm_engine.plan.load import Estimate
from llm_engine.plan.search.goals import GOAL_TEXTS
from llm_engine.plan.search.serving import plan_serving
from llm_engine.plan.search.serving_plan import DoesNotFit, ServingPlan, Workload
from workers.planning.inputs import (
    EXIT_DOES_NOT_FIT,
    PlanFailed,
    PlanSizes,
    find_machine,
    find_model,
    request_of,
)
from workers.planning.measured import NOT_HERE, basis_text, measured_here
from workers.planning.plan_tables import print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernels.cost_model.calibrated import MeasuredRates
    from kernels.hardware.machine import Machine
    from llm_engine.plan.search.prediction import StepPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What was found for one machine, and for the one it is compared with."""

    model: str
    machine: str
    work: Workload
    plan: ServingPlan | DoesNotFit
    against: str
    other: ServingPlan | DoesNotFit | None
    price_per_hour: float
    calibration: str  # which table is behind the figures, or why none is

    @property
    def cost_per_million(self) -> float | None:
        """Price of a million tokens, prompts and answers, while all callers send."""
        if not self.price_per_hour or isinstance(self.plan, DoesNotFit):
            return None
        return self.price_per_hour / 3600 / tokens_s(self.plan, self.work) * 1e6

    @property
    def exit_code(self) -> int:
        """4 where it does not fit."""
        return EXIT_DOES_NOT_FIT if isinstance(self.plan, DoesNotFit) else 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        if isinstance(self.plan, DoesNotFit):
            return {"fits": False, "cause": self.plan.cause, "reason": str(self.plan)}
        return {
            "fits": True,
            **self.plan.as_dict(),
            "calibration": self.calibration,
            "cost_per_million_tokens": self.cost_per_million,
            "against": _gap(self),
        }

    def show(self) -> None:
        """One table of two columns, or on stderr why it does not fit."""
        if isinstance(self.plan, DoesNotFit):
            sys.stderr.write(f"lanewise plan: {self.model} {self.plan}\n")
            return
        basis = self.plan.basis.word
        title = f"{self.model}: predicted from {basis} rates, with intervals"
        print_table(title, ("", "prefill", "decode"), _phase_rows(self.plan))
        print_table("", ("", ""), [*_rows(self, self.plan)])
        rejected = [(r.phase, r.layout, r.reason) for r in self.plan.rejected]
        print_table("not taken", ("phase", "layout", "why"), rejected)


def tokens_s(plan: ServingPlan, work: Workload) -> float:
    """Tokens a second of both kinds: as forecast with all callers, where that can be told.

    Else one phase at a time, of requests that always wait.
    """
    if plan.load is not None:
        return plan.load.tokens_per_s
    request_s = work.prompt_tokens / plan.prefill_tokens_s
    request_s += work.answer_tokens / plan.decode_tokens_s
    return (work.prompt_tokens + work.answer_tokens) / request_s


def serving_of(options: argparse.Namespace, sizes: PlanSizes) -> Serving | None:
    """The layouts of a language model; None for others.

    Raises: PlanFailed.
    """
    try:
        name, raw = find_model(options.model)
        if not llm.is_language_model(raw):
            return None
        machine = find_machine(options.machine)
        work = Workload(
            prompt_tokens=options.prompt_tokens or max(1, sizes.context - options.answer_tokens),
            answer_tokens=options.answer_tokens,
            num_clients=options.clients,
            goal=options.goal,
            wire=options.wire,
            chunk=sizes.prefill_tokens,
        )
        other = find_machine(options.against) if options.against else None
        measured, calibration = None, NOT_HERE
        if not options.machine:
            measured, calibration = measured_here(options.data)
        return Serving(
            model=name,
            machine=options.machine,
            work=work,
            plan=_one(name, raw, machine, sizes, work, measured),
            against=options.against,
            other=_one(name, raw, other, sizes, work) if other else None,
            price_per_hour=options.price_per_hour,
            calibration=calibration,
        )
    except (HardwareError, LLMError, KernelError, ValueError) as error:
        raise PlanFailed(str(error)) from error


def _one(
    name: str,
    raw: dict[str, Any],
    machine: Machine,
    sizes: PlanSizes,
    work: Workload,
    measured: MeasuredRates | None = None,
) -> ServingPlan | DoesNotFit:
    formats = choose_formats(machine, is_quantised=llm.is_quantised(raw), asked_cache=sizes.cache)
    request = request_of(sizes, formats)
    return plan_serving(raw, request, machine, work, name=name, measured=measured)


def _phase_rows(plan: ServingPlan) -> list[tuple[str, str, str]]:
    both = (plan.prefill, plan.decode)

    def row(name: str, texts: list[str]) -> tuple[str, str, str]:
        return name, texts[0], texts[1]

    return [
        row("layout", [str(p.layout) for p in both]),
        row("rows of a step", [str(p.size.rows) for p in both]),
        row(
            "step",
            [_step(p) for p in both],
        ),
        row("tokens a second", [f"{p.rows_s:,.0f}" for p in both]),
        row("time in", [_shares(p.parts.as_dict(), p.hidden_s) for p in both]),
        row("sent by a rank", [f"{p.sent_bytes / p.size.rows / 1e3:.1f} KB a row" for p in both]),
    ]


def _step(found: StepPrediction) -> str:
    scale, unit = (1.0, "s") if found.seconds >= 10 else (1e3, "ms")
    value, low, high = (t * scale for t in (found.seconds, found.low_s, found.high_s))
    return f"{value:.1f} {unit} [{low:.1f}..{high:.1f}]"


def _shares(parts: dict[str, float], hidden_s: float) -> str:
    total = sum(parts.values())
    named = sorted(parts.items(), key=lambda item: -item[1])
    text = ", ".join(f"{name} {s / total:.0%}" for name, s in named if s / total >= 0.005)
    return f"{text}; {hidden_s / total:.0%} hidden" if hidden_s else text


def _rows(found: Serving, plan: ServingPlan) -> list[tuple[str, str]]:
    memory, prompt, load = plan.memory, plan.prompt, plan.load
    rows = [
        ("goal", f"{found.work.goal}: {GOAL_TEXTS[found.work.goal]}"),
        (
            "memory",
            f"{memory.weight_bytes / 1e9:.1f} GB of weights, {memory.workspace_bytes / 1e9:.1f} "
            f"work, {memory.free_bytes / 1e9:.1f} for rows, of {memory.total_bytes / 1e9:.1f} GB "
            "on each device",
        ),
        ("KV capacity", f"{memory.kv_tokens:,} tokens, longest sequence {memory.max_context:,}"),
        (
            "one prompt",
            f"{found.work.prompt_tokens:,} tokens: {prompt.seconds:.2f} s to the first token "
            f"[{prompt.low_s:.2f}..{prompt.high_s:.2f}]",
        ),
    ]
    if load:
        rows.append(
            (
                f"{found.work.num_clients} callers",
                f"TTFT P50 {_estimate(load.ttft_p50_s)}, P95 {_estimate(load.ttft_p95_s)}, "
                f"{load.requests_per_s:.3g} requests/s, {load.binds} binds waits",
            )
        )
    rows.append(("runs today", _today(found, plan)))
    rows.append(("10 % more of", _gains(plan.marginal)))
    if (cost := found.cost_per_million) is not None:
        work = found.work
        mix = f"{work.prompt_tokens:,} of a prompt to {work.answer_tokens:,} of its answer"
        rows.append(
            (
                "price",
                f"{cost:.3g} for a million tokens, {mix}, with {work.num_clients} callers on a "
                f"machine of {found.price_per_hour:g} an hour",
            )
        )
    if found.other is not None:
        rows.append((f"against {found.against}", str(_gap(found)["text"])))
    rows += [("note", note) for note in plan.notes]
    rows.append(("confidence", basis_text(plan.basis, found.calibration)))
    machine = f" --machine {found.machine}" if found.machine else ""
    rows.append(("all values", f"lanewise plan {found.model}{machine} --json"))
    return rows


def _gains(marginal: Mapping[str, float]) -> str:
    """What ten per cent more of each resource gives: "link: prefill +8.6%, decode +0.5%; ..."."""
    by_resource: dict[str, list[str]] = {}
    for name, gain in marginal.items():
        resource, _, what = name.partition(", ")
        by_resource.setdefault(resource, []).append(f"{what} {gain:+.1%}")
    return "; ".join(f"{resource}: {', '.join(texts)}" for resource, texts in by_resource.items())


def _estimate(found: Estimate) -> str:
    return f"{found.value:.2f} s [{found.low:.2f}..{found.high:.2f}]"


def _today(found: Serving, plan: ServingPlan) -> str:
    """The command for the chosen layouts, or for the best that this version runs."""
    today = plan.today
    if not today.text:
        return f"no: {today.reason}; the layouts above are planned"
    command = f"lanewise serve --model {found.model} --layout '{today.text}'"
    if today.wire != "exact":
        command += f" --wire {today.wire}"
    if today.services > 1:
        command = f"{today.services} services, each on its own devices: {command}"
    if not today.is_plan:
        price = f"{today.kv_tokens:,} tokens in the cache"
        if found.work.goal != "context":
            price = f"{today.slower:+.0%} of the goal's time"
        command += f" (not the plan, but {today.prefill} then {today.decode}: {price}"
        command += f"; {today.blocks})" if today.blocks else ")"
    return f"{command}; over several GPUs unverified" if today.num_ranks > 1 else command


def _gap(found: Serving) -> dict[str, Any]:
    """How the machine compares with the other one."""
    if found.other is None or isinstance(found.plan, DoesNotFit):
        return {}
    if isinstance(found.other, DoesNotFit):
        return {"fits": False, "text": f"{found.model} {found.other}"}
    ours, theirs = tokens_s(found.plan, found.work), tokens_s(found.other, found.work)
    first = found.other.prompt.seconds / found.plan.prompt.seconds
    text = (
        f"{ours / theirs:.2f} times its tokens a second; a prompt alone {first:.2f} times as fast"
    )
    return {"fits": True, "tokens_ratio": ours / theirs, "prompt_ratio": first, "text": text}
