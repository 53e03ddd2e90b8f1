"""The operator's metrics: computed when they are asked for, so that they cannot be stale."""

from __future__ import annotations

from collections.abc import Iterator

from ebbtide_api.state import Phase
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from ebbtide_operator.loop import Operator
from ebbtide_operator.plan import ENGINE


class _Collector:
    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def collect(self) -> Iterator[Metric]:
        """Return every metric."""
        yield from self._groups()
        yield from self._members()
        yield from self._operations()

    def _groups(self) -> Iterator[Metric]:
        epoch = _gauge("ebbtide_group_epoch", "The fencing token of the group's lease.", "group")
        lent = _gauge("ebbtide_group_lent", "1 while a trainer owns the group's devices.", "group")
        queue = _gauge("ebbtide_group_queue", "Requests that wait for the group's lease.", "group")
        version = _gauge("ebbtide_group_weight_version", "The version that the group shall serve.", "group")
        for name, group in self._operator.groups.items():
            record = group.record
            epoch.add_metric([name], record.epoch)
            lent.add_metric([name], record.owner != ENGINE)
            queue.add_metric([name], len(record.queue))
            version.add_metric([name], record.serve.version)
        yield from (epoch, lent, queue, version)

    def _members(self) -> Iterator[Metric]:
        phase = _gauge("ebbtide_member_phase", "1 for the phase that the member is in.", "server", "member", "phase")
        reached = _gauge("ebbtide_member_reachable", "1 while the member's agent answers.", "server", "member")
        for group in self._operator.groups:
            for member in self._operator.driver.members(group):
                now = member.state.phase if member.state else Phase.UNKNOWN
                phase.add_metric([member.server, member.name, now.value], 1)
                reached.add_metric([member.server, member.name], member.state is not None)
        yield from (phase, reached)

    def _operations(self) -> Iterator[Metric]:
        running = _gauge("ebbtide_operations_running", "Operations that have not ended, by verb.", "verb")
        counts: dict[str, int] = {}
        for operation in self._operator.operations.open_verbs():
            counts[operation.verb] = counts.get(operation.verb, 0) + 1
        for verb, count in counts.items():
            running.add_metric([verb], count)
        yield running


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


class Metrics:
    """The metrics of one operator."""

    def __init__(self, operator: Operator) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(operator))

    def render(self) -> bytes:
        """Return all of them as Prometheus reads them."""
        return bytes(generate_latest(self._registry))
