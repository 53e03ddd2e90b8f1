"""Verbs times phases: what the table says is what a caller sees, and what it refuses changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from ebbtide_api.errors import RULES
from ebbtide_api.state import KV, Phase, StateVector, Weights
from ebbtide_api.verbs import Verb
from ebbtide_runtime.agent.lifecycle import Event, Noop, Refuse, Start, decide
from ebbtide_runtime.native import Field

from tests.contract.agent.conftest import Make
from tests.support.agents import Caller, RefusedError
from tests.support.fake_engine import until
from tests.support.rig import WAYS, Member, back, cycle, sleep, to_committed, to_running, to_weights

# What moves by itself, and says nothing of a change.
_NOISE = {"inflight", "idle_seconds", "devices", "state_version", "operation", "last_error", "host_mib", "parked_mib"}


def core(vector: StateVector) -> dict[str, Any]:
    return vector.model_dump(exclude=_NOISE)


def body(member: Member, verb: Verb, version: int) -> dict[str, Any]:
    if verb is Verb.BEGIN_UPDATE:
        return member.publish(version)
    if verb is Verb.COMMIT_UPDATE:
        return {"version": version}
    return {"boot": member.page.get(Field.BOOT)} if verb is Verb.GRANT else {}


@pytest.mark.parametrize("phase", list(WAYS))
def test_what_is_refused_or_true_already_changes_nothing(running: tuple[Member, Caller], phase: Phase) -> None:
    member, caller = running
    WAYS[phase](member, caller)
    before = core(caller.until(phase))
    for version, verb in enumerate(Verb, start=100):
        decision = decide(phase, Event(verb.value))
        if isinstance(decision, Start):
            continue
        if isinstance(decision, Noop):
            assert caller.post(verb, body(member, verb, version)).noop, verb
        else:
            with pytest.raises(RefusedError) as caught:
                caller.post(verb, body(member, verb, version))
            assert isinstance(decision, Refuse)
            assert (caught.value.code, caught.value.status) == (decision.code.value, RULES[decision.code].status)
        assert core(caller.state()) == before, verb
    assert caller.state().admission is (phase is Phase.RUNNING)


_ENDS: dict[tuple[Phase, Verb], Phase] = {
    (Phase.RUNNING, Verb.SLEEP): Phase.ASLEEP,
    (Phase.RUNNING, Verb.PAUSE): Phase.PAUSED,
    (Phase.RUNNING, Verb.RELEASE_KV): Phase.WEIGHTS_RESIDENT,
    (Phase.PAUSED, Verb.SLEEP): Phase.ASLEEP,
    (Phase.PAUSED, Verb.RELEASE_KV): Phase.WEIGHTS_RESIDENT,
    (Phase.PAUSED, Verb.RESUME): Phase.RUNNING,
    (Phase.PAUSED, Verb.BEGIN_UPDATE): Phase.UPDATING,
    (Phase.ASLEEP, Verb.WAKE_WEIGHTS): Phase.WEIGHTS_RESIDENT,
    (Phase.WEIGHTS_RESIDENT, Verb.SLEEP): Phase.ASLEEP,
    (Phase.WEIGHTS_RESIDENT, Verb.BEGIN_UPDATE): Phase.UPDATING,
    (Phase.WEIGHTS_RESIDENT, Verb.RELOAD): Phase.COMMITTED,
    (Phase.WEIGHTS_RESIDENT, Verb.WAKE_KV): Phase.VERIFYING,
    (Phase.UPDATING, Verb.COMMIT_UPDATE): Phase.COMMITTED,
    (Phase.UPDATING, Verb.ABORT_UPDATE): Phase.COMMITTED,
    (Phase.COMMITTED, Verb.SLEEP): Phase.ASLEEP,
    (Phase.COMMITTED, Verb.BEGIN_UPDATE): Phase.UPDATING,
    (Phase.COMMITTED, Verb.RELOAD): Phase.COMMITTED,
    (Phase.COMMITTED, Verb.WAKE_KV): Phase.VERIFYING,
    (Phase.VERIFYING, Verb.RESUME): Phase.RUNNING,
    (Phase.VERIFYING, Verb.SLEEP): Phase.ASLEEP,
    (Phase.VERIFYING, Verb.PAUSE): Phase.PAUSED,
    (Phase.VERIFYING, Verb.RELEASE_KV): Phase.WEIGHTS_RESIDENT,
    (Phase.VERIFYING, Verb.BEGIN_UPDATE): Phase.UPDATING,
    (Phase.VERIFYING, Verb.RELOAD): Phase.COMMITTED,
}


def test_the_cases_below_are_all_that_a_phase_at_rest_starts() -> None:
    starts = {(phase, verb) for phase in WAYS for verb in Verb if isinstance(decide(phase, Event(verb.value)), Start)}
    assert set(_ENDS) == starts


@pytest.mark.parametrize(("phase", "verb"), list(_ENDS))
def test_what_starts_ends_where_it_should(running: tuple[Member, Caller], phase: Phase, verb: Verb) -> None:
    member, caller = running
    WAYS[phase](member, caller)
    version = 1 if verb is Verb.COMMIT_UPDATE else 2
    extra = {"settle": 0.005} if verb is Verb.SLEEP else {}
    operation = caller.do(verb, {**body(member, verb, version), **extra})
    vector = caller.state()
    assert vector.phase is _ENDS[phase, verb]
    assert vector.admission is (vector.phase is Phase.RUNNING)
    assert not operation.noop
    assert operation.phases
    assert all(timing.ms >= 0 for timing in operation.phases)


def test_the_whole_way_round(running: tuple[Member, Caller]) -> None:
    member, caller = running
    for version in (1, 2, 3):
        cycle(member, caller, version)
        vector = caller.state()
        assert vector.phase is Phase.RUNNING
        assert (vector.weight_version, vector.committed_version, vector.cache_epoch) == (version, version, version)
        assert member.page.get(Field.WEIGHT_VERSION) == member.page.get(Field.CACHE_EPOCH) == version
        assert vector.cycle == version
    copies = [path.name for path in (member.root / "memory" / "weights").iterdir()]
    assert copies == ["v3"]


def test_a_sleep_says_what_was_measured(running: tuple[Member, Caller]) -> None:
    member, caller = running
    until(lambda: member.engine.fleet.parked_bytes > 0)
    result = sleep(caller).result
    assert result is not None
    (device,) = result["devices"]
    assert device == {"id": "cpu0", "freedMiB": 250.0, "residualMiB": 100.0, "freeMiB": 900.0}
    assert (result["level"], result["copiedBytes"], result["abortedRequests"]) == (1, 0, 0)
    vector = caller.state()
    assert (vector.level, vector.weights, vector.kv) == (1, Weights.PARKED, KV.DISCARDED)
    assert vector.devices[0].used_mib == 100.0
    assert vector.residual_mib == 100.0


def test_level_2_discards_and_needs_weights_to_come_back(running: tuple[Member, Caller]) -> None:
    _, caller = running
    to_weights(caller, level=2)
    assert caller.state().weights is Weights.DISCARDED
    for verb in (Verb.WAKE_KV, Verb.RESUME):
        assert caller.fail(verb).code == "WEIGHTS_NOT_COMMITTED"
    caller.do(Verb.RELOAD)
    back(caller)
    assert caller.state().phase is Phase.RUNNING


def test_level_2_comes_back_by_an_update(running: tuple[Member, Caller]) -> None:
    member, caller = running
    to_weights(caller, level=2)
    caller.do(Verb.BEGIN_UPDATE, member.publish(5))
    caller.do(Verb.COMMIT_UPDATE, {"version": 5})
    back(caller)
    assert caller.state().weight_version == 5


def test_level_2_reloads_the_own_copy_of_the_committed_version(running: tuple[Member, Caller]) -> None:
    member, caller = running
    cycle(member, caller, 4)
    to_weights(caller, level=2)
    caller.do(Verb.RELOAD)
    assert caller.state().weight_version == 4
    back(caller)


def test_a_deeper_sleep_of_a_sleeper_is_refused(running: tuple[Member, Caller]) -> None:
    _, caller = running
    sleep(caller)
    error = caller.fail(Verb.SLEEP, {"level": 2})
    assert (error.code, error.details["level"]) == ("LEVEL_UNSUPPORTED", 1)
    assert caller.post(Verb.SLEEP, {"level": 1}).noop


def test_a_sleeper_that_leaves_too_little_is_no_sleeper(running: tuple[Member, Caller]) -> None:
    _, caller = running
    sleep(caller, needMiB=850)
    assert caller.post(Verb.SLEEP, {"needMiB": 900}).noop
    error = caller.fail(Verb.SLEEP, {"needMiB": 901})
    assert error.code == "RELEASE_INCOMPLETE"
    assert caller.state().phase is Phase.ASLEEP


def test_an_update_that_is_aborted_brings_the_old_weights_back(running: tuple[Member, Caller]) -> None:
    member, caller = running
    cycle(member, caller, 1)
    to_weights(caller)
    caller.do(Verb.BEGIN_UPDATE, member.publish(2))
    assert (caller.state().pending_version, caller.state().weight_version) == (2, 1)
    caller.do(Verb.ABORT_UPDATE)
    vector = caller.state()
    assert (vector.phase, vector.pending_version, vector.weight_version) == (Phase.COMMITTED, None, 1)
    assert [path.name for path in (member.root / "memory" / "weights").iterdir()] == ["v1"]
    back(caller)


def test_the_same_version_again_is_the_same_update(running: tuple[Member, Caller]) -> None:
    member, caller = running
    to_weights(caller)
    begin = member.publish(1)
    caller.do(Verb.BEGIN_UPDATE, begin)
    assert caller.post(Verb.BEGIN_UPDATE, begin).noop
    assert caller.fail(Verb.BEGIN_UPDATE, {**begin, "version": 2}).code == "ILLEGAL_TRANSITION"
    error = caller.fail(Verb.COMMIT_UPDATE, {"version": 3})
    assert (error.code, error.details["pending"]) == ("ILLEGAL_TRANSITION", 1)
    caller.do(Verb.COMMIT_UPDATE, {"version": 1})
    assert caller.post(Verb.COMMIT_UPDATE, {"version": 1}).noop


@pytest.mark.parametrize("version", [1, 4, 5])
def test_an_older_version_is_refused(running: tuple[Member, Caller], version: int) -> None:
    member, caller = running
    cycle(member, caller, 5)
    to_weights(caller)
    begin = {"version": version, "source": {"path": str(member.root / "handoff")}}
    with pytest.raises(RefusedError) as caught:
        caller.post(Verb.BEGIN_UPDATE, begin)
    assert (caught.value.status, caught.value.code) == (409, "VERSION_REGRESSION")
    assert caught.value.body.details == {"version": version, "committed": 5}
    assert caller.state().phase is Phase.WEIGHTS_RESIDENT


def test_a_grant_is_for_one_launch(member: Member) -> None:
    caller = member.start()
    boot = caller.until(Phase.PENDING_DEVICE).boot
    error = caller.fail(Verb.GRANT, {"boot": boot + 1})
    assert (error.code, error.details["boot"]) == ("INSTANCE_REPLACED", boot)
    assert member.engine.process is None
    assert member.page.get(Field.GRANT) != boot
    to_running(caller)


def test_a_sleep_waits_for_the_start_and_needs_no_request_before_it(make: Make) -> None:
    member = make()
    member.engine.ready_after = 3600
    caller = member.start()
    caller.do(Verb.GRANT, {"boot": caller.until(Phase.PENDING_DEVICE).boot})
    early = caller.until(Phase.STARTING)
    with pytest.raises(RefusedError) as caught:
        caller.post(Verb.SLEEP)
    assert (caught.value.status, caught.value.code, caught.value.body.retryable) == (503, "ENGINE_STARTING", True)
    assert (early.boot, early.admission) == (1, False)
    member.engine.ready_after = 0
    caller.until(Phase.RUNNING)
    result = sleep(caller).result
    assert result is not None
    assert result["devices"][0]["freedMiB"] == 250.0
    assert caller.state().boot == 1


def test_an_engine_that_schedules_is_not_told_to_schedule(running: tuple[Member, Caller]) -> None:
    """The KV that wakes last resumes by itself; a second resume races the first request."""
    member, caller = running
    to_weights(caller)
    assert member.engine.paused
    before = len(member.engine.calls)
    back(caller)
    assert not member.engine.paused
    assert "resume" not in member.engine.calls[before:]
    caller.do(Verb.PAUSE)
    before = len(member.engine.calls)
    caller.do(Verb.RESUME)
    assert caller.post(Verb.RESUME).noop
    assert member.engine.calls[before:].count("resume") == 1


def test_paused_by_keep_freezes_and_goes_on(running: tuple[Member, Caller]) -> None:
    member, caller = running
    caller.do(Verb.PAUSE, {"mode": "Keep"})
    assert caller.state().phase is Phase.PAUSED
    assert member.engine.paused
    caller.do(Verb.RESUME)
    assert not member.engine.paused


def test_a_canary_is_asked_and_compared(running: tuple[Member, Caller]) -> None:
    member, caller = running
    to_committed(member, caller)
    caller.do(Verb.WAKE_KV)
    wanted = member.engine.fleet.tokens("hello", 3)
    canary = {"prompt": "hello", "tokens": 3, "expect": wanted}
    result = caller.do(Verb.RESUME, {"canary": canary}).result
    assert result is not None
    assert result["canary"]["tokens"] == wanted
    assert (result["weightVersion"], result["cacheEpoch"]) == (1, 1)
