"""The table: total, with the invariants of DESIGN 5.2 that are its business, and drawn as it is in the docs."""

from itertools import product
from pathlib import Path

import pytest
from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import Phase
from ebbtide_api.verbs import Verb
from ebbtide_runtime.agent.lifecycle import (
    ADMITTING,
    HAPPENINGS,
    TABLE,
    TERMINAL,
    TRANSIENT,
    VERBS,
    Derive,
    Event,
    Go,
    Impossible,
    Noop,
    Refuse,
    Start,
    Stay,
    allowed,
    decide,
)
from ebbtide_runtime.agent.lifecycle import table as module
from ebbtide_runtime.agent.lifecycle.document import render
from hypothesis import given, settings
from hypothesis import strategies as st

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "lifecycle.md"
ENGINE = frozenset(Phase) - {Phase.UNKNOWN, Phase.PENDING_DEVICE, Phase.FAULTED, Phase.RECOVERING}


@pytest.mark.parametrize(("phase", "event"), list(product(Phase, Event)))
def test_every_pair_is_decided(phase: Phase, event: Event) -> None:
    decision = decide(phase, event)
    kinds = Start | Noop | Refuse if event in VERBS else Go | Derive | Stay | Impossible
    assert isinstance(decision, kinds)


def test_the_table_holds_nothing_else() -> None:
    assert set(TABLE) == set(product(Phase, Event))
    assert {event.value for event in VERBS} == {verb.value for verb in Verb}
    assert set(Event) == VERBS | HAPPENINGS


def test_a_row_that_decides_twice_is_refused() -> None:
    row = module.Row(start={Event.SLEEP: Phase.DRAINING}, noop=frozenset({Event.SLEEP}))
    with pytest.raises(ValueError, match="decides sleep twice"):
        module._decided(Phase.RUNNING, row)


def test_only_running_admits() -> None:
    assert {Phase.RUNNING} == ADMITTING


def test_running_is_entered_by_a_canary_or_a_drain_that_gave_up() -> None:
    ways = {
        (phase, event)
        for (phase, event), decision in TABLE.items()
        if isinstance(decision, Start | Go) and decision.phase is Phase.RUNNING
    }
    assert ways == {(Phase.VERIFYING, Event.VERIFIED), (Phase.DRAINING, Event.DRAIN_ENDED)}


def test_asleep_is_entered_by_measurement_alone() -> None:
    ways = {key for key, decision in TABLE.items() if isinstance(decision, Go) and decision.phase is Phase.ASLEEP}
    assert ways == {(Phase.SUSPENDING, Event.RELEASED)}


def _moves(phase: Phase) -> dict[Event, Phase]:
    decisions = {event: decide(phase, event) for event in Event}
    return {event: decision.phase for event, decision in decisions.items() if isinstance(decision, Start | Go)}


def test_the_way_back_to_serving_passes_every_station() -> None:
    """Sleep, weights, (update, commit), KV, verify, open: no station can be left out."""
    kv, weights, verify = Phase.WAKING_KV, Phase.WAKING_WEIGHTS, Phase.VERIFYING
    for station in (weights, kv, verify):
        seen, edge = {Phase.ASLEEP}, [Phase.ASLEEP]
        while edge:
            for event, target in _moves(edge.pop()).items():
                restart = event in {Event.BOOTED, Event.FAULT, Event.ENGINE_DIED, Event.DEADLINE}
                if target not in seen and target is not station and not restart:
                    seen.add(target)
                    edge.append(target)
        assert Phase.RUNNING not in seen, station


def test_uncommitted_weights_never_come_near_serving() -> None:
    for verb in (Event.WAKE_KV, Event.RESUME):
        assert decide(Phase.UPDATING, verb) == Refuse(ErrorCode.WEIGHTS_NOT_COMMITTED)


@pytest.mark.parametrize("phase", sorted(ENGINE))
def test_every_phase_with_an_engine_can_lose_it(phase: Phase) -> None:
    assert decide(phase, Event.FAULT) == Go(Phase.FAULTED)
    assert decide(phase, Event.ENGINE_DIED) == Go(Phase.FAULTED)
    assert decide(phase, Event.BOOTED) == Go(Phase.PENDING_DEVICE)


@pytest.mark.parametrize("phase", sorted(frozenset(Phase) - TERMINAL))
def test_the_deadline_of_a_phase_restarts_the_engine(phase: Phase) -> None:
    assert decide(phase, Event.DEADLINE) == Go(Phase.FAULTED)


@pytest.mark.parametrize("phase", sorted(TERMINAL))
def test_a_terminal_phase_has_no_deadline_to_pass(phase: Phase) -> None:
    assert decide(phase, Event.DEADLINE) == Impossible()


@pytest.mark.parametrize("phase", sorted(TRANSIENT))
def test_nothing_is_accepted_in_a_phase_that_an_operation_holds(phase: Phase) -> None:
    assert {decide(phase, verb) for verb in VERBS} == {Refuse(ErrorCode.OPERATION_IN_PROGRESS)}
    assert allowed(phase) == []


def test_a_fault_ends_in_a_launch_that_touches_no_device() -> None:
    assert decide(Phase.FAULTED, Event.KILLED) == Go(Phase.RECOVERING)
    assert decide(Phase.RECOVERING, Event.BOOTED) == Go(Phase.PENDING_DEVICE)
    assert _moves(Phase.PENDING_DEVICE) == {Event.GRANT: Phase.STARTING, Event.FAULT: Phase.FAULTED}


def test_what_can_be_done_is_told_in_the_order_of_the_interface() -> None:
    assert allowed(Phase.ASLEEP) == [
        Event.GRANT,
        Event.SLEEP,
        Event.WAKE_WEIGHTS,
        Event.ABORT_UPDATE,
        Event.RELEASE_KV,
        Event.RECONCILE,
    ]


@settings(deadline=None)
@given(st.lists(st.sampled_from(list(Event)), max_size=60), st.sampled_from(list(Phase)))
def test_no_walk_gets_stuck_or_admits_unverified(events: list[Event], phase: Phase) -> None:
    """Follow any events from any phase: there is always a way on, and Running is always entered verified."""
    for event in events:
        decision = decide(phase, event)
        if isinstance(decision, Start | Go):
            entered = decision.phase is Phase.RUNNING and phase is not Phase.RUNNING
            assert not entered or event in {Event.VERIFIED, Event.DRAIN_ENDED}
            phase = decision.phase
        assert _moves(phase) or phase is Phase.UNKNOWN


def test_the_document_is_what_the_table_says() -> None:
    stale = "run `python -m ebbtide_runtime.agent.lifecycle.document > docs/lifecycle.md`"
    assert DOCUMENT.read_text(encoding="utf-8") == render(), stale


def test_the_document_draws_every_move() -> None:
    text = render()
    for (source, event), decision in TABLE.items():
        if isinstance(decision, Start | Go) and decision.phase is not source and event not in _ANYWHERE:
            (line,) = [line for line in text.splitlines() if f" {source} --> {decision.phase}:" in line]
            assert event.value in line


_ANYWHERE = {Event.FAULT, Event.ENGINE_DIED, Event.DEADLINE, Event.BOOTED}
