"""Answers that never come: every call acts once, and is never taken for failed."""

import numpy as np
import pytest
from ebbtide import (
    EbbtideError,
    ErrorCode,
    Group,
    Progress,
    Stage,
)
from ebbtide.client import gateway as calls

from tests.support.fake_gateway import FakeGateway, Fault

WEIGHTS = {"w": np.arange(8, dtype=np.float32)}


@pytest.mark.parametrize("fault", [Fault.drop_before(), Fault.drop_after(), Fault.answer(503), Fault.answer(425)])
@pytest.mark.parametrize("path", ["/lease", ":lend", ":reclaim"])
def test_a_call_whose_answer_is_lost_acts_once(group: Group, gateway: FakeGateway, path: str, fault: Fault) -> None:
    gateway.fault("POST", path, fault)
    with group.borrow() as loan:
        loan.publish(WEIGHTS, version=1)
    assert gateway.performed == ["lend", "reclaim"]
    assert gateway.version == 1
    assert gateway.current is None


def test_reading_an_operation_survives_drops(group: Group, gateway: FakeGateway) -> None:
    gateway.fault("GET", "/v1/operations/", Fault.drop_before(), Fault.drop_after(), Fault.answer(503))
    with group.borrow():
        pass
    assert gateway.performed == ["lend", "reclaim"]


def test_an_operation_that_the_gateway_lost_is_asked_for_again(group: Group, gateway: FakeGateway) -> None:
    gateway.hold("lend")
    gateway.unreadable_operations.add("op-0")

    def let_go(progress: Progress) -> None:
        if progress.stage is Stage.LEND and "lend" in gateway._held:
            gateway.let_go("lend")

    with group.borrow(on_progress=let_go):
        pass
    assert len(gateway.seen("POST", ":lend")) == 2
    assert gateway.performed == ["lend", "reclaim"]


def test_a_lend_that_takes_too_long_gives_up_its_lease(
    group: Group, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "GRACE", 0.2)
    monkeypatch.setattr(calls, "POLL", 0.1)
    gateway.hold("lend")
    with pytest.raises(EbbtideError, match="not done after") as caught, group.borrow(timeout=0.2):
        pytest.fail("never entered")
    assert caught.value.code is ErrorCode.PHASE_DEADLINE
    assert gateway.seen("DELETE", "/lease/")


def test_a_goodbye_that_is_lost_harms_nobody(group: Group, gateway: FakeGateway) -> None:
    gateway.fault("DELETE", "/lease/", Fault.answer(500, "broken"))
    with group.borrow() as loan:
        pass
    assert loan.reclaimed is not None
