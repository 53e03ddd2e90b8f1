"""The choices that are numbers."""

from dataclasses import replace
from typing import Any

import pytest
from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import KV, Level, Phase, Weights
from ebbtide_api.verbs import Verb
from ebbtide_runtime.agent.lifecycle import (
    MIB,
    Facts,
    LevelQuestion,
    Meet,
    Refusal,
    TargetQuestion,
    choose_level,
    goal_reached,
    host_room,
    release_target,
    should_park,
    weights_refusal,
)
from hypothesis import given, settings
from hypothesis import strategies as st

QUESTION = LevelQuestion(
    asked=0,
    configured=0,
    may_park=True,
    parked_valid=False,
    weights_bytes=200 * MIB,
    host_room=300 * MIB,
    has_source=True,
)


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, Level.PARKED),
        ({"host_room": 100 * MIB}, Level.DISCARDED),
        ({"host_room": 0, "parked_valid": True}, Level.PARKED),
        ({"asked": 2}, Level.DISCARDED),
        ({"configured": 2}, Level.DISCARDED),
        ({"asked": 1, "configured": 2}, Level.PARKED),
        ({"asked": 2, "configured": 1}, Level.DISCARDED),
        ({"may_park": False}, Level.DISCARDED),
        ({"may_park": False, "parked_valid": True}, Level.PARKED),
        ({"forces_parked": True}, Level.PARKED),
        ({"has_source": False}, Level.PARKED),
    ],
)
def test_a_level_is_chosen(changes: dict[str, Any], level: Level) -> None:
    assert choose_level(replace(QUESTION, **changes)) is level


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"asked": 1, "host_room": 100 * MIB}, ErrorCode.HOST_MEMORY_INSUFFICIENT),
        ({"configured": 1, "host_room": 100 * MIB}, ErrorCode.HOST_MEMORY_INSUFFICIENT),
        ({"host_room": 100 * MIB, "has_source": False}, ErrorCode.HOST_MEMORY_INSUFFICIENT),
        ({"host_room": 100 * MIB, "forces_parked": True}, ErrorCode.HOST_MEMORY_INSUFFICIENT),
        ({"asked": 2, "has_source": False}, ErrorCode.LEVEL_UNSUPPORTED),
        ({"asked": 2, "forces_parked": True}, ErrorCode.LEVEL_UNSUPPORTED),
        ({"asked": 1, "may_park": False}, ErrorCode.LEVEL_UNSUPPORTED),
    ],
)
def test_a_level_is_refused(changes: dict[str, Any], code: ErrorCode) -> None:
    refusal = choose_level(replace(QUESTION, **changes))
    assert isinstance(refusal, Refusal)
    assert refusal.code is code


def test_a_refusal_for_want_of_host_memory_has_the_numbers() -> None:
    refusal = choose_level(replace(QUESTION, asked=1, host_room=100 * MIB))
    assert isinstance(refusal, Refusal)
    assert refusal.details == {"needMiB": 200.0, "availableMiB": 100.0}
    assert "200.0 MiB" in refusal.message


@settings(deadline=None)
@given(
    st.builds(
        LevelQuestion,
        asked=st.integers(0, 2),
        configured=st.integers(0, 2),
        may_park=st.booleans(),
        parked_valid=st.booleans(),
        weights_bytes=st.integers(0, 100),
        host_room=st.integers(0, 100),
        has_source=st.booleans(),
        forces_parked=st.booleans(),
    )
)
def test_weights_are_never_discarded_without_a_way_back(question: LevelQuestion) -> None:
    level = choose_level(question)
    if level is Level.DISCARDED:
        assert question.has_source
        assert not question.forces_parked
        assert question.asked != 1
    if level is Level.PARKED:
        assert question.parked_valid or (question.may_park and question.weights_bytes <= question.host_room)
        assert question.asked != 2


@pytest.mark.parametrize(
    ("limit", "held", "available", "room"),
    [(None, 10, 50, 50), (100, 10, 50, 50), (100, 70, 50, 30), (100, 120, 50, 0), (None, 0, 0, 0)],
)
def test_host_room(limit: int | None, held: int, available: int, room: int) -> None:
    assert host_room(limit, held, available) == room


TARGET = TargetQuestion(residual=None, baseline=0, used_before=1000 * MIB, arena=800 * MIB, budget=2000 * MIB)


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({}, 240 * MIB * 105 // 100 + 16 * MIB),
        ({"baseline": 560 * MIB}, 588 * MIB + 16 * MIB),
        ({"baseline": 560 * MIB, "residual": 600 * MIB}, 630 * MIB + 16 * MIB),
        ({"residual": 600 * MIB, "need": 1500 * MIB}, 500 * MIB),
        ({"residual": 600 * MIB, "need": 100 * MIB}, 646 * MIB),
        ({"residual": 600 * MIB, "need": 3000 * MIB}, -1000 * MIB),
        ({"used_before": 0}, 16 * MIB),
    ],
)
def test_a_target_is_what_was_learned_and_a_little(changes: dict[str, Any], most: int) -> None:
    assert release_target(replace(TARGET, **changes)) == most


@settings(deadline=None)
@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.none() | st.integers(0, 1 << 41))
def test_a_target_that_is_met_leaves_what_is_needed(residual: int, baseline: int, used: int, need: int | None) -> None:
    budget = 1 << 40
    most = release_target(TargetQuestion(residual, baseline, used, used, budget, need))
    if need is not None:
        assert budget - most >= need


