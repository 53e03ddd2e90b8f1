"""Lending for real: one vLLM server of 220 MiB of weights, lent and given back many times, measured each time.

Everything runs as it does for a user: operator, agent, launcher, engine, and a trainer's client. Memory is what the
kernel says of the engine's processes (Pss_Anon, which contains the arena).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ebbtide_api.state import Phase
from ebbtide_api.verbs import LendResult, ReclaimResult

from tests.support.stack import Stack

from .report import Goal, Row, at_least, at_most, row

WORKLOAD = "lend"
CONTENDER = "ebbtide, parked"
SETTLE_MS = 200.0
T = TypeVar("T")


@dataclass
class Samples:
    """What each cycle showed. Milliseconds and MiB."""

    baseline: float = 0
    asleep: list[float] = field(default_factory=list)
    suspend: list[float] = field(default_factory=list)
    copied: list[float] = field(default_factory=list)
    lend: list[float] = field(default_factory=list)
    give_back: list[float] = field(default_factory=list)
    lend_overhead: list[float] = field(default_factory=list)
    wake_weights: list[float] = field(default_factory=list)
    request: list[float] = field(default_factory=list)
    same_tokens: int = 0


@contextmanager
def serving() -> Iterator[Stack]:
    """Start a stack, wait until it serves, and leave nothing of it."""
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder))
        try:
            stack.start()
            stack.wait_until_serving()
            yield stack
        finally:
            stack.destroy()


def run(cycles: int) -> tuple[list[Row], list[Goal]]:
    """Lend and give back `cycles` times."""
    with serving() as stack:
        stack.learn(0)
        _wait_for_the_copy(stack)
        samples = Samples(baseline=stack.state().baseline_mib or 0)
        for _ in range(cycles):
            _cycle(stack, samples)
    return _rows(samples), _goals(samples, cycles)


def _wait_for_the_copy(stack: Stack) -> None:
    end = time.monotonic() + 60
    while stack.state().parked_mib == 0:
        if time.monotonic() > end:
            raise TimeoutError("the weights were not parked within 60 s")
        time.sleep(0.1)


def _cycle(stack: Stack, samples: Samples) -> None:
    samples.request.extend(_timed(lambda: stack.tokens(16))[0] for _ in range(5))
    began = time.perf_counter()
    with stack.trainer.borrow() as loan:
        samples.lend.append((time.perf_counter() - began) * 1000)
        samples.asleep.append(stack.engine_mib())
        began = time.perf_counter()
    samples.give_back.append((time.perf_counter() - began) * 1000)
    samples.same_tokens += stack.right()
    _note(samples, loan.lend, loan.reclaimed)


def _note(samples: Samples, lend: LendResult, back: ReclaimResult | None) -> None:
    member = lend.members[0].result
    samples.suspend.append(member.suspend_ms)
    samples.copied.append(member.copied_bytes)
    samples.lend_overhead.append(samples.lend[-1] - member.suspend_ms - member.drained_ms - SETTLE_MS)
    phases = back.phases if back else []
    samples.wake_weights.append(sum(each.ms for each in phases if each.phase is Phase.WAKING_WEIGHTS))


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    answer = call()
    return (time.perf_counter() - began) * 1000, answer


def _rows(samples: Samples) -> list[Row]:
    measured = [
        ("before weights and KV", "MiB", [samples.baseline]),
        ("asleep, seen from outside", "MiB", samples.asleep),
        ("suspend", "ms", samples.suspend),
        ("copied by a sleep", "bytes", samples.copied),
        ("borrow, all of it", "ms", samples.lend),
        ("borrow, without drain, suspend and settling", "ms", samples.lend_overhead),
        ("give back, all of it", "ms", samples.give_back),
        ("wake weights", "ms", samples.wake_weights),
        ("request of 16 tokens", "ms", samples.request),
    ]
    return [row(WORKLOAD, CONTENDER, metric, unit, values) for metric, unit, values in measured]


def _goals(samples: Samples, cycles: int) -> list[Goal]:
    rows = {each.metric: each for each in _rows(samples)}
    asleep = rows["asleep, seen from outside"].median
    drift = abs(samples.asleep[-1] - samples.asleep[0]) / samples.asleep[0]
    return [
        at_most("asleep, over before weights and KV", asleep / samples.baseline, 1.05),
        at_most("bytes copied by a sleep with a parked copy", max(samples.copied), 0, "bytes"),
        at_most("sleep with a parked copy (median)", rows["suspend"].median, 50, "ms"),
        at_least("cycles after which the tokens are the same", samples.same_tokens, cycles),
        at_most("memory drift over the cycles", drift, 0.01),
        at_most("lend, without the engine's own work (median)", _metric(rows, "borrow, without"), 100, "ms"),
    ]


def _metric(rows: dict[str, Row], prefix: str) -> float:
    return next(each.median for metric, each in rows.items() if metric.startswith(prefix))
