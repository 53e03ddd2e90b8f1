"""Prometheus metrics of one member. Names start with `ebbtide_member_`; bytes and seconds, as Prometheus wants them."""

from __future__ import annotations

from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import Phase, StateVector
from ebbtide_api.verbs import Operation, OperationStatus
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .lifecycle import MIB

_BUCKETS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_PREFIX = "ebbtide_member"


class Metrics:
    """The registry of one agent."""

    def __init__(self, member: str) -> None:
        self.registry = CollectorRegistry()
        self._member = member
        self._phase = self._gauge("phase", "1 for the phase that the member is in.", "phase")
        self._gauges = {name: self._gauge(name, text) for name, text in _GAUGES.items()}
        text = "Duration of operations, by verb and outcome (an error's code, done, or noop)."
        self._operations = self._histogram("operation_seconds", text, "verb", "outcome")
        self._phases = self._histogram("phase_seconds", "Duration of phases within operations.", "phase")
        name = f"{_PREFIX}_refusals"
        self._refusals = Counter(name, "Calls refused, by code.", ("member", "code"), registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{_PREFIX}_{name}", text, ("member", *labels), registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"{_PREFIX}_{name}", text, ("member", *labels), registry=self.registry, buckets=_BUCKETS)

    def ended(self, operation: Operation, seconds: float) -> None:
        """Count an operation that ended."""
        outcome = "noop" if operation.noop else "done"
        if operation.status is OperationStatus.FAILED and operation.error is not None:
            outcome = operation.error.code.value
        self._operations.labels(self._member, operation.verb, outcome).observe(seconds)
        for timing in operation.phases:
            self._phases.labels(self._member, timing.phase.value).observe(timing.ms / 1000)

    def refused(self, code: ErrorCode) -> None:
        """Count a call that was refused before anything was touched."""
        self._refusals.labels(self._member, code.value).inc()

    def render(self, vector: StateVector) -> bytes:
        """Return the exposition, with the gauges as they are now."""
        for phase in Phase:
            self._phase.labels(self._member, phase.value).set(phase is vector.phase)
        for name, value in _values(vector).items():
            self._gauges[name].labels(self._member).set(value)
        exposition: bytes = generate_latest(self.registry)
        return exposition


_GAUGES = {
    "admission": "1 while requests are admitted.",
    "inflight_requests": "Requests inside the gate.",
    "used_bytes": "Device bytes in use, as the launcher measured them.",
    "host_bytes": "Host bytes of parked weights and own copies.",
    "weight_version": "The version of the weights that the engine holds.",
    "committed_version": "The last committed version.",
    "cache_epoch": "The version that the caches were reset for.",
    "epoch": "The highest epoch seen.",
    "sleeps": "Measured sleeps over the member's life.",
}


def _values(vector: StateVector) -> dict[str, float]:
    return {
        "admission": float(vector.admission),
        "inflight_requests": vector.inflight.running,
        "used_bytes": sum(device.used_mib for device in vector.devices) * MIB,
        "host_bytes": vector.host_mib * MIB,
        "weight_version": vector.weight_version,
        "committed_version": vector.committed_version,
        "cache_epoch": vector.cache_epoch,
        "epoch": vector.epoch,
        "sleeps": vector.cycle,
    }