@pytest.mark.parametrize(
    ("eager", "valid", "parking", "room", "wanted"),
    [
        (True, False, False, 200, True),
        (True, True, False, 200, False),
        (True, False, True, 200, False),
        (True, False, False, 199, False),
        (False, False, False, 200, False),
    ],
)
def test_parking_is_eager_only_where_there_is_room(
    eager: bool, valid: bool, parking: bool, room: int, wanted: bool
) -> None:
    assert should_park(eager=eager, valid=valid, parking=parking, weights_bytes=200, room=room) is wanted


def facts(phase: Phase, weights: Weights = Weights.RESIDENT, kv: KV = KV.RESIDENT, **more: Any) -> Facts:
    return Facts(phase, Meet(weights, kv, more.get("version", 0), more.get("pending"), True), more.get("committed", 0))


@pytest.mark.parametrize(
    ("verb", "version", "now", "reached"),
    [
        (Verb.GRANT, None, facts(Phase.STARTING), True),
        (Verb.GRANT, None, facts(Phase.PENDING_DEVICE), False),
        (Verb.SLEEP, None, facts(Phase.ASLEEP), True),
        (Verb.SLEEP, None, facts(Phase.SUSPENDING), False),
        (Verb.WAKE_WEIGHTS, None, facts(Phase.WEIGHTS_RESIDENT), True),
        (Verb.WAKE_WEIGHTS, None, facts(Phase.SUSPENDING), False),
        (Verb.BEGIN_UPDATE, 7, facts(Phase.UPDATING, pending=7), True),
        (Verb.BEGIN_UPDATE, 7, facts(Phase.UPDATING, pending=6), False),
        (Verb.COMMIT_UPDATE, 7, facts(Phase.COMMITTED, version=7, committed=7), True),
        (Verb.COMMIT_UPDATE, 7, facts(Phase.UPDATING, version=6, pending=7, committed=6), False),
        (Verb.COMMIT_UPDATE, 7, facts(Phase.COMMITTED, version=7, committed=6), False),
        (Verb.ABORT_UPDATE, None, facts(Phase.COMMITTED), True),
        (Verb.ABORT_UPDATE, None, facts(Phase.UPDATING), False),
        (Verb.ABORT_UPDATE, None, facts(Phase.RECOVERING), False),
        (Verb.RELOAD, None, facts(Phase.COMMITTED, version=7, committed=7), True),
        (Verb.RELOAD, None, facts(Phase.COMMITTED, version=0, committed=7), False),
        (Verb.RELOAD, None, facts(Phase.WEIGHTS_RESIDENT, Weights.DISCARDED), False),
        (Verb.WAKE_KV, None, facts(Phase.VERIFYING), True),
        (Verb.WAKE_KV, None, facts(Phase.WEIGHTS_RESIDENT), False),
        (Verb.RESUME, None, facts(Phase.RUNNING), True),
        (Verb.RESUME, None, facts(Phase.VERIFYING), False),
        (Verb.PAUSE, None, facts(Phase.PAUSED), True),
        (Verb.RELEASE_KV, None, facts(Phase.WEIGHTS_RESIDENT, kv=KV.DISCARDED), True),
        (Verb.RELEASE_KV, None, facts(Phase.COMMITTED, kv=KV.RESIDENT), False),
        (Verb.RECONCILE, None, facts(Phase.RUNNING), True),
        (Verb.RECONCILE, None, facts(Phase.FAULTED), False),
    ],
)
def test_a_goal_is_true_or_not(verb: Verb, version: int | None, now: Facts, reached: bool) -> None:
    assert goal_reached(verb, version, now) is reached


def test_every_verb_has_a_goal_in_every_phase() -> None:
    for verb in Verb:
        found = {goal_reached(verb, 1, facts(phase, version=1, committed=1, pending=None)) for phase in Phase}
        assert found <= {True, False}


@pytest.mark.parametrize("weights", [Weights.DISCARDED, Weights.PARTIAL, Weights.UNKNOWN])
@pytest.mark.parametrize("verb", [Verb.WAKE_KV, Verb.RESUME])
@pytest.mark.parametrize("phase", [Phase.ASLEEP, Phase.WEIGHTS_RESIDENT, Phase.COMMITTED, Phase.VERIFYING])
def test_lost_weights_never_serve(weights: Weights, verb: Verb, phase: Phase) -> None:
    refusal = weights_refusal(verb, phase, weights)
    assert refusal is not None
    assert refusal.code is ErrorCode.WEIGHTS_NOT_COMMITTED
    assert refusal.details == {"weights": weights.value}


@pytest.mark.parametrize(
    ("verb", "phase", "weights"),
    [
        (Verb.RESUME, Phase.VERIFYING, Weights.RESIDENT),
        (Verb.RESUME, Phase.ASLEEP, Weights.PARKED),
        (Verb.WAKE_WEIGHTS, Phase.ASLEEP, Weights.DISCARDED),
        (Verb.RESUME, Phase.STARTING, Weights.UNKNOWN),
    ],
)
def test_what_the_table_decides_is_left_to_it(verb: Verb, phase: Phase, weights: Weights) -> None:
    assert weights_refusal(verb, phase, weights) is None
