"""The engines' own counters as Prometheus metrics, under the names the engines give them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from workers.protocol import WorkerFacts

_LABELS = ("role", "model", "worker", "kind")


class EngineMetrics(Collector):
    """One metric for each number of a worker's `stats`, as of its last beat.

    A number `x` is `lanewise_engine_x`, a counter where its name ends with `_total`. A mapping of
    numbers, such as cache misses by cause, is one metric with its keys as the label `kind`.
    """

    def __init__(self, workers: Callable[[], list[WorkerFacts]]) -> None:
        """Read `workers` at every scrape."""
        self._workers = workers

    def describe(self) -> Iterable[Metric]:
        """Nothing: registration must not read the store."""
        return []

    def collect(self) -> Iterable[Metric]:
        """The numbers of all workers."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for worker in self._workers():
            for name, kind, value in numbers(worker.stats):
                if name not in families:
                    families[name] = _family(name)
                labels = (worker.role, worker.model, worker.id, kind)
                families[name].add_metric(labels, value)
        return families.values()


def numbers(stats: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """(name, kind, value) of each number in `stats`; kind is empty outside a mapping."""
    for name, value in stats.items():
        if isinstance(value, int | float):
            yield name, "", float(value)
        elif isinstance(value, dict):
            for kind, number in cast("dict[str, object]", value).items():
                if isinstance(number, int | float):
                    yield name, str(kind), float(number)


def _family(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    text = f"{name.replace('_', ' ').capitalize()}, as the engine counts it."
    if name.endswith("_total"):
        return CounterMetricFamily(f"lanewise_engine_{name[:-6]}", text, labels=_LABELS)
    return GaugeMetricFamily(f"lanewise_engine_{name}", text, labels=_LABELS)
