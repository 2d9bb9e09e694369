"""From a model, a machine and a workload to the plan that serves it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernels.cost_model.exchange import exchange_of
from kernels.cost_model.rates import rates_of
from llm_engine.errors import InvalidConfig
from llm_engine.plan.load import Load, LoadForecast, forecast
from llm_engine.plan.queueing import ServiceTimes
from llm_engine.plan.search.model_steps import ModelSteps
from llm_engine.plan.search.predict import Setting, predict_step
from llm_engine.plan.search.search import Choice, prompt_time, search
from llm_engine.plan.search.serving_plan import DoesNotFit, ServingPlan, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernels.hardware.machine import Machine
    from llm_engine.plan.request import PlanRequest

_MORE = 1.1


def plan_serving(
    raw: Mapping[str, Any], request: PlanRequest, machine: Machine, work: Workload, *, name: str
) -> ServingPlan | DoesNotFit:
    """The layouts, capacity and times of a model on a machine, or why it does not fit.

    Raises: UnsupportedModel for a config that is not known.
    """
    steps = ModelSteps(raw, request, name)
    setting = Setting(
        rates=rates_of(machine, has_fp8_math=request.has_fp8_math),
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
        marginal=_marginal(steps, setting, work, choice),
        rejected=choice.rejected,
        assumed=(*setting.rates.assumed, *setting.exchange.assumed),
        notes=(*choice.notes, *prefill.reasons, *notes),
    )


def _load(
    steps: ModelSteps, setting: Setting, work: Workload, choice: Choice
) -> tuple[LoadForecast | None, tuple[str, ...]]:
    """How long callers wait who share out over the replicas, from the times of both phases."""
    size = choice.prefill.size
    whole = predict_step(steps, setting, choice.prefill.layout, size)
    replicas = choice.prefill.layout.replicas
    one = predict_step(
        steps, setting, choice.decode.layout, replace(choice.decode.size, rows=1, batch=1)
    )
    batch = choice.decode.size.batch
    each_s = max(0.0, (choice.decode.seconds - one.seconds) / (batch - 1)) if batch > 1 else 0.0
    times = ServiceTimes(
        prefill_s_per_token=whole.seconds / size.rows,
        decode_s=max(one.seconds - each_s, 1e-9),
        decode_s_each=each_s,
        kv_tokens=choice.memory.kv_tokens // replicas,
        chunk_tokens=size.rows,
        shares_cards=True,
    )
    load = Load(
        prompt_tokens=work.prompt_tokens,
        answer_tokens=work.answer_tokens,
        num_clients=-(-work.num_clients // replicas),
    )
    try:
        found = forecast(load, times, num_requests=100)
        return replace(
            found,
            requests_per_s=found.requests_per_s * replicas,
            tokens_per_s=found.tokens_per_s * replicas,
        ), ()
    except InvalidConfig as error:
        return None, (f"no forecast of the load: {error}",)


def _marginal(
    steps: ModelSteps, setting: Setting, work: Workload, choice: Choice
) -> dict[str, float]:
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
    del work
    memory = choice.memory
    more = 0.1 * memory.total_bytes * 0.96 / memory.token_bytes if memory.token_bytes else 0.0
    scale = memory.kv_tokens * memory.token_bytes / max(memory.free_bytes, 1.0)
    tokens = more * (scale or 1.0)
    found["memory size, KV tokens"] = tokens / memory.kv_tokens if memory.kv_tokens else 0.0
    return found
