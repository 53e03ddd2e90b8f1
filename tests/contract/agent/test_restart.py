"""The agent is killed (SIGKILL, a real process) in each phase: Unknown, derived, converges; an id still runs once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ebbtide_api.state import KV, PHASE_NUMBER, Phase, Weights
from ebbtide_api.verbs import Operation, OperationStatus, Verb
from ebbtide_runtime.native import Field

from tests.contract.agent.conftest import Make
from tests.support.agents import Caller, faster
from tests.support.checkpoints import make_model
from tests.support.fake_engine import Lie, until
from tests.support.rig import (
    SLEEP,
    WAYS,
    Member,
    Stream,
    back,
    cycle,
    sleep,
    to_asleep,
    to_running,
    to_updating,
)

Pair = tuple[Member, Caller]


# At rest (an agent in a thread forgets as well as one that was killed: all it has is its file and the page)


@pytest.mark.parametrize("phase", list(WAYS))
def test_a_phase_at_rest_is_derived(running: Pair, phase: Phase) -> None:
    member, caller = running
    WAYS[phase](member, caller)
    before = caller.until(phase)
    member.kill()
    caller = member.start()
    after = caller.until(phase)
    same = {"weights", "kv", "weight_version", "pending_version", "committed_version", "cache_epoch", "epoch", "boot"}
    assert after.model_dump(include=same) == before.model_dump(include=same)
    assert after.state_version > before.state_version
    assert after.residual_mib == before.residual_mib
    assert after.admission is (phase is Phase.RUNNING)


def test_what_serves_serves_on_while_its_agent_restarts(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 300)
    member.kill()
    assert member.page.admission
    assert Stream(member, 2).end() == "end length"
    caller = member.start()
    assert caller.until(Phase.RUNNING).admission
    assert stream.end() == "end length"


def test_a_gate_that_was_left_open_wrongly_is_closed(running: Pair) -> None:
    member, caller = running
    sleep(caller)
    member.kill()
    member.page.open_gate()
    member.start()
    assert not member.page.admission


def test_an_open_gate_before_a_sleeper_is_closed_whatever_the_page_says(running: Pair) -> None:
    member, caller = running
    sleep(caller)
    member.kill()
    member.page.set(Field.PHASE, PHASE_NUMBER[Phase.RUNNING])
    member.page.open_gate()
    caller = member.start()
    assert not caller.until(Phase.ASLEEP).admission


def test_a_sleeper_that_holds_memory_is_no_sleeper(running: Pair) -> None:
    member, caller = running
    sleep(caller)
    member.kill()
    member.engine.leak = 100 << 20
    caller = member.start()
    assert caller.until(Phase.SUSPENDING).weights is Weights.PARKED
    member.engine.leak = 0
    sleep(caller)


def test_an_engine_that_died_meanwhile(running: Pair) -> None:
    member, _ = running
    member.kill()
    member.engine.die()
    until(lambda: member.page.get(Field.BOOT) == 2)
    assert to_running(member.start()).boot == 2


def test_an_engine_that_died_and_is_not_back_yet(running: Pair) -> None:
    member, _ = running
    member.kill()
    member.engine.respawn = False
    member.engine.die()
    until(lambda: member.page.get(Field.ENGINE_PID) == 0)
    caller = member.start()
    until(lambda: caller.state().phase is not Phase.UNKNOWN)
    assert not member.page.admission
    member.engine.respawn = True
    assert to_running(caller).boot == 2


def test_a_launch_that_was_killed_meanwhile_is_recovering(running: Pair) -> None:
    member, _ = running
    member.kill()
    member.engine.respawn = False
    member.page.set(Field.KILL, 1)
    caller = member.start()
    caller.until(Phase.RECOVERING)
    member.engine.respawn = True
    caller.until(Phase.PENDING_DEVICE)


def test_a_launch_that_waits_waits_on(member: Member) -> None:
    caller = member.start()
    caller.until(Phase.PENDING_DEVICE)
    member.kill()
    caller = member.start()
    assert to_running(caller).boot == 1


def test_a_start_goes_on(make: Make) -> None:
    member = make()
    member.engine.ready_after = 0.4
    caller = member.start()
    caller.do(Verb.GRANT, {"boot": caller.until(Phase.PENDING_DEVICE).boot})
    until(lambda: caller.state().phase is Phase.STARTING)
    member.kill()
    caller = member.start()
    assert caller.until(Phase.RUNNING).boot == 1


def test_a_start_that_was_loading_the_committed_version_goes_on(running: Pair) -> None:
    member, caller = running
    cycle(member, caller, 2)
    member.engine.die()
    member.engine.lie("reload", Lie.HANG)
    caller.do(Verb.GRANT, {"boot": caller.until(Phase.PENDING_DEVICE).boot})
    until(lambda: "reload" in member.engine.calls[-3:])
    member.kill()
    caller = member.start()
    vector = caller.until(Phase.RUNNING)
    assert (vector.boot, vector.weight_version) == (2, 2)


def test_a_commit_that_nobody_recorded_is_found(running: Pair) -> None:
    """The engine committed, and the agent died before it could write that down."""
    member, caller = running
    to_updating(member, caller, 4)
    member.kill()
    member.engine.fleet.commit(4)
    caller = member.start()
    vector = caller.until(Phase.COMMITTED)
    assert (vector.weight_version, vector.committed_version, vector.cache_epoch) == (4, 4, 4)
    back(caller)


def test_an_engine_that_never_says_what_it_is_is_restarted(make: Make) -> None:
    member = make()
    to_running(member.start())
    member.kill()
    member.engine.lie("engine", *[Lie.HANG] * 3)
    caller = member.start(faster(unknown_s=0.2))
    vector = caller.until(Phase.PENDING_DEVICE)
    assert vector.boot == 2
    assert vector.last_error is not None
    assert vector.last_error.details["phase"] == "Unknown"


def test_an_engine_that_stutters_is_asked_again(running: Pair) -> None:
    member, _ = running
    member.kill()
    member.engine.lie("engine", Lie.ERROR, Lie.RESET)
    assert member.start().until(Phase.RUNNING).boot == 1


def test_ranks_that_disagree_are_restarted(make: Make) -> None:
    member = make(tensor_parallel=2)
    to_running(member.start())
    member.kill()
    member.engine.fleet.ranks[0].kv = KV.DISCARDED
    caller = member.start()
    assert caller.until(Phase.PENDING_DEVICE).boot == 2


# In the middle of an operation, the real process

Call = Callable[[Member, Caller], Operation]


def _sleep(_member: Member, caller: Caller) -> Operation:
    return caller.post(Verb.SLEEP, SLEEP, key="op-1")


def _begin(member: Member, caller: Caller) -> Operation:
    return caller.post(Verb.BEGIN_UPDATE, member.publish(1), key="op-1")


def _commit(_member: Member, caller: Caller) -> Operation:
    return caller.post(Verb.COMMIT_UPDATE, {"version": 1}, key="op-1")


def _plain(verb: Verb) -> Call:
    return lambda _member, caller: caller.post(verb, key="op-1")


# Where it is killed: the way there, the call, the route that hangs meanwhile, and the phase in which that is.
_MIDDLES: dict[str, tuple[Phase, Call, str, Phase]] = {
    "Draining": (Phase.RUNNING, _sleep, "pause", Phase.DRAINING),
    "Suspending": (Phase.RUNNING, _sleep, "sleep", Phase.SUSPENDING),
    "WakingWeights": (Phase.ASLEEP, _plain(Verb.WAKE_WEIGHTS), "wake", Phase.WAKING_WEIGHTS),
    "Updating, loading": (Phase.WEIGHTS_RESIDENT, _begin, "reload", Phase.UPDATING),
    "Updating, committing": (Phase.UPDATING, _commit, "commit", Phase.UPDATING),
    "WakingKV": (Phase.COMMITTED, _plain(Verb.WAKE_KV), "wake", Phase.WAKING_KV),
    "Verifying": (Phase.VERIFYING, _plain(Verb.RESUME), "canary", Phase.VERIFYING),
}


def _next(member: Member, caller: Caller) -> None:
    """What an operator does: one step towards serving, by the phase alone."""
    phase = caller.state().phase
    steps: dict[Phase, Callable[[], Any]] = {
        Phase.PENDING_DEVICE: lambda: caller.do(Verb.GRANT, {"boot": member.page.get(Field.BOOT)}),
        Phase.PAUSED: lambda: caller.do(Verb.RESUME),
        Phase.SUSPENDING: lambda: caller.do(Verb.WAKE_WEIGHTS),
        Phase.ASLEEP: lambda: caller.do(Verb.WAKE_WEIGHTS),
        Phase.WEIGHTS_RESIDENT: lambda: caller.do(Verb.WAKE_KV),
        Phase.UPDATING: lambda: caller.do(Verb.ABORT_UPDATE),
        Phase.COMMITTED: lambda: caller.do(Verb.WAKE_KV),
        Phase.VERIFYING: lambda: caller.do(Verb.RESUME),
    }
    steps.get(phase, lambda: None)()


@pytest.mark.parametrize("middle", list(_MIDDLES))
def test_an_agent_killed_in_the_middle_converges(member: Member, middle: str) -> None:
    rest, call, route, phase = _MIDDLES[middle]
    caller = member.start(process=True)
    to_running(caller)
    WAYS[rest](member, caller)
    member.engine.lie(route, Lie.HANG)
    call(member, caller)
    until(lambda: route in member.engine.calls[-1:], what="the route hangs")
    assert member.page.get(Field.PHASE) == PHASE_NUMBER[phase]
    member.kill()
    count = member.engine.calls.count(route)
    caller = member.start()
    until(lambda: caller.state().phase is not Phase.UNKNOWN)
    ended = caller.wait("op-1")
    assert ended.status is OperationStatus.FAILED
    assert ended.error is not None
    assert (ended.error.code, ended.error.retryable) == ("UNREACHABLE", True)
    assert call(member, caller) == ended if route != "reload" else True
    assert member.engine.calls.count(route) == count
    until(lambda: _next(member, caller) is None and caller.state().phase is Phase.RUNNING)
    assert caller.state().boot == 1
    assert Stream(member, 2).end() == "end length"


@pytest.mark.parametrize(
    ("rest", "call", "route", "ends"),
    [
        (Phase.RUNNING, _sleep, "sleep", Phase.ASLEEP),
        (Phase.ASLEEP, _plain(Verb.WAKE_WEIGHTS), "wake", Phase.WEIGHTS_RESIDENT),
        (Phase.UPDATING, _commit, "commit", Phase.COMMITTED),
        (Phase.WEIGHTS_RESIDENT, _plain(Verb.WAKE_KV), "wake", Phase.VERIFYING),
    ],
)
def test_an_operation_whose_goal_is_true_is_done(
    running: Pair, rest: Phase, call: Call, route: str, ends: Phase
) -> None:
    """The engine finished what the dead agent had asked; the same id is answered with it, and runs nothing."""
    member, caller = running
    WAYS[rest](member, caller)
    before = caller.state().devices
    member.engine.lie(route, Lie.HANG)
    call(member, caller)
    until(lambda: route in member.engine.calls[-1:])
    member.kill()
    fleet = member.engine.fleet
    {
        "sleep": lambda: fleet.sleep(1),
        "wake": lambda: fleet.wake("weights" if rest is Phase.ASLEEP else "kv_cache"),
        "commit": lambda: fleet.commit(1),
    }[route]()
    member.engine.paused = not fleet.whole
    count = member.engine.calls.count(route)
    caller = member.start()
    caller.until(ends)
    ended = caller.wait("op-1")
    assert ended.status is OperationStatus.DONE
    assert call(member, caller) == ended
    assert member.engine.calls.count(route) == count
    if route == "sleep":
        assert ended.result is not None
        assert before
        assert ended.result["devices"][0]["freedMiB"] == 250.0


def test_an_id_runs_once_even_across_a_restart(running: Pair) -> None:
    member, caller = running
    first = caller.do(Verb.SLEEP, SLEEP, key="op-1")
    caller.do(Verb.WAKE_WEIGHTS, key="op-2")
    member.kill()
    caller = member.start()
    caller.until(Phase.WEIGHTS_RESIDENT)
    assert caller.post(Verb.SLEEP, SLEEP, key="op-1") == first
    assert caller.state().phase is Phase.WEIGHTS_RESIDENT
    assert member.engine.calls.count("sleep") == 1


def test_the_canary_is_remembered(running: Pair) -> None:
    member, caller = running
    to_asleep(caller)
    member.kill()
    caller = member.start()
    caller.until(Phase.ASLEEP)
    caller.do(Verb.WAKE_WEIGHTS)
    caller.do(Verb.WAKE_KV)
    member.engine.canary = [9, 9, 9, 9]
    assert caller.fail(Verb.RESUME).code == "CANARY_FAILED"


def test_leftovers_of_a_dead_ingest_are_removed_by_the_next(running: Pair) -> None:
    member, caller = running
    (Path(member.config.weights_dir) / ".v1.dead").mkdir(parents=True)
    to_updating(member, caller)
    assert [path.name for path in Path(member.config.weights_dir).iterdir()] == ["v1"]


def test_another_model_does_not_get_the_weights_of_the_one_before(running: Pair) -> None:
    member, caller = running
    cycle(member, caller, 3)
    member.kill()
    make_model(member.root / "other", shards=2)
    member.config = member.config.model_copy(update={"model": str(member.root / "other")})
    member.engine.die()
    until(lambda: member.page.get(Field.BOOT) == 2)
    caller = member.start()
    vector = to_running(caller)
    assert (vector.weight_version, vector.committed_version, vector.epoch) == (0, 0, 1)
