"""A trainer that dies, or stops, while it owns the device."""

import signal
from collections.abc import Callable

import httpx2
import pytest
from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage

from tests.support.launching import until
from tests.support.stack import Stack
from tests.support.stack_processes import MIB, kill
from tests.support.stack_trainer import Trainer, trainer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
TTL = 4.0
SLEEP = {"level": 1, "drain": {"mode": "Wait", "timeout": 5, "onDeadline": "Abort"}, "settle": 0.2}


def late_calls(stack: Stack, dead: Trainer) -> dict[str, Callable[[], httpx2.Response]]:
    """Return what the dead trainer may still have on its way: to the gateway, and past it to the agent."""
    lease = f"/v1/groups/actor/lease/{dead.lease.id}"
    return {
        "lend": lambda: stack.call("POST", "/v1/groups/actor:lend", {}, epoch=dead.epoch),
        "reclaim": lambda: stack.call("POST", "/v1/groups/actor:reclaim", {}, epoch=dead.epoch),
        "step": lambda: stack.call("POST", "/v1/servers/tiny:sleep", SLEEP, epoch=dead.epoch),
        "renew": lambda: stack.call("PUT", lease, {}, epoch=dead.epoch),
        "give back": lambda: stack.call("DELETE", lease, epoch=dead.epoch),
        "agent": lambda: stack.agent("POST", "/v1/sleep", SLEEP, epoch=dead.epoch),
    }


def assert_too_late(stack: Stack, dead: Trainer) -> None:
    for name, send in late_calls(stack, dead).items():
        answer = send()
        assert (name, answer.status_code, answer.json()["code"]) == (name, 412, "STALE_EPOCH")


def test_a_killed_trainer_loses_the_device_to_the_engines_old_weights(stack: Stack) -> None:
    before = stack.state()
    with trainer(stack.home, ttl=TTL) as doomed:
        assert stack.state().phase is Phase.ASLEEP
        kill(doomed.process)
        # Nobody takes it before the lease has run out.
        assert (stack.group().owner, stack.phase) == ("doomed", Phase.ASLEEP)
        stack.wait_until_serving()
        assert stack.right()
        after = stack.state()
        assert (after.committed_version, after.instance) == (before.committed_version, before.instance)
        assert stack.group().epoch > doomed.epoch
        assert_too_late(stack, doomed)
    assert stack.right()


def test_a_stopped_trainer_keeps_the_engine_asleep_until_its_memory_is_measured_free(stack: Stack) -> None:
    """It renews nothing and still holds the memory: waking now would take what is not there."""
    with trainer(stack.home, ttl=TTL, hold_mib=hold_so_much_that_no_engine_wakes(stack)) as doomed:
        kill(doomed.process, signal.SIGSTOP)
        until(lambda: stage(stack) is LeaseStage.OWNER_LOST, "the lease to run out", 30)
        server = stack.server()
        assert (server.ready, server.reason) == (False, "OwnerLost")
        assert f"{doomed.process.pid}" in server.message
        assert (stack.phase, stack.group().owner) == (Phase.ASLEEP, "doomed")
        kill(doomed.process)
        stack.wait_until_serving()
        assert stack.right()
        assert_too_late(stack, doomed)


def stage(stack: Stack) -> LeaseStage | None:
    lease = stack.group().lease
    return lease.stage if lease else None


def hold_so_much_that_no_engine_wakes(stack: Stack) -> int:
    state, budget = stack.state(), stack.member.device_budget // MIB
    assert state.residual_mib
    return int(budget - state.residual_mib - state.weights_mib - state.kv_mib) + 200
