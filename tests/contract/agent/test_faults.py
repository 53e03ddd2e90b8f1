"""Engines that fail: in each phase, in each call, in each way. They are restarted, and serve again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ebbtide_api.state import KV, Phase, Weights
from ebbtide_api.verbs import OperationStatus, Verb
from ebbtide_runtime.native import Field

from tests.contract.agent.conftest import Make
from tests.support.agents import Caller, faster
from tests.support.fake_engine import Lie, until
from tests.support.rig import SLEEP, WAYS, Member, Stream, back, cycle, sleep, to_running, to_weights

Pair = tuple[Member, Caller]


def serves_again(member: Member, caller: Caller, boot: int) -> None:
    """The engine came back by a new launch, touched nothing before its grant, and serves."""
    vector = caller.until(Phase.PENDING_DEVICE)
    assert vector.boot == boot
    assert member.engine.process is None
    assert not vector.admission
    assert (vector.weights, vector.kv) == (Weights.UNKNOWN, KV.UNKNOWN)
    to_running(caller)
    assert Stream(member, 2).end() == "end length"


@pytest.mark.parametrize("phase", list(WAYS))
def test_an_engine_killed_at_rest(running: Pair, phase: Phase) -> None:
    member, caller = running
    WAYS[phase](member, caller)
    member.engine.die()
    until(lambda: caller.state().phase is not phase)
    serves_again(member, caller, 2)
    error = caller.state().last_error
    assert error is not None
    assert error.code == "ENGINE_FAULTED"


# How each control route is reached: the way to it, and the call that uses it.
_CALLS: dict[str, tuple[Phase, Callable[[Member, Caller], str]]] = {
    "pause": (Phase.RUNNING, lambda member, caller: caller.fail(Verb.SLEEP, SLEEP).code),
    "sleep": (Phase.RUNNING, lambda member, caller: caller.fail(Verb.SLEEP, SLEEP).code),
    "wake weights": (Phase.ASLEEP, lambda member, caller: caller.fail(Verb.WAKE_WEIGHTS).code),
    "wake kv": (Phase.WEIGHTS_RESIDENT, lambda member, caller: caller.fail(Verb.WAKE_KV).code),
    "reload": (Phase.WEIGHTS_RESIDENT, lambda member, caller: caller.fail(Verb.RELOAD).code),
    "commit": (Phase.UPDATING, lambda member, caller: caller.fail(Verb.COMMIT_UPDATE, {"version": 1}).code),
    "resume": (Phase.PAUSED, lambda member, caller: caller.fail(Verb.RESUME).code),
    "canary": (Phase.VERIFYING, lambda member, caller: caller.fail(Verb.RESUME).code),
}


@pytest.mark.parametrize("route", list(_CALLS))
def test_an_engine_killed_in_a_call(running: Pair, route: str) -> None:
    member, caller = running
    phase, call = _CALLS[route]
    WAYS[phase](member, caller)
    member.engine.lie(route.split()[0], Lie.DIES)
    assert call(member, caller) == "ENGINE_FAULTED"
    serves_again(member, caller, 2)


@pytest.mark.parametrize("route", ["sleep", "wake weights", "wake kv", "resume"])
@pytest.mark.parametrize("lie", [Lie.ERROR, Lie.RESET])
def test_a_call_that_failed_and_did_nothing_faults(running: Pair, route: str, lie: Lie) -> None:
    member, caller = running
    phase, call = _CALLS[route]
    WAYS[phase](member, caller)
    member.engine.lie(route.split()[0], lie)
    assert call(member, caller) == "ENGINE_FAULTED"
    assert caller.until(Phase.PENDING_DEVICE).boot == 2


@pytest.mark.parametrize(
    ("phase", "route", "verb"),
    [
        (Phase.RUNNING, "sleep", Verb.SLEEP),
        (Phase.ASLEEP, "wake", Verb.WAKE_WEIGHTS),
        (Phase.WEIGHTS_RESIDENT, "wake", Verb.WAKE_KV),
    ],
)
def test_a_call_that_was_done_counts_whatever_the_connection_did(
    running: Pair, phase: Phase, route: str, verb: Verb
) -> None:
    """The outcome of a broken call is unknown: the state is read again, and decides."""
    member, caller = running
    WAYS[phase](member, caller)
    member.engine.lie(route, Lie.LATE)
    caller.do(verb, SLEEP if verb is Verb.SLEEP else {})
    assert caller.state().boot == 1


@pytest.mark.parametrize(("phase", "verb"), [(Phase.ASLEEP, Verb.WAKE_WEIGHTS), (Phase.WEIGHTS_RESIDENT, Verb.WAKE_KV)])
def test_a_wake_that_wakes_nothing_faults(running: Pair, phase: Phase, verb: Verb) -> None:
    member, caller = running
    WAYS[phase](member, caller)
    member.engine.lie("wake", Lie.NOTHING)
    assert caller.fail(verb).code == "ENGINE_FAULTED"
    assert caller.until(Phase.PENDING_DEVICE).boot == 2


# Deadlines

_SHORT = {
    "pause": ("DRAINING", {"drain_abort_s": 0.05, "pause_s": 0.05}),
    "sleep": ("SUSPENDING", {"suspend_s": 0.1, "settle_s": 0.05, "measure_s": 0.5}),
    "wake weights": ("WAKING_WEIGHTS", {"wake_weights_s": 0.15}),
    "wake kv": ("WAKING_KV", {"wake_kv_s": 0.15}),
    "reload": ("UPDATING", {"reload_s": 0.1, "commit_s": 0.1, "slowest_bytes_s": 1e15}),
    "commit": ("UPDATING", {"commit_s": 0.15}),
}


@pytest.mark.parametrize("route", list(_SHORT))
def test_a_call_that_hangs_meets_the_deadline_of_its_phase(make: Make, route: str) -> None:
    """Nobody cancels the call: the engine is ended by the keeper of deadlines, and the call with it."""
    member = make()
    phase, call = _CALLS[route]
    caller = member.start()
    to_running(caller)
    WAYS[phase](member, caller)
    member.kill()
    name, short = _SHORT[route]
    caller = member.start(faster(**short))
    caller.until(phase, Phase.COMMITTED)
    body = {**SLEEP, "drain": {"timeout": 0.05}} if route in {"pause", "sleep"} else None
    member.engine.lie(route.split()[0], *[Lie.HANG] * 2)
    error = caller.fail(Verb.SLEEP, body).code if body else call(member, caller)
    assert error == "PHASE_DEADLINE"
    vector = caller.until(Phase.PENDING_DEVICE)
    assert vector.boot == 2
    assert vector.last_error is not None
    assert vector.last_error.details["phase"] == Phase[name].value


def test_a_start_that_takes_too_long_is_ended(make: Make) -> None:
    member = make()
    caller = member.start(faster(start_s=0.15))
    member.engine.ready_after = 60
    caller.do(Verb.GRANT, {"boot": caller.until(Phase.PENDING_DEVICE).boot})
    until(lambda: caller.state().boot == 2)
    member.engine.ready_after = 0
    vector = caller.until(Phase.PENDING_DEVICE)
    assert vector.last_error is not None
    assert (vector.last_error.code, vector.last_error.details["phase"]) == ("PHASE_DEADLINE", "Starting")


def test_a_member_that_nobody_comes_back_to_is_restarted(make: Make) -> None:
    """A trainer that died half-way leaves weights resident, and no owner for them."""
    member = make()
    caller = member.start()
    to_running(caller)
    to_weights(caller)
    member.kill()
    caller = member.start(faster(rest_s=0.1))
    vector = caller.until(Phase.PENDING_DEVICE)
    assert vector.last_error is not None
    assert vector.last_error.details["phase"] == "WeightsResident"


def test_terminal_phases_last(make: Make) -> None:
    member = make()
    caller = member.start()
    to_running(caller)
    sleep(caller)
    member.kill()
    caller = member.start(faster(rest_s=0.05, suspended_s=0.05))
    before = caller.until(Phase.ASLEEP)
    assert caller.state(wait_version=before.state_version, wait=0.3).state_version == before.state_version


def test_an_engine_that_hangs_at_rest_is_found(make: Make) -> None:
    member = make()
    to_running(member.start())
    member.kill()
    caller = member.start(faster(silence_s=0.3))
    caller.until(Phase.RUNNING)
    member.engine.lie("engine", Lie.HANG)
    vector = caller.until(Phase.PENDING_DEVICE)
    assert vector.boot == 2
    assert vector.last_error is not None
    assert "not answered" in vector.last_error.message


def test_an_engine_that_hangs_when_it_is_asked_first_is_found(make: Make) -> None:
    member = make()
    caller = member.start(faster(silence_s=0.3, rest_observe_s=30.0))
    to_running(caller)
    member.engine.lie("engine", Lie.HANG)
    assert caller.fail(Verb.SLEEP, SLEEP).code == "ENGINE_FAULTED"
    assert caller.until(Phase.PENDING_DEVICE).boot == 2


def test_a_launcher_that_does_not_end_its_engine_is_told_again(make: Make) -> None:
    member = make()
    caller = member.start(faster(recover_s=0.1))
    to_running(caller)
    member.engine.respawn = False
    member.engine.die()
    until(lambda: caller.state().phase is Phase.RECOVERING)
    boot = caller.state().boot
    member.page.set(Field.KILL, 0)
    until(lambda: member.page.get(Field.KILL) == boot, what="it is told again")
    assert caller.state().phase is Phase.RECOVERING
    assert caller.fail(Verb.SLEEP, SLEEP).code == "ENGINE_FAULTED"
    member.engine.respawn = True
    serves_again(member, caller, 2)


# Identity and agreement


def test_a_sleeper_that_is_another_process_did_not_sleep(running: Pair) -> None:
    member, caller = running
    member.engine.lie("sleep", Lie.REPLACED)
    assert caller.fail(Verb.SLEEP, SLEEP).code == "INSTANCE_REPLACED"
    assert caller.until(Phase.PENDING_DEVICE).boot == 2


def test_an_engine_that_is_another_process_is_restarted(running: Pair) -> None:
    member, caller = running
    member.engine.replace()
    error = caller.until(Phase.PENDING_DEVICE).last_error
    assert error is not None
    assert error.code in {"INSTANCE_REPLACED", "ENGINE_FAULTED"}


def test_an_engine_that_left_the_page_is_restarted(running: Pair) -> None:
    member, caller = running
    member.page.set(Field.ENGINE_PID, 0)
    error = caller.until(Phase.PENDING_DEVICE).last_error
    assert error is not None
    assert error.message == "the engine is gone"


def test_ranks_that_disagree_when_they_are_asked_first_are_restarted(make: Make) -> None:
    member = make(tensor_parallel=2)
    caller = member.start(faster(rest_observe_s=30.0))
    to_running(caller)
    member.engine.fleet.ranks[1].version = 9
    assert caller.fail(Verb.SLEEP, SLEEP).code == "RANK_DISAGREEMENT"
    assert caller.until(Phase.PENDING_DEVICE).boot == 2


def test_a_sleeper_that_dies_while_it_is_measured_did_not_sleep(running: Pair) -> None:
    """It uses no memory, and it is no sleeper: nobody could wake it."""
    member, caller = running
    member.engine.lie("sleep", Lie.DIES_AFTER)
    error = caller.fail(Verb.SLEEP, {"settle": 0.3})
    assert error.code in {"INSTANCE_REPLACED", "ENGINE_FAULTED"}
    serves_again(member, caller, 2)


@pytest.mark.parametrize(("phase", "route"), [(Phase.RUNNING, "sleep"), (Phase.ASLEEP, "wake weights")])
def test_ranks_that_do_not_all_do_it_are_restarted(make: Make, phase: Phase, route: str) -> None:
    member = make(tensor_parallel=2)
    caller = member.start()
    to_running(caller)
    WAYS[phase](member, caller)
    member.engine.lie(route.split()[0], Lie.PARTIAL)
    _, call = _CALLS[route]
    assert call(member, caller) == "RANK_DISAGREEMENT"
    error = caller.until(Phase.PENDING_DEVICE).last_error
    assert error is not None
    assert len(error.details["ranks"]) == 2


def test_ranks_that_disagree_at_rest_are_restarted(make: Make) -> None:
    member = make(tensor_parallel=2)
    caller = member.start()
    to_running(caller)
    member.engine.fleet.ranks[1].version = 9
    assert caller.until(Phase.PENDING_DEVICE).boot == 2


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.ASLEEP])
def test_an_engine_that_somebody_else_moved_is_restarted(running: Pair, phase: Phase) -> None:
    member, caller = running
    WAYS[phase](member, caller)
    if phase is Phase.RUNNING:
        member.engine.fleet.sleep(1)
    else:
        member.engine.fleet.wake("weights")
    vector = caller.until(Phase.PENDING_DEVICE)
    assert vector.last_error is not None
    assert "not as it was left" in vector.last_error.message


def test_twenty_cycles_leave_no_trace(running: Pair) -> None:
    member, caller = running
    for _ in range(5):
        sleep(caller)
        caller.do(Verb.WAKE_WEIGHTS)
        back(caller)
    cycle(member, caller, 1)
    vector = caller.state()
    assert (vector.cycle, vector.boot, vector.residual_mib, vector.last_error) == (6, 1, 100.0, None)
    assert member.page.inflight() == 0


def test_a_fault_ends_the_operation_that_runs(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 100_000)
    operation = caller.post(Verb.SLEEP, {**SLEEP, "drain": {"timeout": 60}})
    until(lambda: caller.state().phase is Phase.DRAINING)
    member.engine.die()
    ended = caller.wait(operation.id)
    assert ended.status is OperationStatus.FAILED
    assert ended.error is not None
    assert ended.error.code == "ENGINE_FAULTED"
    stream.end()
