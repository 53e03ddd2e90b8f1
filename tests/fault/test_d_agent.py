"""The agent is killed: what it knew is derived again from the engine and the page, and everything converges.

The engine goes on throughout: an agent is in no request's way, and its death costs no restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

import pytest
from ebbtide import Drain, ErrorCode
from ebbtide_api.state import Phase, Weights
from ebbtide_api.verbs import Operation, OperationStatus

from tests.support.launching import until
from tests.support.stack import STEP_S, Stack, refusal_of
from tests.support.stack_processes import kill, same
from tests.support.stack_traffic import post, request, streaming

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
SLEEP = {"level": 1, "drain": {"mode": "Wait", "timeout": 30, "onDeadline": "Abort"}, "settle": 0.2}


@contextmanager
def same_engine(stack: Stack) -> Iterator[None]:
    """The engine that was there is there afterwards."""
    before = same(stack.engine())
    yield
    assert same(stack.engine()) == before


def test_killed_while_running_costs_no_request(stack: Stack) -> None:
    with same_engine(stack), streaming(stack.url, 150) as stream:
        kill(stack.agent_process())
        assert stack.right()
        stack.wait_until_serving()
        stream.join()
        assert (stream.reason, stream.done, len(stream.tokens)) == ("length", True, 150)


def test_killed_while_asleep_it_stays_asleep_and_wakes_with_what_was_published(stack: Stack) -> None:
    with same_engine(stack):
        with stack.trainer.borrow() as loan:
            lent = stack.state()
            kill(stack.agent_process())
            assert post(stack.url, request(1), timeout=10).status_code == 503
            until(lambda: stack.seen(Phase.ASLEEP), "the new agent to find the engine asleep", STEP_S)
            found = stack.state()
            assert (found.weights, found.admission) == (Weights.PARKED, False)
            assert (found.epoch, found.cycle, found.instance) == (lent.epoch, lent.cycle, lent.instance)
            stack.publish(loan, 1 - stack.seed)
        stack.seed = 1 - stack.seed
        assert stack.right()


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.SUSPENDING])
def test_killed_during_sleep_the_lend_ends_measured(stack: Stack, pool: ThreadPoolExecutor, phase: Phase) -> None:
    with same_engine(stack), streaming(stack.url, 60) as stream:
        agent, loan = stack.agent_process(), stack.trainer.borrow(drain=Drain(timeout=60))
        lent = pool.submit(loan.__enter__)
        stack.wait_for_phase(phase)
        kill(agent)
        lent.result(120)
        stream.join()
        assert (stream.reason, len(stream.tokens)) == ("length", 60)
        asleep = stack.engine_mib()
        (device,) = loan.lend.devices
        assert asleep == pytest.approx(device.residual_mib, rel=0.05)
        loan.__exit__(None, None, None)


@pytest.mark.parametrize("phase", [Phase.WAKING_WEIGHTS, Phase.UPDATING, Phase.WAKING_KV])
def test_killed_during_wake_it_serves_what_the_trainer_was_told(
    stack: Stack, pool: ThreadPoolExecutor, phase: Phase
) -> None:
    agent, loan = stack.agent_process(), stack.trainer.borrow()
    loan.__enter__()
    version = stack.publish(loan, 1 - stack.seed)
    given_back = pool.submit(loan.__exit__, None, None, None)
    stack.wait_for_phase(phase)
    kill(agent)
    refusal = refusal_of(given_back)
    if refusal is None:
        stack.seed = 1 - stack.seed
        assert stack.state().committed_version == version
    else:
        assert refusal.code in {ErrorCode.ENGINE_FAULTED, ErrorCode.INSTANCE_REPLACED}, refusal
    stack.wait_until_serving()
    assert stack.right()


def test_the_same_call_twice_runs_once_also_after_the_agents_death(stack: Stack, pool: ThreadPoolExecutor) -> None:
    before = stack.state()
    with same_engine(stack):
        key, epoch = uuid4().hex, stack.group().epoch
        both = [pool.submit(stack.call, "POST", "/v1/servers/tiny:sleep", SLEEP, epoch=epoch, key=key) for _ in "ab"]
        first, second = (Operation.model_validate_json(call.result(60).content) for call in both)
        assert first.id == second.id
        assert stack.finished(first).status is OperationStatus.DONE
        once = stack.state()
        assert (once.phase, once.cycle) == (Phase.ASLEEP, before.cycle + 1)
        assert_agent_answers_a_repeated_call_as_before(stack, epoch)
        assert stack.state().cycle == once.cycle + 1
        handed_back = stack.call("POST", "/v1/servers/tiny:reconcile", {}, epoch=epoch)
        assert handed_back.status_code in {200, 202}, handed_back.text


def assert_agent_answers_a_repeated_call_as_before(stack: Stack, epoch: int) -> None:
    """The server is driven by hand, so nobody else calls this agent: wake it, and let it sleep by one key."""
    for verb in ("wake-weights", "wake-kv", "resume"):
        agent_does(stack, verb, {}, epoch, uuid4().hex)
    key = uuid4().hex
    answer = agent_does(stack, "sleep", SLEEP, epoch, key)
    kill(stack.agent_process())
    until(lambda: stack.seen(Phase.ASLEEP), "the new agent", STEP_S)
    assert agent_does(stack, "sleep", SLEEP, epoch, key) == answer
    other = stack.agent("POST", "/v1/sleep", {**SLEEP, "level": 2}, epoch=epoch, key=key)
    assert (other.status_code, other.json()["code"]) == (422, "OPERATION_MISMATCH")


def agent_does(stack: Stack, verb: str, body: dict[str, object], epoch: int, key: str) -> Operation:
    """Have the agent do something to its end, and return its answer."""
    answer = stack.agent("POST", f"/v1/{verb}", body, epoch=epoch, key=key)
    assert answer.status_code in {200, 202}, answer.text
    answer = stack.agent("GET", f"/v1/operations/{key}?wait=30")
    operation = Operation.model_validate_json(answer.content)
    assert operation.status is OperationStatus.DONE, operation
    return operation
