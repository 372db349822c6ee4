"""Prometheus metrics, in a registry of their own.

Nothing here depends on the realised world beyond released tokens. What depends on dissent is coarse, see `coarse`: a
finer value would reveal to an outsider which texts the corpus bears on. Only keys of the `admin` scope may read this.
"""

from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from reticent.server.figures import Figures
from reticent.server.jobs import FinishReason, TokenSource
from reticent.server.releasing import AnyCurator
from reticent.server.stepping import Step
from reticent.server.timings import REQUEST_BUCKETS, AnswerTimes

_STEP_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Queue(Protocol):
    """The number of answers in progress."""

    @property
    def num_active(self) -> int:
        """Answers in the batch."""
        ...

    @property
    def num_waiting(self) -> int:
        """Answers that wait."""
        ...


class Metrics:
    """Metrics of the engine and the routes, and their exposition; implements `scheduler.Observer`."""

    def __init__(self, curator: AnyCurator, figures: Figures) -> None:
        self.registry = CollectorRegistry()
        self._tokens = self._counter(
            "tokens_released", "Tokens shown since the start, by the model that wrote them.", "source"
        )
        self._failures = self._counter(
            "ledger_failures", "Steps whose charges could not be written; their tokens stay hidden."
        )
        self._requests = self._counter("requests", "Requests since the start.", "route", "status")
        self._request_seconds = Histogram(
            "reticent_request_seconds",
            "Time from a request's arrival to the end of the answer, streams included.",
            ["route"],
            registry=self.registry,
            buckets=REQUEST_BUCKETS,
        )
        self._answers = self._counter("answers", "Answers that ended, by what ended them.", "ended_by")
        self.times = AnswerTimes(self.registry)
        self._refusals = self._counter("refusals", "Requests and connections refused or cut, by reason.", "reason")
        self._connections = self._gauge("connections", "Connections, idle ones included.")
        self._step_seconds = self._histogram("step_seconds", "Time of one decode step for all answers in the batch.")
        self._prefill_seconds = self._histogram("prefill_seconds", "Time to read one prompt.")
        self._gauge("deployment_tokens", "Tokens released over the deployment's life.").set_function(
            lambda: curator.state.tokens_released
        )
        for reading in figures.readings():
            self._gauge(reading.name, reading.help_text).set_function(reading.read)

    def watch(self, queue: Queue) -> None:
        """Show a queue's lengths."""
        self._gauge("answers_active", "Answers in the batch.").set_function(lambda: queue.num_active)
        self._gauge("answers_waiting", "Answers that wait for a place.").set_function(lambda: queue.num_waiting)

    def count_prefill(self, seconds: float) -> None:
        """Count one complete prefill."""
        self._prefill_seconds.observe(seconds)

    def count_step(self, seconds: float, step: Step[Any]) -> None:
        """Count one decode step."""
        self._step_seconds.observe(seconds)
        for source in TokenSource:
            count = sum(written.source is source for _, written in step.tokens)
            self._tokens.labels(source.value).inc(count)
        self._failures.inc(bool(step.commit_failed))

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count one request that was answered, or whose client left."""
        self._requests.labels(route, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def count_answer(self, ending: FinishReason) -> None:
        """Count one finished answer."""
        self._answers.labels(ending.value).inc()

    def count_refusal(self, reason: str) -> None:
        """Count one refused request or connection."""
        self._refusals.labels(reason).inc()

    @property
    def refusals(self) -> dict[str, int]:
        """Refusals by reason, most frequent first."""
        samples = [sample for metric in self._refusals.collect() for sample in metric.samples]
        counts = {sample.labels["reason"]: int(sample.value) for sample in samples if sample.name.endswith("_total")}
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def count_connection(self, change: int) -> None:
        """Count a connection that was opened (1) or closed (-1)."""
        self._connections.inc(change)

    def exposition(self) -> bytes:
        """The text format that Prometheus reads."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"reticent_{name}", help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str) -> Gauge:
        return Gauge(f"reticent_{name}", help_text, registry=self.registry)

    def _histogram(self, name: str, help_text: str) -> Histogram:
        return Histogram(f"reticent_{name}", help_text, registry=self.registry, buckets=_STEP_BUCKETS)
