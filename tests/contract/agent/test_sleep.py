"""Draining and releasing: what is in flight, what is measured, and what a refusal leaves untouched."""

from __future__ import annotations

import time
from typing import Any

import pytest
from ebbtide_api.state import KV, Phase, Weights
from ebbtide_api.verbs import OperationStatus, Verb
from ebbtide_runtime.native import Field

from tests.contract.agent.conftest import Make
from tests.support.agents import MIB, Caller, RefusedError, faster
from tests.support.fake_engine import Lie, until
from tests.support.rig import SLEEP, Member, Stream, back, sleep, to_running, to_weights

Pair = tuple[Member, Caller]


def drained(mode: str, timeout: float = 5.0, on_deadline: str = "Abort") -> dict[str, Any]:
    return {**SLEEP, "drain": {"mode": mode, "timeout": timeout, "onDeadline": on_deadline}}


def test_wait_lets_a_stream_finish(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 30)
    result = caller.do(Verb.SLEEP, drained("Wait")).result
    assert stream.end() == "end length"
    assert len(stream.lines) == 31
    assert result is not None
    assert result["abortedRequests"] == 0
    assert result["drainedMs"] > 0


def test_abort_ends_a_stream_with_what_it_has(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 100_000)
    result = caller.do(Verb.SLEEP, drained("Abort")).result
    assert stream.end() == "end abort"
    assert stream.lines[0] == "token 0"
    assert result is not None
    assert result["abortedRequests"] == 1
    assert caller.state().inflight.running == 0


def test_a_wait_that_is_over_aborts(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 100_000)
    result = caller.do(Verb.SLEEP, drained("Wait", 0.05)).result
    assert stream.end() == "end abort"
    assert result is not None
    assert result["abortedRequests"] == 1


def test_a_wait_that_may_not_abort_serves_on_and_says_what_remained(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 400)
    error = caller.fail(Verb.SLEEP, drained("Wait", 0.05, "Fail"))
    assert (error.code, error.details["remaining"]["running"]) == ("DRAIN_DEADLINE", 1)
    vector = caller.until(Phase.RUNNING)
    assert vector.admission
    assert not member.engine.paused
    assert Stream(member, 3).end() == "end length"
    assert stream.end() == "end length"
    assert "sleep" not in member.engine.calls


def test_while_it_drains_new_requests_are_refused_and_the_old_one_goes_on(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 100_000)
    operation = caller.post(Verb.SLEEP, drained("Wait", 30))
    until(lambda: caller.state().phase is Phase.DRAINING)
    before = len(stream.lines)
    late = Stream(member, 3)
    late.end()
    assert late.status == 503
    until(lambda: len(stream.lines) > before, what="the old one goes on")
    member.engine.end_requests()
    assert caller.wait(operation.id).status is OperationStatus.DONE
    stream.end()


def test_frozen_requests_are_finished_by_a_sleep_that_waits(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 400)
    caller.do(Verb.PAUSE, {"mode": "Keep"})
    assert caller.state().inflight.running == 1
    caller.do(Verb.SLEEP, drained("Wait"))
    assert stream.end() == "end length"


def test_frozen_requests_are_ended_by_a_sleep_that_aborts(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 100_000)
    caller.do(Verb.PAUSE, {"mode": "Keep"})
    caller.do(Verb.SLEEP, drained("Abort"))
    assert stream.end() == "end abort"


def test_frozen_requests_that_do_not_finish_are_frozen_again(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 300)
    caller.do(Verb.PAUSE, {"mode": "Keep"})
    error = caller.fail(Verb.SLEEP, drained("Wait", 0.02, "Fail"))
    assert error.code == "DRAIN_DEADLINE"
    assert caller.until(Phase.PAUSED).inflight.running == 1
    caller.do(Verb.RESUME)
    assert stream.end() == "end length"


def test_frozen_requests_take_no_new_weights(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 400)
    caller.do(Verb.PAUSE, {"mode": "Keep"})
    error = caller.fail(Verb.BEGIN_UPDATE, member.publish(1))
    assert (error.code, error.details["remaining"]) == ("ILLEGAL_TRANSITION", 1)
    caller.do(Verb.RESUME)
    assert stream.end() == "end length"


def test_a_pause_waits_and_gives_up(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 600)
    error = caller.fail(Verb.PAUSE, {"mode": "Wait", "timeout": 0.05})
    assert error.code == "DRAIN_DEADLINE"
    assert caller.until(Phase.RUNNING).admission
    assert stream.end() == "end length"
    caller.do(Verb.PAUSE, {"mode": "Wait"})
    assert caller.state().phase is Phase.PAUSED


def test_requests_cannot_sleep_frozen(running: Pair) -> None:
    _, caller = running
    with pytest.raises(RefusedError) as caught:
        caller.post(Verb.SLEEP, drained("Keep"))
    assert (caught.value.status, caught.value.code) == (400, "INVALID_MODE")
    assert caught.value.body.details["modes"] == ["Wait", "Abort"]


