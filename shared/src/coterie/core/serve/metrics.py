"""What a server counts, in the text form of Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts of one server, in a registry of its own; nothing in them says who asked for what."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "coterie_requests",
            "Requests answered.",
            ["route", "method", "status"],
            registry=registry,
        )
        self.seconds = Histogram(
            "coterie_request_seconds",
            "Seconds from a request to its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge(
            "coterie_requests_in_flight", "Requests that are being answered.", registry=registry
        )
        self.round = Gauge("coterie_run_round", "Rounds of the run served.", registry=registry)
        self.reloads = Counter(
            "coterie_reloads",
            "Newer states of the run that were opened, or could not be.",
            ["result"],
            registry=registry,
        )
        for result in ("opened", "failed"):  # seen as 0 from the start
            self.reloads.labels(result)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self._registry)
