"""Parts of the engine are killed: the whole of it is ended, started again, and serves the committed weights.

While the trainer owns the device, the engine's replacement waits as PendingDevice, without a process of vLLM.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from ebbtide import ErrorCode
from ebbtide_api.state import Phase
from ebbtide_runtime.launcher.processes import is_alive
from ebbtide_runtime.native import Field

from tests.support.launching import until
from tests.support.stack import STEP_S, Stack, Watch, refusal_of
from tests.support.stack_processes import API, CORE, WORKER, anonymous_mib, kill
from tests.support.stack_traffic import post, request, streaming

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
# Faulted is too short to be sampled: the engine is ended, and its agent waits for the next launch, at once.
AGAIN = [Phase.RECOVERING, Phase.PENDING_DEVICE, Phase.STARTING, Phase.VERIFYING, Phase.RUNNING]


def boots(stack: Stack) -> int:
    """Return how many times an engine was launched."""
    return stack.page.get(Field.BOOT)


@pytest.mark.parametrize("part", [API, CORE, WORKER])
def test_killed_while_running_it_restarts_with_the_committed_weights(stack: Stack, part: str) -> None:
    if stack.seed == 0:
        stack.teach(1)  # other weights than the model's own, with which a restart begins
    family, boot, version = stack.engine(), boots(stack), stack.state().committed_version
    with Watch(stack.page) as watch:
        with streaming(stack.url, 900) as stream:
            kill(stack.part(part))
            stream.join()
            assert not (stream.done and stream.reason == "length")
        assert_refused_meanwhile(stack)
        until(lambda: boots(stack) == boot + 1, "another launch", STEP_S)
        assert [each.pid for each in family if is_alive(each.pid, each.start)] == []
        stack.wait_until_serving()
    seen = [phase for phase in watch.phases if phase is not Phase.FAULTED]
    assert [seen[0], *[phase for phase in seen[1:] if phase in AGAIN]] == [Phase.RUNNING, *AGAIN]
    state = stack.state()
    assert (state.committed_version, state.boot) == (version, boot + 1)
    assert state.last_error is not None
    assert state.last_error.code is ErrorCode.ENGINE_FAULTED
    assert stack.right()


def assert_refused_meanwhile(stack: Stack) -> None:
    """Refused by the gate while that lives, then by nobody listening; never an empty 200, never a hang."""
    try:
        status = post(stack.url, request(1), timeout=10).status_code
    except httpx2.TimeoutException:
        status = 0
    except httpx2.TransportError:
        status = 503
    assert status in {500, 503}


def test_killed_while_lent_its_replacement_waits_without_a_process(stack: Stack) -> None:
    boot = boots(stack)
    with stack.trainer.borrow() as loan:
        with Watch(stack.page) as watch:
            kill(stack.part(WORKER))
            until(lambda: boots(stack) == boot + 1 and stack.seen(Phase.PENDING_DEVICE), "the replacement", STEP_S)
            version = stack.publish(loan, 1 - stack.seed)
            assert_nothing_of_the_engine_is_there(stack)
        assert {*watch.phases} <= {Phase.ASLEEP, Phase.FAULTED, Phase.RECOVERING, Phase.PENDING_DEVICE}
        assert watch.phases[-1] is Phase.PENDING_DEVICE
        assert (loan.lost, stack.group().owner) == (None, "a test")
    stack.seed = 1 - stack.seed
    assert loan.reclaimed is not None
    assert loan.reclaimed.weight_version == version
    assert stack.right()


def assert_nothing_of_the_engine_is_there(stack: Stack) -> None:
    assert stack.engine() == []
    assert stack.page.get(Field.GRANT) != boots(stack)
    # The launcher waits beside the device, without vLLM or torch in it.
    assert anonymous_mib([stack.launcher_process()]) < 100
    state = stack.state()
    assert (state.admission, [device.used_mib for device in state.devices]) == (False, [0])


def test_killed_on_its_way_back_it_serves_what_the_trainer_was_told(stack: Stack, pool: ThreadPoolExecutor) -> None:
    boot, core = boots(stack), stack.part(CORE)
    loan = stack.trainer.borrow()
    loan.__enter__()
    version = stack.publish(loan, 1 - stack.seed)
    given_back = pool.submit(loan.__exit__, None, None, None)
    stack.wait_for_phase(Phase.UPDATING)
    kill(core)
    refusal = refusal_of(given_back)
    if refusal is None:
        stack.seed = 1 - stack.seed
        assert stack.state().committed_version == version
    else:
        assert refusal.code in {ErrorCode.ENGINE_FAULTED, ErrorCode.INSTANCE_REPLACED}, refusal
    stack.wait_until_serving()
    assert boots(stack) == boot + 1
    assert stack.right()