def test_requests_that_do_not_end_fault_the_engine(make: Make) -> None:
    member = make()
    caller = member.start(faster(drain_abort_s=0.1))
    to_running(caller)
    stream = Stream(member, 100_000)
    member.engine.lie("pause", *[Lie.NOTHING] * 5)
    error = caller.fail(Verb.SLEEP, drained("Abort"))
    assert (error.code, error.details["remaining"]) == ("ENGINE_FAULTED", 1)
    assert caller.until(Phase.PENDING_DEVICE).boot == 2
    assert stream.end().startswith("token")


def test_a_late_request_is_aborted_by_another_pause(running: Pair) -> None:
    """The first pause does not see it: it was on its way into the engine."""
    member, caller = running
    stream = Stream(member, 100_000)
    member.engine.lie("pause", Lie.NOTHING)
    caller.do(Verb.SLEEP, drained("Abort"))
    assert stream.end() == "end abort"


@pytest.mark.parametrize("lie", [Lie.ERROR, Lie.RESET])
def test_a_pause_that_fails_before_anything_was_released_leads_back(running: Pair, lie: Lie) -> None:
    member, caller = running
    member.engine.lie("pause", lie)
    assert caller.fail(Verb.SLEEP, SLEEP).code == "ENGINE_FAULTED"
    assert caller.until(Phase.RUNNING).boot == 1
    assert Stream(member, 2).end() == "end length"


def test_a_pause_that_was_done_counts_whatever_the_connection_did(running: Pair) -> None:
    member, caller = running
    member.engine.lie("pause", Lie.LATE)
    sleep(caller)


# Measured


def test_an_engine_that_says_yes_and_frees_nothing(running: Pair) -> None:
    """The lie of all lies: 200, and the memory stays."""
    member, caller = running
    member.engine.lie("sleep", Lie.NOTHING)
    error = caller.fail(Verb.SLEEP, SLEEP)
    assert error.code == "RELEASE_INCOMPLETE"
    assert (error.details["device"], error.details["usedMiB"], error.details["allowedMiB"]) == ("cpu0", 350.0, 121.0)
    vector = caller.state()
    assert (vector.phase, vector.weights, vector.kv) == (Phase.SUSPENDING, Weights.RESIDENT, KV.RESIDENT)
    assert not vector.admission
    assert vector.last_error is not None
    caller.do(Verb.WAKE_WEIGHTS)
    back(caller)
    assert Stream(member, 2).end() == "end length"


def test_ranks_that_say_asleep_while_memory_is_held(running: Pair) -> None:
    member, caller = running
    member.engine.leak = 60 * MIB
    error = caller.fail(Verb.SLEEP, SLEEP)
    assert (error.code, error.details["usedMiB"]) == ("RELEASE_INCOMPLETE", 160.0)
    vector = caller.state()
    assert (vector.phase, vector.weights, vector.cycle) == (Phase.SUSPENDING, Weights.PARKED, 0)
    member.engine.leak = 0
    sleep(caller)
    assert caller.state().phase is Phase.ASLEEP


def test_a_release_that_is_late_is_waited_for(make: Make) -> None:
    member = make()
    caller = member.start(faster(settle_s=20))
    to_running(caller)
    member.engine.leak = 500 * MIB
    operation = caller.post(Verb.SLEEP, SLEEP)
    until(lambda: caller.state().phase is Phase.SUSPENDING)
    member.engine.leak = 0
    assert caller.wait(operation.id).status is OperationStatus.DONE


def test_what_is_needed_must_be_free(running: Pair) -> None:
    member, caller = running
    error = caller.fail(Verb.SLEEP, {**SLEEP, "needMiB": 950})
    assert (error.code, error.details["allowedMiB"]) == ("RELEASE_INCOMPLETE", 50.0)
    assert caller.state().phase is Phase.SUSPENDING
    assert member.engine.used == 100 * MIB


def test_what_was_learned_at_the_first_sleep_is_the_target_of_the_next(running: Pair) -> None:
    member, caller = running
    sleep(caller)
    caller.do(Verb.WAKE_WEIGHTS)
    back(caller)
    member.page.set(Field.BASELINE, 900 * MIB)
    member.engine.leak = 22 * MIB
    assert caller.fail(Verb.SLEEP, SLEEP).code == "RELEASE_INCOMPLETE"
    member.engine.leak = 20 * MIB
    sleep(caller)
    assert caller.state().residual_mib == 100.0


def test_a_launcher_that_does_not_measure_is_known_before_anything_is_touched(make: Make) -> None:
    member = make()
    caller = member.start(faster(measure_s=0.1, recent_s=0.0))
    to_running(caller)
    member.engine.measures = False
    with pytest.raises(RefusedError) as caught:
        caller.post(Verb.SLEEP, SLEEP)
    assert (caught.value.status, caught.value.code) == (503, "UNREACHABLE")
    assert caller.state().phase is Phase.RUNNING


def test_a_launcher_that_stops_measuring_measured_nothing(make: Make) -> None:
    member = make()
    caller = member.start(faster(measure_s=0.15))
    to_running(caller)
    stream = Stream(member, 100_000)
    operation = caller.post(Verb.SLEEP, drained("Wait", 30))
    member.engine.measures = False
    member.engine.end_requests()
    error = caller.wait(operation.id).error
    assert error is not None
    assert (error.code, error.details["measured"]) == ("RELEASE_INCOMPLETE", False)
    assert caller.state().phase is Phase.SUSPENDING
    stream.end()


