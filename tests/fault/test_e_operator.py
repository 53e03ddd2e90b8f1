"""The operator is killed between two owners of the device, and started again: it converges, and one owns at a time.

A trainer in the middle of a call only notices that it takes longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from ebbtide import Drain
from ebbtide_api.state import Phase

from tests.support.launching import until
from tests.support.stack import STEP_S, Stack, Watch
from tests.support.stack_processes import same
from tests.support.stack_traffic import streaming

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


@contextmanager
def same_processes(stack: Stack) -> Iterator[None]:
    """Agent, launcher and engine outlive their operator: the next one adopts them."""
    before = [stack.agent_process(), stack.launcher_process(), *stack.engine()]
    yield
    assert same([stack.agent_process(), stack.launcher_process(), *stack.engine()]) == same(before)


def killed_and_restarted(stack: Stack) -> None:
    stack.kill_operator()
    stack.start()


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.SUSPENDING])
def test_killed_in_the_middle_of_a_lend(stack: Stack, pool: ThreadPoolExecutor, phase: Phase) -> None:
    with same_processes(stack), Watch(stack.page) as watch:
        with streaming(stack.url, 60) as stream:
            loan = stack.trainer.borrow(drain=Drain(timeout=60))
            lent = pool.submit(loan.__enter__)
            stack.wait_for_phase(phase)
            killed_and_restarted(stack)
            lent.result(STEP_S)
            stream.join()
            assert (stream.reason, len(stream.tokens)) == ("length", 60)
        (device,) = loan.lend.devices
        assert stack.engine_mib() == pytest.approx(device.residual_mib, rel=0.05)
        assert_the_trainer_is_alone(stack, loan.epoch)
        assert stack.group().owner == "a test"
        loan.__exit__(None, None, None)
    assert watch.epochs == sorted(watch.epochs)
    assert woke_once(watch)


@pytest.mark.parametrize("phase", [Phase.WAKING_WEIGHTS, Phase.UPDATING, Phase.WAKING_KV])
def test_killed_in_the_middle_of_a_reclaim(stack: Stack, pool: ThreadPoolExecutor, phase: Phase) -> None:
    with same_processes(stack), Watch(stack.page) as watch:
        loan = stack.trainer.borrow()
        loan.__enter__()
        version = stack.publish(loan, 1 - stack.seed)
        given_back = pool.submit(loan.__exit__, None, None, None)
        stack.wait_for_phase(phase)
        killed_and_restarted(stack)
        given_back.result(STEP_S)
        stack.seed = 1 - stack.seed
        assert loan.reclaimed is not None
        assert loan.reclaimed.weight_version == version
        stack.wait_until_serving()
    assert stack.right()
    assert watch.epochs == sorted(watch.epochs)
    assert woke_once(watch)


def assert_the_trainer_is_alone(stack: Stack, epoch: int) -> None:
    """While the trainer owns the device, operators that restart leave the engine asleep."""
    with Watch(stack.page) as watch:
        killed_and_restarted(stack)
        until(lambda: stack.seen(Phase.ASLEEP), "the operator to hear of the member", STEP_S)
        assert stack.group().epoch == epoch
    assert (watch.phases, watch.epochs) == ([Phase.ASLEEP], [epoch])


def woke_once(watch: Watch) -> bool:
    """Whether the engine went to sleep once and came back once, whatever happened to its operator."""
    return [watch.phases.count(phase) for phase in (Phase.ASLEEP, Phase.WAKING_WEIGHTS)] == [1, 1]
