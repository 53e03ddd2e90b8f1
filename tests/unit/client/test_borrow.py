"""Borrowing and giving back, against a gateway that can lie."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from ebbtide import (
    Connection,
    Drain,
    DrainMode,
    EbbtideError,
    ErrorCode,
    Group,
    Loan,
    Progress,
    Stage,
)
from ebbtide_api.errors import ErrorBody

from tests.support.fake_gateway import FakeGateway

WEIGHTS = {"w": np.arange(8, dtype=np.float32)}


def publish_and_raise(loan: Loan, problem: BaseException) -> None:
    loan.publish(WEIGHTS, version=5)
    raise problem


def test_a_borrow_lends_publishes_and_gives_back(group: Group, gateway: FakeGateway) -> None:
    with group.borrow() as loan:
        assert gateway.owner != "engine"
        assert loan.freed_mib == 1200.5
        assert loan.lend.members[0].member == "chat-0"
        assert loan.epoch == gateway.epoch
        loan.publish(WEIGHTS, version=7)
        assert loan.reclaimed is None
    assert gateway.owner == "engine"
    assert gateway.version == 7
    assert gateway.current is None
    assert loan.reclaimed is not None
    assert loan.reclaimed.weight_version == 7
    assert loan.reclaimed.members[0].result.canary is not None
    assert gateway.performed == ["lend", "reclaim"]


def test_the_reclaim_names_the_folder_that_was_published(group: Group, gateway: FakeGateway) -> None:
    with group.borrow() as loan:
        published = loan.publish(WEIGHTS, version=3)
    (reclaim,) = gateway.seen("POST", ":reclaim")
    assert reclaim.body == {"version": 3, "source": {"path": str(published.path)}}
    assert (published.path / "manifest.json").is_file()


def test_the_last_published_version_is_the_one_that_serves(group: Group, gateway: FakeGateway) -> None:
    with group.borrow() as loan:
        loan.publish(WEIGHTS, version=3)
        loan.publish({"w": WEIGHTS["w"] + 1}, version=4)
        assert loan.published is not None
        assert loan.published.version == 4
    assert gateway.version == 4


def test_without_a_publication_the_old_weights_come_back(group: Group, gateway: FakeGateway) -> None:
    with group.borrow():
        pass
    (reclaim,) = gateway.seen("POST", ":reclaim")
    assert reclaim.body == {}


def test_every_mutating_call_has_its_own_key_and_the_epoch(group: Group, gateway: FakeGateway) -> None:
    with group.borrow():
        epoch = str(gateway.epoch)
    posts = gateway.seen("POST", "/v1/groups")
    keys = [each.headers["idempotency-key"] for each in posts]
    assert len(set(keys)) == len(keys) == 3
    assert [each.headers.get("ebbtide-epoch") for each in posts] == [None, epoch, epoch]
    assert [each.headers.get("ebbtide-deadline") for each in posts] == [None, "300", "300"]


def test_the_lease_says_who_holds_it(connection: Connection, gateway: FakeGateway) -> None:
    with (
        Group("actor", connection=connection, holder="trainer-1", pid=4242) as group,
        group.borrow(ttl=12, need_mib=512),
    ):
        pass
    (ask,) = gateway.seen("POST", "/lease")
    assert ask.body == {"holder": "trainer-1", "ttlSeconds": 12, "pid": 4242, "needMiB": 512}


def test_by_default_this_process_is_the_holder(group: Group, gateway: FakeGateway) -> None:
    with group.borrow():
        pass
    (ask,) = gateway.seen("POST", "/lease")
    assert ask.body["pid"] == os.getpid()
    assert ask.body["holder"].endswith(f"/{os.getpid()}")


def test_a_gateway_elsewhere_is_told_no_pid() -> None:
    with Group("actor", connection=Connection("https://gateway.example")) as group:
        assert group.borrow()._core.terms.pid is None
    with Group("actor", connection=Connection("https://gateway.example"), pid=7) as group:
        assert group.borrow()._core.terms.pid == 7


def test_a_hand_off_folder_that_is_not_here_is_told(group: Group, gateway: FakeGateway) -> None:
    gateway.handoff.rmdir()
    with group.borrow() as loan, pytest.raises(EbbtideError) as caught:
        loan.publish(WEIGHTS, version=1)
    assert caught.value.code is ErrorCode.TRANSPORT_IMPOSSIBLE
    assert str(gateway.handoff) in caught.value.message


def test_a_group_that_takes_no_weights_is_told_by_name(group: Group, gateway: FakeGateway, tmp_path: Path) -> None:
    gateway.takes = False
    with group.borrow() as loan, pytest.raises(EbbtideError) as caught:
        loan.publish(WEIGHTS, version=1)
    assert caught.value.code is ErrorCode.TRANSPORT_IMPOSSIBLE
    assert "group actor takes no new weights" in caught.value.message
    assert "without publishing" in caught.value.next_action


def test_drain_and_level_travel_with_the_lend(group: Group, gateway: FakeGateway) -> None:
    with group.borrow(drain=Drain(mode=DrainMode.ABORT, timeout=5), level=2):
        pass
    (lend,) = gateway.seen("POST", ":lend")
    assert lend.body["drain"]["mode"] == "Abort"
    assert lend.body["level"] == 2


def test_wrong_terms_are_refused_before_any_call(group: Group, gateway: FakeGateway) -> None:
    with pytest.raises(EbbtideError, match="ttl") as caught, group.borrow(ttl=-1):
        pytest.fail("never entered")
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert gateway.requests == []


def test_servers_and_state(group: Group, gateway: FakeGateway) -> None:
    (server,) = group.servers()
    assert (server.name, server.model, server.url) == ("chat", "tiny", "http://127.0.0.1:8000")
    assert server.serving
    gateway.version = 9
    assert group.servers()[0].weight_version == 9
    with group.borrow():
        assert not group.servers()[0].serving
        assert group.state().owner != "engine"
    assert group.state().owner == "engine"


# When the block fails


def test_an_exception_gives_back_the_old_weights_and_goes_on(group: Group, gateway: FakeGateway) -> None:
    with pytest.raises(ZeroDivisionError), group.borrow() as loan:
        publish_and_raise(loan, ZeroDivisionError())
    assert gateway.version == 0
    assert gateway.owner == "engine"
    assert gateway.seen("POST", ":reclaim")[0].body == {}
    assert loan.reclaimed is not None


def test_ctrl_c_gives_back_the_old_weights(group: Group, gateway: FakeGateway) -> None:
    with pytest.raises(KeyboardInterrupt), group.borrow() as loan:
        publish_and_raise(loan, KeyboardInterrupt())
    assert gateway.version == 0
    assert gateway.current is None


def test_if_giving_back_fails_too_the_first_exception_says_so(group: Group, gateway: FakeGateway) -> None:
    gateway.fail("reclaim", ErrorBody(code=ErrorCode.DEVICE_NOT_FREE, message="cpu0 is not free."))
    with pytest.raises(ZeroDivisionError) as caught, group.borrow():
        1 / 0  # noqa: B018
    assert "DEVICE_NOT_FREE" in caught.value.__notes__[0]
    assert isinstance(caught.value.__context__, EbbtideError)
    assert gateway.current is None


def test_a_refused_version_raises_on_leaving_and_the_lease_ends(group: Group, gateway: FakeGateway) -> None:
    details = {"reason": "SHAPE_MISMATCH", "tensor": "w", "message": "a name that EbbtideError also has"}
    gateway.fail("reclaim", ErrorBody(code=ErrorCode.MANIFEST_INVALID, message="w has another shape.", details=details))
    with pytest.raises(EbbtideError) as caught, group.borrow() as loan:
        loan.publish(WEIGHTS, version=5)
    assert caught.value.code is ErrorCode.MANIFEST_INVALID
    assert caught.value.details["tensor"] == "w"
    assert caught.value.details["operation"]
    assert gateway.current is None
    assert gateway.version == 0
    assert loan.reclaimed is None


def test_a_lend_that_fails_raises_and_the_lease_ends(group: Group, gateway: FakeGateway) -> None:
    error = ErrorBody(
        code=ErrorCode.RELEASE_INCOMPLETE, message="chat-0 still holds 900 MiB.", details={"usedMiB": 900}
    )
    gateway.fail("lend", error)
    with pytest.raises(EbbtideError, match="still holds") as caught, group.borrow():
        pytest.fail("never entered")
    assert caught.value.code is ErrorCode.RELEASE_INCOMPLETE
    assert gateway.current is None
    assert gateway.owner == "engine"


def test_publishing_outside_the_block_is_refused(group: Group, gateway: FakeGateway) -> None:
    loan = group.borrow()
    with pytest.raises(EbbtideError) as early:
        loan.publish(WEIGHTS, version=1)
    with loan:
        pass
    with pytest.raises(EbbtideError) as late:
        loan.publish(WEIGHTS, version=1)
    with pytest.raises(EbbtideError, match="used once"), loan:
        pytest.fail("never entered")
    assert early.value.code is late.value.code is ErrorCode.NOT_LEASE_HOLDER
    with pytest.raises(EbbtideError, match="not borrowed yet"):
        _ = group.borrow().freed_mib


# The queue


def test_a_borrow_waits_for_its_turn(group: Group, gateway: FakeGateway) -> None:
    first = gateway.occupy()
    reports: list[Progress] = []

    def report(progress: Progress) -> None:
        reports.append(progress)
        if progress.stage is Stage.QUEUE:
            gateway.release(first)

    with group.borrow(on_progress=report):
        assert gateway.current is not None
    assert reports[0].stage is Stage.QUEUE
    assert "1 before us" in reports[0].text


def test_impatience_leaves_the_queue(group: Group, gateway: FakeGateway) -> None:
    first = gateway.occupy()
    with pytest.raises(EbbtideError, match="not free within") as caught, group.borrow(patience=0.1):
        pytest.fail("never entered")
    assert caught.value.code is ErrorCode.PHASE_DEADLINE
    gateway.release(first)
    assert gateway.current is None


def test_ctrl_c_in_the_queue_leaves_it(group: Group, gateway: FakeGateway) -> None:
    first = gateway.occupy()

    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), group.borrow(on_progress=interrupt):
        pytest.fail("never entered")
    gateway.release(first)
    assert gateway.current is None


def test_the_manifest_in_the_handoff_is_whole(group: Group, gateway: FakeGateway, tmp_path: Path) -> None:
    with group.borrow() as loan:
        published = loan.publish(WEIGHTS, version=1)
        copied = loan.publish_path(published.path / "model-00001.safetensors", version=2)
    first, second = (json.loads((each.path / "manifest.json").read_text()) for each in (published, copied))
    assert first["tensors"] == second["tensors"]
    assert second["version"] == gateway.version == 2