def test_where_nobody_comes_the_engine_is_restarted(make: Make) -> None:
    member = make()
    caller = member.start(faster(suspended_s=0.2))
    to_running(caller)
    member.engine.lie("sleep", Lie.NOTHING)
    assert caller.fail(Verb.SLEEP, SLEEP).code == "RELEASE_INCOMPLETE"
    vector = caller.until(Phase.PENDING_DEVICE)
    assert vector.last_error is not None
    assert vector.last_error.code == "PHASE_DEADLINE"


def test_reconcile_restarts_what_is_in_no_useful_state(running: Pair) -> None:
    member, caller = running
    member.engine.lie("sleep", Lie.NOTHING)
    caller.fail(Verb.SLEEP, SLEEP)
    caller.do(Verb.RECONCILE)
    assert caller.until(Phase.PENDING_DEVICE).boot == 2


# Host memory


def test_without_host_memory_nothing_is_touched(make: Make) -> None:
    """507, with the numbers, and admission was never closed."""
    member = make(host_memory_limit=150 * MIB)
    caller = member.start()
    to_running(caller)
    stream = Stream(member, 200)
    seen: list[bool] = []
    calls = list(member.engine.calls)
    began = time.monotonic()
    with pytest.raises(RefusedError) as caught:
        caller.post(Verb.SLEEP, {"level": 1})
    seen.append(member.page.admission)
    assert time.monotonic() - began < 5
    assert (caught.value.status, caught.value.code) == (507, "HOST_MEMORY_INSUFFICIENT")
    assert caught.value.body.details == {"needMiB": 200.0, "availableMiB": 150.0}
    assert seen == [True]
    assert set(member.engine.calls[len(calls) :]) <= {"engine"}
    assert caller.state().phase is Phase.RUNNING
    assert stream.end() == "end length"


def test_without_host_memory_the_policy_discards(make: Make) -> None:
    member = make(host_memory_limit=150 * MIB)
    caller = member.start()
    to_running(caller)
    assert member.engine.fleet.parked_bytes == 0
    result = sleep(caller).result
    assert result is not None
    assert result["level"] == 2


def test_a_release_of_kv_needs_host_memory(make: Make) -> None:
    member = make(host_memory_limit=150 * MIB)
    caller = member.start()
    to_running(caller)
    assert caller.fail(Verb.RELEASE_KV).code == "HOST_MEMORY_INSUFFICIENT"
    assert caller.state().phase is Phase.RUNNING


def test_an_engine_that_finds_no_room_is_led_back(running: Pair) -> None:
    member, caller = running
    member.engine.lie("sleep", Lie.NO_ROOM)
    error = caller.fail(Verb.SLEEP, SLEEP)
    assert (error.code, error.details["needMiB"]) == ("HOST_MEMORY_INSUFFICIENT", 200.0)
    assert caller.until(Phase.RUNNING).admission
    assert not member.engine.paused


def test_an_engine_without_kv_that_finds_no_room_stays_there(running: Pair) -> None:
    member, caller = running
    to_weights(caller)
    member.engine.lie("sleep", Lie.NO_ROOM)
    assert caller.fail(Verb.SLEEP, SLEEP).code == "HOST_MEMORY_INSUFFICIENT"
    assert caller.state().phase is Phase.WEIGHTS_RESIDENT


def test_adapters_keep_their_weights(make: Make) -> None:
    member = make(extra_args=["--enable-lora"])
    caller = member.start()
    to_running(caller)
    assert caller.fail(Verb.SLEEP, {"level": 2}).code == "LEVEL_UNSUPPORTED"
    assert sleep(caller).result


def test_kv_is_released_and_the_weights_stay(running: Pair) -> None:
    member, caller = running
    result = caller.do(Verb.RELEASE_KV).result
    assert result is not None
    assert result["devices"][0]["freedMiB"] == 50.0
    assert member.engine.used == 300 * MIB
    assert caller.state().phase is Phase.WEIGHTS_RESIDENT
    back(caller)


# The caller's deadline


def test_a_callers_deadline_shortens_the_drain(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 500)
    began = time.monotonic()
    error = caller.fail(Verb.SLEEP, drained("Wait", 60, "Fail"), deadline=0.1)
    assert error.code == "DRAIN_DEADLINE"
    assert time.monotonic() - began < 5
    assert caller.until(Phase.RUNNING).admission
    stream.end()


def test_after_a_success_no_older_error_is_told(make: Make) -> None:
    member = make()
    caller = member.start(faster())
    to_running(caller)
    member.engine.leak = 500 * MIB
    assert caller.fail(Verb.SLEEP, SLEEP).code == "RELEASE_INCOMPLETE"
    told = caller.state().last_error
    assert told is not None
    assert "MiB are in use" in told.message
    member.engine.leak = 0
    sleep(caller)
    assert caller.state().last_error is None
