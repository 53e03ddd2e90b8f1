"""Where a member is, from observation alone."""

from dataclasses import replace
from typing import Any

import pytest
from ebbtide_api.state import KV, EngineState, Phase, RankState, Weights
from ebbtide_runtime.agent.lifecycle import ADMITTING, Meet, Observation, asleep, contradicts, derive, meet
from hypothesis import given, settings
from hypothesis import strategies as st

R, P, D = Weights.RESIDENT, Weights.PARKED, Weights.DISCARDED
WEIGHTS = st.sampled_from(list(Weights))
KVS = st.sampled_from(list(KV))


def rank(number: int = 0, **changes: Any) -> RankState:
    fields: dict[str, Any] = {"rank": number, "pid": 1, "weights": R, "kv": KV.RESIDENT}
    return RankState(**{**fields, **changes})


def engine(*ranks: RankState, paused: bool = False) -> EngineState:
    return EngineState(ranks=list(ranks), paused=paused, weight_version=0, kv_blocks=1)


SEEN = Observation(
    boot=3,
    grant=3,
    kill=0,
    engine_alive=True,
    engine_started=True,
    engine=engine(rank()),
    ranks=1,
    admission=True,
    committed=0,
)


def test_a_healthy_engine_runs() -> None:
    assert derive(SEEN) is Phase.RUNNING


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({"boot": 0, "grant": 0}, Phase.PENDING_DEVICE),
        ({"grant": 2}, Phase.PENDING_DEVICE),
        ({"grant": 2, "kill": 3}, Phase.RECOVERING),
        ({"kill": 3}, Phase.RECOVERING),
        ({"kill": 2}, Phase.RUNNING),
        ({"engine_alive": False}, Phase.FAULTED),
        ({"engine_alive": False, "engine_started": False}, Phase.STARTING),
        ({"engine": None}, Phase.STARTING),
        ({"admission": False}, Phase.VERIFYING),
        ({"committed": 5}, Phase.STARTING),
        ({"ranks": 2}, Phase.FAULTED),
    ],
)
def test_the_page_comes_first(changes: dict[str, Any], phase: Phase) -> None:
    assert derive(replace(SEEN, **changes)) is phase


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (engine(rank(), paused=True), Phase.PAUSED),
        (engine(rank(weights=P, kv=KV.DISCARDED)), Phase.SUSPENDING),
        (engine(rank(weights=D, kv=KV.DISCARDED)), Phase.SUSPENDING),
        (engine(rank(weights=P)), Phase.SUSPENDING),
        (engine(rank(weights=Weights.PARTIAL)), Phase.UPDATING),
        (engine(rank(weights=Weights.UNKNOWN)), Phase.FAULTED),
        (engine(rank(kv=KV.UNKNOWN)), Phase.FAULTED),
        (engine(rank(kv=KV.DISCARDED)), Phase.WEIGHTS_RESIDENT),
        (engine(rank(pending_version=4, kv=KV.DISCARDED)), Phase.UPDATING),
        (engine(rank(pending_version=0)), Phase.UPDATING),
        (engine(), Phase.FAULTED),
    ],
)
def test_the_engine_comes_next(state: EngineState, phase: Phase) -> None:
    assert derive(replace(SEEN, engine=state)) is phase


def test_committed_weights_without_kv_are_committed() -> None:
    seen = replace(SEEN, engine=engine(rank(version=7, kv=KV.DISCARDED)), committed=7)
    assert derive(seen) is Phase.COMMITTED


@pytest.mark.parametrize(
    ("used", "target", "phase"),
    [(99, 100, Phase.ASLEEP), (100, 100, Phase.ASLEEP), (101, 100, Phase.SUSPENDING), (None, 100, Phase.SUSPENDING)],
)
def test_asleep_needs_a_measurement(used: int | None, target: int, phase: Phase) -> None:
    seen = replace(SEEN, engine=engine(rank(weights=P, kv=KV.DISCARDED)), used=used, target=target)
    assert derive(seen) is phase


def test_without_a_target_nothing_is_measured_free() -> None:
    seen = replace(SEEN, engine=engine(rank(weights=P, kv=KV.DISCARDED)), used=0, target=None)
    assert derive(seen) is Phase.SUSPENDING


