"""Too little host memory to park; and the end: nothing is left, and the same home starts again."""

import subprocess

import pytest
from ebbtide import EbbtideError, ErrorCode
from ebbtide_api.state import Phase, Weights

from tests.fault.conftest import Stacks
from tests.support.models import tiny
from tests.support.stack import GROUP, MEMBER, Stack, Watch, command
from tests.support.stack_traffic import Poller

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
LIMIT_MIB = 4  # the tiny model has 10 MiB


@pytest.fixture
def tight(stacks: Stacks) -> Stack:
    """A stack that may not keep a copy of its weights."""
    colocation = {"group": GROUP, "hostMemoryLimit": f"{LIMIT_MIB}Mi", "devices": {"cpu": {"memory": "3Gi"}}}
    sleep = {"level": "Parked"}
    return stacks.get("tight", lambda stack: stack.learn(0), model=tiny(), colocation=colocation, sleep=sleep)


def test_without_room_to_park_nothing_is_touched(tight: Stack) -> None:
    before = tight.state()
    with Watch(tight.page) as watch, Poller(tight.url) as poller:
        with pytest.raises(EbbtideError) as caught, tight.trainer.borrow():
            pytest.fail("it was lent")
        poller.wait_for_answers()
    refusal = caught.value
    assert (refusal.code, refusal.status) == (ErrorCode.HOST_MEMORY_INSUFFICIENT, 507)
    assert refusal.details["member"] == MEMBER
    assert refusal.details["needMiB"] == pytest.approx(before.weights_mib, abs=0.1)
    assert 0 <= refusal.details["availableMiB"] <= LIMIT_MIB
    # No client saw anything of it, and the gate was never closed, not even between two requests.
    assert set(poller.statuses) == {200}
    assert (watch.phases, watch.closed) == ([Phase.RUNNING], 0)
    after = tight.state()
    assert (after.cycle, after.instance, after.owner) == (before.cycle, before.instance, "engine")
    tight.wait_until_serving()
    assert tight.right()


def test_it_can_sleep_deeper_and_come_back_from_its_source(tight: Stack) -> None:
    with tight.trainer.borrow(level=2) as loan:
        assert tight.state().weights is Weights.DISCARDED
        (device,) = loan.lend.devices
        assert tight.engine_mib() == pytest.approx(device.residual_mib, rel=0.05)
    assert tight.right()


def test_published_weights_without_room_for_a_copy_are_refused_and_the_old_ones_serve_on(tight: Stack) -> None:
    with pytest.raises(EbbtideError) as caught, tight.trainer.borrow(level=2) as loan:
        loan.publish_path(tiny(), version=next(tight.versions))
    assert (caught.value.code, caught.value.status) == (ErrorCode.HOST_MEMORY_INSUFFICIENT, 507)
    tight.wait_until_serving()
    assert tight.right()
    assert tight.state().committed_version == 0


def test_one_home_has_one_operator(tight: Stack) -> None:
    second = subprocess.run(command(tight.home, "--port", "0"), capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 2
    assert str(tight.home) in second.stderr
    assert "Traceback" not in second.stderr
    assert tight.right()


def test_after_the_end_nothing_is_left_and_the_same_home_starts_again(tight: Stack) -> None:
    epoch = tight.group().epoch
    assert {"agent", "launcher", "engine"} <= roles(tight)
    assert tight.memory is not None
    assert tight.memory.is_dir()
    assert tight.stop() == 0
    assert tight.processes() == []
    assert not tight.memory.exists()
    assert not (tight.home / "operator.json").exists()
    tight.start()
    tight.wait_until_serving()
    assert tight.right()
    # Nobody of before the end is believed after it.
    assert tight.group().epoch >= epoch


def roles(stack: Stack) -> set[str]:
    found = {"engine"} if stack.engine() else set()
    return found | {
        name for name, process in (("agent", stack.agent_process()), ("launcher", stack.launcher_process())) if process
    }
