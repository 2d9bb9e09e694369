"""Prometheus metrics, in an own registry; gauges are read from the store at scrape."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.engine_metrics import EngineMetrics
from workers.protocol import ChatDone, Job, JobKind, JobStatus, WorkerFacts

_JOB_BUCKETS_S = (0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_CHAT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_HTTP_BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 120)

Counts = Callable[[], dict[tuple[JobKind, JobStatus], int]]
Workers = Callable[[], list[WorkerFacts]]


class Metrics:
    """Counters of this process and gauges over the whole deployment."""

    def __init__(self, counts: Counts, workers: Workers) -> None:
        """Take the two readers that a scrape calls."""
        self.registry = CollectorRegistry()
        self.registry.register(_StoreGauges(counts, workers))
        self.registry.register(EngineMetrics(workers))
        self._stages = _StageClock()
        self._http = Histogram(
            "lanewise_http_seconds", "Time to serve a request.", ("method", "route", "status"),
            registry=self.registry, buckets=_HTTP_BUCKETS_S,
        )  # fmt: skip
        self._jobs = Histogram(
            "lanewise_job_stage_seconds", "Time of finished jobs by stage.", ("kind", "stage"),
            registry=self.registry, buckets=_JOB_BUCKETS_S,
        )  # fmt: skip
        self._failures = Counter(
            "lanewise_job_failures", "Jobs that failed, by class.", ("kind", "code"),
            registry=self.registry,
        )  # fmt: skip
        self._tokens = Counter(
            "lanewise_tokens", "Tokens of chat answers.", ("model", "type"), registry=self.registry
        )
        self._chat_failures = Counter(
            "lanewise_chat_failures", "Chat answers that failed, by class.", ("model", "code"),
            registry=self.registry,
        )  # fmt: skip
        self._first_token = Histogram(
            "lanewise_chat_first_event_seconds", "Time to the worker's first event.", ("model",),
            registry=self.registry, buckets=_CHAT_BUCKETS_S,
        )  # fmt: skip

    def render(self) -> bytes:
        """The text that a scrape gets."""
        return generate_latest(self.registry)

    def observe_http(self, method: str, route: str, status: int, elapsed_s: float) -> None:
        """Count one request."""
        verb = method if method in {"GET", "HEAD", "POST", "DELETE", "PUT", "PATCH"} else "other"
        self._http.labels(verb, route, str(status)).observe(elapsed_s)

    def observe_job(self, job: Job) -> None:
        """Take note of a job's new state: stage times as they end, and failures."""
        for stage, elapsed_s in self._stages.advance(job):
            self._jobs.labels(job.kind.value, stage).observe(elapsed_s)
        if job.status in {JobStatus.FAILED, JobStatus.DEAD}:
            code = job.error.code if job.error else "unknown"
            self._failures.labels(job.kind.value, code).inc()

    def observe_first_event(self, model: str, elapsed_s: float) -> None:
        """Take note of how long a chat caller waited for the first sign of an answer."""
        self._first_token.labels(model).observe(elapsed_s)

    def count_answer(self, model: str, done: ChatDone) -> None:
        """Count the tokens of a finished answer."""
        for kind, number in (
            ("prompt", done.prompt_tokens),
            ("cached", done.cached_tokens),
            ("completion", done.completion_tokens),
            ("reasoning", done.reasoning_tokens),
        ):
            self._tokens.labels(model, kind).inc(number)

    def count_chat_failure(self, model: str, code: str | None) -> None:
        """Count an answer that went wrong."""
        self._chat_failures.labels(model, code or "unknown").inc()


class _StageClock:
    """Turns the states of jobs as they are seen into how long each stage took."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[str, tuple[str, datetime]] = {}

    def advance(self, job: Job) -> Iterator[tuple[str, float]]:
        """The stages that this state ends, each with its seconds."""
        stage = _stage(job)
        with self._lock:
            before = self._since.get(job.id)
            if stage is None:
                self._since.pop(job.id, None)
            elif before is None or before[0] != stage:
                self._since[job.id] = (stage, job.changed_at)
        if before is not None and before[0] != stage:
            yield before[0], max((job.changed_at - before[1]).total_seconds(), 0.0)
        if stage is None and job.started_at and job.finished_at:
            yield "total", max((job.finished_at - job.created_at).total_seconds(), 0.0)


def _stage(job: Job) -> str | None:
    if job.status.is_terminal:
        return None
    if job.status == JobStatus.QUEUED:
        return "queued"
    return job.progress.stage if job.progress else "starting"


class _StoreGauges(Collector):
    """Gauges that are read when asked for."""

    def __init__(self, counts: Counts, workers: Workers) -> None:
        self._counts = counts
        self._workers = workers

    def describe(self) -> Iterable[Metric]:
        """Nothing: registration must not read the store."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Jobs by kind and status, queue depth, running, and the workers."""
        counts = self._counts()
        jobs = GaugeMetricFamily("lanewise_jobs", "Jobs kept.", labels=("kind", "status"))
        depth = GaugeMetricFamily("lanewise_queue_depth", "Jobs waiting.", labels=("kind",))
        running = GaugeMetricFamily("lanewise_jobs_running", "Jobs at work.", labels=("kind",))
        for kind in JobKind:
            depth.add_metric((kind.value,), counts.get((kind, JobStatus.QUEUED), 0))
            active = (JobStatus.RUNNING, JobStatus.CANCELLING)
            running.add_metric((kind.value,), sum(counts.get((kind, s), 0) for s in active))
            for status in JobStatus:
                jobs.add_metric((kind.value, status.value), counts.get((kind, status), 0))
        yield from (jobs, depth, running, self._worker_ages(), self._no_fallback())

    def _worker_ages(self) -> Metric:
        ages = GaugeMetricFamily(
            "lanewise_worker_beat_age_seconds", "Time since a worker was heard of.",
            labels=("role", "model", "state", "worker"),
        )  # fmt: skip
        now = datetime.now(UTC)
        for worker in self._workers():
            labels = (worker.role, worker.model, worker.state.value, worker.id)
            ages.add_metric(labels, max((now - worker.beat_at).total_seconds(), 0.0))
        return ages

    def _no_fallback(self) -> Metric:
        """Share of a plan's work and traffic on fused or vendor kernels, by phase."""
        family = GaugeMetricFamily(
            "lanewise_plan_no_fallback_ratio",
            "Share of the launch plan that no generic kernel runs.",
            labels=("role", "model", "phase", "device", "of"),
        )
        for worker in self._workers():
            for score in (worker.plan or {}).get("scores", ()):
                names = (worker.role, worker.model, score["phase"], score["device"])
                family.add_metric((*names, "flops"), score["flops"])
                family.add_metric((*names, "traffic"), score["traffic"])
        return family