@settings(deadline=None)
@given(
    st.builds(
        Observation,
        boot=st.integers(0, 3),
        grant=st.integers(0, 3),
        kill=st.integers(0, 3),
        engine_alive=st.booleans(),
        engine_started=st.booleans(),
        engine=st.none()
        | st.builds(
            lambda weights, kv, version, pending, paused: engine(
                rank(weights=weights, kv=kv, version=version, pending_version=pending), paused=paused
            ),
            WEIGHTS,
            KVS,
            st.integers(0, 2),
            st.none() | st.integers(0, 2),
            st.booleans(),
        ),
        ranks=st.integers(1, 2),
        admission=st.booleans(),
        committed=st.integers(0, 2),
        used=st.none() | st.integers(0, 10),
        target=st.none() | st.integers(0, 10),
    )
)
def test_what_admits_was_seen_to_be_whole(seen: Observation) -> None:
    """A derived Running is an open gate on a living, granted engine that holds the committed weights and a cache."""
    phase = derive(seen)
    if phase in ADMITTING:
        assert seen.engine is not None
        assert seen.admission
        assert seen.engine_alive
        assert seen.boot == seen.grant != seen.kill
        assert seen.meet == Meet(R, KV.RESIDENT, seen.committed, None, agree=True)
        assert not seen.engine.paused
    if phase is Phase.ASLEEP:
        assert seen.measured_free


def test_ranks_meet() -> None:
    assert meet([rank(0), rank(1)], 2) == Meet(R, KV.RESIDENT, 0, None, agree=True)


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(0), rank(1, weights=P)],
        [rank(0), rank(1, kv=KV.DISCARDED)],
        [rank(0), rank(1, version=2)],
        [rank(0), rank(1, pending_version=2)],
        [rank(0)],
        [rank(0), rank(0)],
        [rank(0), rank(1), rank(2)],
        [],
    ],
)
def test_ranks_that_differ_or_are_missing_do_not_agree(ranks: list[RankState]) -> None:
    assert not meet(ranks, 2).agree


def test_half_of_the_weights_are_partial_weights() -> None:
    found = meet([rank(0, version=3), rank(1, weights=P, kv=KV.DISCARDED, version=2)], 2)
    assert (found.weights, found.kv, found.version) == (Weights.PARTIAL, KV.UNKNOWN, 2)


def test_what_ranks_say_of_sleep() -> None:
    assert asleep(Meet(P, KV.DISCARDED, 0, None, agree=True))
    assert asleep(Meet(D, KV.DISCARDED, 0, None, agree=True))
    assert not asleep(Meet(P, KV.RESIDENT, 0, None, agree=True))
    assert not asleep(Meet(R, KV.DISCARDED, 0, None, agree=True))


@pytest.mark.parametrize(
    ("phase", "weights", "kv", "wrong"),
    [
        (Phase.RUNNING, R, KV.RESIDENT, False),
        (Phase.RUNNING, P, KV.DISCARDED, True),
        (Phase.PAUSED, R, KV.DISCARDED, True),
        (Phase.VERIFYING, R, KV.DISCARDED, True),
        (Phase.ASLEEP, P, KV.DISCARDED, False),
        (Phase.ASLEEP, D, KV.DISCARDED, False),
        (Phase.ASLEEP, R, KV.RESIDENT, True),
        (Phase.ASLEEP, P, KV.RESIDENT, True),
        (Phase.WEIGHTS_RESIDENT, D, KV.DISCARDED, False),
        (Phase.WEIGHTS_RESIDENT, R, KV.RESIDENT, False),
        (Phase.WEIGHTS_RESIDENT, P, KV.DISCARDED, True),
        (Phase.COMMITTED, R, KV.RESIDENT, False),
        (Phase.COMMITTED, D, KV.DISCARDED, True),
        (Phase.UPDATING, Weights.PARTIAL, KV.DISCARDED, False),
        (Phase.SUSPENDING, R, KV.RESIDENT, False),
    ],
)
def test_an_engine_is_compared_with_where_it_was_left(phase: Phase, weights: Weights, kv: KV, wrong: bool) -> None:
    assert (contradicts(phase, Meet(weights, kv, 0, None, agree=True), 0) is not None) is wrong


def test_ranks_that_disagree_contradict_every_phase() -> None:
    ranks = meet([rank(0), rank(1, version=1)], 2)
    assert all(contradicts(phase, ranks, 0) for phase in Phase)


@pytest.mark.parametrize(("phase", "wrong"), [(Phase.RUNNING, True), (Phase.VERIFYING, False)])
def test_another_version_must_not_serve(phase: Phase, wrong: bool) -> None:
    assert (contradicts(phase, Meet(R, KV.RESIDENT, 3, None, agree=True), 4) is not None) is wrong
