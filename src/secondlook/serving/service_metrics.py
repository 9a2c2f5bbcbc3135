"""Prometheus metrics: counts and times of this instance, and the monitoring status of the policy."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from secondlook import Decision, __version__

REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServiceMetrics(Collector):
    """The metrics of one instance; counts start at 0 with it."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._decisions = self._make(Counter, "decisions", "Images decided by this instance.", "outcome")
        self._audits = self._make(Counter, "audits", "Accepted images marked for review.")
        self._looks = self._make(Counter, "looks", "Views that the classifier saw.")
        self._batch_size = self._make(Histogram, "batch_size", "Images per batch.", buckets=BATCH_SIZES)
        self._batch_seconds = self._make(Histogram, "batch_seconds", "Time to look at a batch.")
        self._request_seconds = self._make(
            Histogram, "request_seconds", "Time to serve a request.", "route", "status", buckets=REQUEST_SECONDS
        )
        self.overloads: Counter = self._make(Counter, "overloads", "Requests refused because the queue was full.")
        self._storage_failures = self._make(Counter, "storage_failures", "Requests that could not be stored.")
        self.waiting: Gauge = self._make(Gauge, "images_waiting", "Admitted images without a decision.")
        self.status: Mapping[str, Any] = {}
        """The content of `GET /v1/status`."""
        self._registry.register(self)
        for outcome in ("accepted", "rejected"):  # export 0 before the first decision, so that rates are correct
            self._decisions.labels(outcome)

    def count_look(self, n_images: int, seconds: float) -> None:
        """Record the size and duration of a batch."""
        self._batch_size.observe(n_images)
        self._batch_seconds.observe(seconds)

    def count_decisions(self, decisions: Sequence[Decision]) -> None:
        """Count stored decisions."""
        accepted = sum(one.accept for one in decisions)
        self._decisions.labels("accepted").inc(accepted)
        self._decisions.labels("rejected").inc(len(decisions) - accepted)
        self._audits.inc(sum(one.audit for one in decisions))
        self._looks.inc(sum(one.looks for one in decisions))

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request by its route, e.g. "/v1/decide"; the number of paths is unbounded."""
        self._request_seconds.labels(route, str(status)).observe(seconds)
        if status == 507:
            self._storage_failures.inc()

    def read_count(self, name: str) -> int:
        """Return the value of a counter, e.g. "overloads"."""
        return int(self._registry.get_sample_value(f"secondlook_{name}_total") or 0)

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the stream, except unknown ones."""
        policy, monitor = self.status.get("policy"), self.status.get("monitor")
        if policy is not None:
            about = {"checksum": policy["checksum"], "method": policy["method"], "version": __version__}
            yield InfoMetricFamily("secondlook_policy", "The policy in force.", about)
            yield _make_gauge("deployment", "Deployment number of the policy in force.", policy["deployment"])
            guarantee = policy["guarantee"]
            if guarantee is not None:
                yield _make_gauge("guaranteed_risk", "Error rate that the policy guarantees.", guarantee["risk"])
        if "reviews" in self.status:
            reviews = GaugeMetricFamily("secondlook_reviews", "Images to review, by state.", labels=("state",))
            for state, count in self.status["reviews"].items():
                reviews.add_metric((state,), count)
            yield reviews
        if monitor is not None:
            yield from _list_monitor_metrics(monitor)

    def _make(self, kind: Any, name: str, description: str, *labels: str, **options: Any) -> Any:
        return kind(f"secondlook_{name}", description, labels, registry=self._registry, **options)


def _list_monitor_metrics(monitor: Mapping[str, Any]) -> Iterator[Metric]:
    shift, recent, audit = monitor["shift"], monitor["recent"] or {}, monitor["audit"]
    yield _make_gauge(
        "alarm", "Whether images changed, more are unknown, or the guarantee is broken.", int(monitor["alarm"])
    )
    yield _make_gauge("stream_images", "Images decided by the policy in force.", monitor["images"])
    yield _make_gauge("stream_coverage", "Share of these images that are accepted.", monitor["coverage"])
    yield _make_gauge("shift_evidence_log10", "Evidence that images have changed.", shift["log10_evidence"])
    yield _make_gauge("shift_limit_log10", "Evidence at which the alarm is raised.", shift["log10_limit"])
    unknown = monitor["unknown"]
    if unknown is not None and unknown["share"] is not None:
        yield _make_gauge("unknown_share", "Share of reviewed images that show none of the classes.", unknown["share"])
        yield _make_gauge("unknown_share_low", "Lower end of its 95 % interval.", unknown["low"])
        yield _make_gauge("unknown_share_high", "Upper end of its 95 % interval.", unknown["high"])
        yield _make_gauge("unknown_grown", "Whether it has grown for rejected images.", int(unknown["raised"]))
    if recent.get("risk") is not None:
        yield _make_gauge("estimated_risk", "Estimated error rate among accepted; not guaranteed.", recent["risk"])
    if audit is not None:
        yield _make_gauge("audited_risk_low", "Lower bound of the error rate among accepted.", audit["low"])
        yield _make_gauge("audited_risk_high", "Upper bound of the error rate among accepted.", audit["high"])
        broken = int(audit["verdict"] == "broken")
        yield _make_gauge("guarantee_broken", "Whether audits show that the guarantee is broken.", broken)


def _make_gauge(name: str, description: str, value: float) -> Metric:
    return GaugeMetricFamily(f"secondlook_{name}", description, value=value)
