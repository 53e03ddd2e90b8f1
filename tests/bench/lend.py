"""`scripts/bench lend`: memory, times and tokens of lending; waking against the machine; the gate's cost."""

from __future__ import annotations

from . import cycles, gate, wake
from .report import Report, at_most


def run(quick: bool) -> Report:
    """Run all workloads, one after the other, and relate the gate's cost to a real request."""
    report = Report("lend")
    report.add(*wake.run(5 if quick else 40))
    report.add(*gate.run(200 if quick else 4000))
    report.add(*cycles.run(3 if quick else 20))
    added = report.median(gate.WORKLOAD, "gate open", "added") / 1000
    request = report.median(cycles.WORKLOAD, cycles.CONTENDER, "request of 16 tokens")
    report.add(goals=[at_most("the gate's share of a request (medians)", added / request, 0.01)])
    return report
