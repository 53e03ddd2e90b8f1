"""The time of an operation: its phases, and what its caller's deadline leaves."""

import pytest
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import Phase
from ebbtide_runtime.agent.action import Running
from hypothesis import given, settings
from hypothesis import strategies as st


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def running(clock: Clock, deadline: float | None = None) -> Running:
    return Running("op", "sleep", "m", deadline, clock)


def test_an_operation_without_phases_took_no_time_in_any() -> None:
    assert running(Clock()).timings() == []


def test_phases_are_timed_one_after_the_other() -> None:
    clock = Clock()
    run = running(clock)
    for phase in (Phase.DRAINING, Phase.SUSPENDING, Phase.ASLEEP):
        run.entered(phase)
        clock.now += 0.25
    run.left()
    clock.now += 9
    assert run.timings() == [(Phase.DRAINING, 250.0), (Phase.SUSPENDING, 250.0), (Phase.ASLEEP, 250.0)]


def test_the_last_phase_runs_on() -> None:
    clock = Clock()
    run = running(clock)
    run.entered(Phase.DRAINING)
    run.entered(Phase.DRAINING)
    clock.now += 1.5
    assert run.timings() == [(Phase.DRAINING, 1500.0)]


def test_a_deadline_shortens_waits_and_stops_what_comes_next() -> None:
    clock = Clock()
    run = running(clock, 2.0)
    assert run.clip(30) == 2.0
    clock.now += 1.5
    assert run.clip(30) == 0.5
    assert run.clip(0.1) == 0.1
    run.check()
    clock.now += 1
    assert run.clip(30) == 0
    with pytest.raises(EbbtideError) as caught:
        run.check()
    assert caught.value.code is ErrorCode.PHASE_DEADLINE
    assert caught.value.details == {"budgetSeconds": 2.0}


def test_without_a_deadline_nothing_is_shortened() -> None:
    run = running(Clock())
    run.check()
    assert run.clip(30) == 30


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(Phase)), st.floats(0, 100)), max_size=20))
def test_the_phases_sum_to_the_whole(steps: list[tuple[Phase, float]]) -> None:
    clock = Clock()
    run = running(clock)
    for phase, seconds in steps:
        run.entered(phase)
        clock.now += seconds
    run.left()
    assert sum(ms for _, ms in run.timings()) == pytest.approx(sum(seconds for _, seconds in steps) * 1000, abs=1e-6)
