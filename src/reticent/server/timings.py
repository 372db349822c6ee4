"""Times of requests and answers: a histogram for Prometheus, and quantiles of the latest for the dashboard.

All of them are times of public work: of waiting, of reading a prompt, of steps. None depends on the realised world.
"""

import math
from collections import deque
from typing import Final

from prometheus_client import CollectorRegistry, Histogram

LATEST: Final = 1000
"""Observations from which quantiles are taken."""
REQUEST_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Timing:
    """Durations of one kind, in seconds; safe to use from several threads."""

    def __init__(self, registry: CollectorRegistry, name: str, help_text: str) -> None:
        self._histogram = Histogram(f"reticent_{name}", help_text, registry=registry, buckets=REQUEST_BUCKETS)
        self._latest: deque[float] = deque(maxlen=LATEST)

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._histogram.observe(seconds)
        self._latest.append(seconds)

    def quantile(self, share: float) -> float | None:
        """The shortest duration that at least this share of the latest 1,000 do not exceed; None before the first."""
        latest = sorted(self._latest.copy())
        return latest[max(0, math.ceil(share * len(latest)) - 1)] if latest else None


class AnswerTimes:
    """Times of answers, from their request's arrival on, and their endings."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.queue = Timing(registry, "queue_seconds", "Time from a request's arrival to the start of an answer to it.")
        self.first_token = Timing(
            registry, "first_token_seconds", "Time from a request's arrival to an answer's first token."
        )
        self.whole = Timing(registry, "answer_seconds", "Time from a request's arrival to an answer's end.")
