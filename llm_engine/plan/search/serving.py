"""From a model, a machine and a workload to the plan that serves it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernels.cost_model.basis import basis_of
from kernels.cost_model.exchange import exchange_of
from kernels.cost_model.rates import rates_of
from llm_engine.errors import InvalidConfig
from llm_engine.plan.load import Load, LoadForecast, forecast_range
from llm_engine.plan.queueing import ServiceTimes
from llm_engine.plan.search.memory import SAFETY
from llm_engine.plan.search.model_steps import ModelSteps
from llm_engine.plan.search.predict import Setting, predict_step
from llm_engine.plan.search.prompt import prompt_time
from llm_engine.plan.search.search import Choice, search
from llm_engine.plan.search.serving_plan import DoesNotFit, ServingPlan, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernels.cost_model.calibrated import MeasuredRates
    from kernels.hardware.machine import Machine
    from llm_engine.plan.request import PlanRequest
    from llm_engine.plan.search.prediction import StepPrediction

_MORE = 1.1
_REQUESTS = 100  # of each simulated run


def plan_serving(
    raw: Mapping[str, Any],
    request: PlanRequest,
    machine: Machine,
    work: Workload,
    *,
    name: str,
    measured: MeasuredRates | None = None,
) -> ServingPlan | DoesNotFit:
    """The layouts, capacity and times of a model on a machine, or why it does not fit.

    `measured` are rates of this very machine, for a plan of it.
    Raises: UnsupportedModel for a config that is not known.
    """
    steps = ModelSteps(raw, request, name)
    setting = Setting(
        rates=rates_of(machine, has_fp8_math=request.has_fp8_math, measured=measured),
        exchange=exchange_of(machine),
        num_devices=machine.num_devices,
    )
    is_cpu = all(traits.kind == "cpu" for traits in machine.traits)
    choice = search(steps, setting, work, is_cpu=is_cpu)
    if isinstance(choice, DoesNotFit):
        return choice
    return _plan(steps, setting, work, choice)


def _plan(steps: ModelSteps, setting: Setting, work: Workload, choice: Choice) -> ServingPlan:
    prefill, decode = choice.prefill, choice.decode
    prompt = prompt_time(steps, setting, prefill.layout, prefill.size.rows, work.prompt_tokens)
    load, notes = _load(steps, setting, work, choice)
    return ServingPlan(
        prefill=prefill,
        decode=decode,
        memory=choice.memory,
        prompt=prompt,
        prefill_tokens_s=prefill.rows_s,
        decode_tokens_s=decode.rows_s,
        load=load,
        today=choice.today,
        marginal=_marginal(steps, setting, choice),
        rejected=choice.rejected,
        basis=basis_of(setting.rates, setting.exchange),
        notes=(*choice.notes, *prefill.reasons, *_crowding(work, choice), *notes),
    )


def _crowding(work: Workload, choice: Choice) -> tuple[str, ...]:
    """Where the cache does not hold what all callers ask for at the same time."""
    held = choice.memory.kv_tokens // work.longest
    if held >= work.num_clients:
        return ()
    return (
        f"the cache holds {held} of {work.num_clients} callers' requests at a time: others wait, "
        f"and decode steps have {held} of the rows above",
    )


def _load(
    steps: ModelSteps, setting: Setting, work: Workload, choice: Choice
) -> tuple[LoadForecast | None, tuple[str, ...]]:
    """How long callers wait who share out over the replicas, from the times of both phases.

    Waits have the interval of both ends of the step times.
    """
    replicas = choice.prefill.layout.replicas
    alone = predict_step(
        steps, setting, choice.decode.layout, replace(choice.decode.size, rows=1, batch=1)
    )
    size = choice.prefill.size
    first = predict_step(steps, setting, choice.prefill.layout, replace(size, context=size.rows))
    fast, likely, slow = (
        _service_times(choice, first, alone, which) for which in ("low_s", "seconds", "high_s")
    )
    load = Load(
        prompt_tokens=work.prompt_tokens,
        answer_tokens=work.answer_tokens,
        num_clients=-(-work.num_clients // replicas),
    )
    try:
        found = forecast_range(load, fast, likely, slow, num_requests=_REQUESTS)
    except InvalidConfig as error:
        return None, (f"no forecast of the load: {error}",)
    return replace(
        found,
        requests_per_s=found.requests_per_s * replicas,
        tokens_per_s=found.tokens_per_s * replicas,
    ), ()


def _service_times(
    choice: Choice, first: StepPrediction, alone: StepPrediction, which: str
) -> ServiceTimes:
    """Times of both phases at one end of their intervals.

    A token takes longer the more there are before it: a straight line through the `first` chunk
    of a prompt and its last one. `alone` decodes a single sequence.
    """
    last, decode = choice.prefill, choice.decode
    rows, context = last.size.rows, last.size.context
    first_s, last_s = getattr(first, which) / rows, getattr(last, which) / rows
    grows_s = max(0.0, last_s - first_s) / (context - rows) if context > rows else 0.0
    batch, alone_s = decode.size.batch, getattr(alone, which)
    each_s = max(0.0, (getattr(decode, which) - alone_s) / (batch - 1)) if batch > 1 else 0.0
    return ServiceTimes(
        prefill_s_per_token=max(last_s - grows_s * (context - rows / 2), 1e-12),
        prefill_s_per_token2=grows_s / 2,
        decode_s=max(alone_s - each_s, 1e-9),
        decode_s_each=each_s,
        kv_tokens=choice.memory.kv_tokens // last.layout.replicas,
        chunk_tokens=rows,
        shares_cards=True,
        fill_s=last.fill_s * getattr(last, which) / last.seconds,
    )


def _marginal(steps: ModelSteps, setting: Setting, choice: Choice) -> dict[str, float]:
    """Relative gains with ten per cent more of a resource, layouts as they are."""
    rates, links = setting.rates, setting.exchange
    eased = {
        "link": replace(setting, exchange=links.scaled(_MORE)),
        "flops": replace(setting, rates=rates.scaled(flops=_MORE)),
        "memory rate": replace(setting, rates=rates.scaled(memory=_MORE)),
    }
    found: dict[str, float] = {}
    for resource, setting_more in eased.items():
        for phase in (choice.prefill, choice.decode):
            new = predict_step(steps, setting_more, phase.layout, phase.size)
            found[f"{resource}, {phase.size.phase}"] = phase.seconds / new.seconds - 1
    memory = choice.memory
    more_bytes = (_MORE - 1) * (1 - SAFETY) * memory.total_bytes
    found["memory size, KV tokens"] = more_bytes / memory.free_bytes
    return found
