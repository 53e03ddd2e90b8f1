"""Weights sent by a trainer, through the gateway, to two real agents: good luck, and the bad luck there is."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide import EbbtideError, ErrorCode, Loan, Progress, Stage
from ebbtide_api.upload import CHUNK
from ebbtide_runtime.native import crc32c

from tests.support.polling import eventually
from tests.support.streaming import FILE, MIB, StreamHouse, code, weights

MEMBERS = ("chat-0", "chat-1")


def version(house: StreamHouse) -> int:
    return max(house.versions())


def test_the_whole_way(house: StreamHouse) -> None:
    before, reports = version(house), list[Progress]()
    with house.group as group, group.borrow(on_progress=reports.append) as loan:
        published = loan.publish(weights(8), version=before + 1)
        assert [house.received(member) for member in MEMBERS] == [[f"v{before + 1}"]] * 2
        eventually(lambda: [member["received"] for member in house.server()["members"]] == [[before + 1]] * 2)
        assert str(published.path) == f"handoff/v{before + 1}"
    assert house.versions() == [before + 1] * 2
    assert [house.copies(member) for member in MEMBERS] == [[f"v{before + 1}"]] * 2
    house.forgotten()
    sent = [report for report in reports if report.stage is Stage.PUBLISH]
    assert sent[-1].done >= sent[-1].total == published.bytes
    house.both()


def test_what_arrives_is_what_was_sent_on_every_member(house: StreamHouse) -> None:
    before, tensors = version(house), weights(8, seed=5)
    with house.group as group, group.borrow() as loan:
        loan.publish(tensors, version=before + 1)
    for member in MEMBERS:
        data = (house.layout.member_memory(member) / "weights" / f"v{before + 1}" / FILE).read_bytes()
        assert all(tensor.tobytes() in data for tensor in tensors.values())
    house.both()


def test_a_checkpoint_is_sent_from_its_files(house: StreamHouse, tmp_path: Path) -> None:
    from ebbtide.weights import publish

    before = version(house)
    folder = publish(weights(8, seed=2), tmp_path, 1).path
    with house.group as group, group.borrow() as loan:
        loan.publish_path(folder, version=before + 1)
    assert house.versions() == [before + 1] * 2


def test_a_second_upload_of_a_version_sends_nothing(house: StreamHouse) -> None:
    before, tensors = version(house), weights(8)
    with house.group as group, group.borrow() as loan:
        loan.publish(tensors, version=before + 1)
        files = [house.layout.member_memory(member) / f"handoff/v{before + 1}" / FILE for member in MEMBERS]
        written = [file.stat().st_mtime_ns for file in files]
        loan.publish(tensors, version=before + 1)
        assert [file.stat().st_mtime_ns for file in files] == written
        with pytest.raises(EbbtideError) as caught:
            loan.publish(weights(8, seed=9), version=before + 1)
        assert caught.value.code is ErrorCode.VERSION_REGRESSION
    assert house.versions() == [before + 1] * 2


def test_an_exception_half_way_gives_the_memory_back(house: StreamHouse) -> None:
    before = version(house)

    class CutError(Exception):
        pass

    def cut(report: Progress) -> None:
        if report.stage is Stage.PUBLISH:
            assert [house.received(member) for member in MEMBERS] == [[f".v{before + 1}.part"]] * 2
            raise CutError

    with pytest.raises(CutError), house.group as group, group.borrow(on_progress=cut) as loan:
        loan.publish(weights(8), version=before + 1)
    house.forgotten()
    assert house.versions() == [before] * 2
    house.both()


def test_a_sender_that_dies_is_forgotten_after_a_while(house: StreamHouse) -> None:
    before, lease = version(house), house.lent()
    assert house.begin(lease, before + 1, 8 * MIB).status_code == 200
    assert house.piece(lease, before + 1, os.urandom(MIB)).json()["received"] == {FILE: MIB}
    assert house.received("chat-1") == [f".v{before + 1}.part"]
    house.forgotten()
    answer = house.piece(lease, before + 1, b"late", MIB)
    assert code(answer, 409)["code"] == "MEMBERSHIP_CHANGED"
    house.give_back(lease)
    assert house.versions() == [before] * 2


@pytest.fixture
def lease(house: StreamHouse) -> Iterator[dict[str, object]]:
    lease = house.lent()
    yield lease
    house.give_back(lease)


def test_a_flipped_bit_is_refused_and_takes_nothing(house: StreamHouse, lease: dict[str, object]) -> None:
    new = version(house) + 1
    house.begin(lease, new, MIB)
    good = bytes(MIB)
    flipped = good[:77] + b"\x10" + good[78:]
    error = code(house.piece(lease, new, flipped, crc=crc32c(good)), 422)
    assert (error["code"], error["details"]["reason"]) == ("MANIFEST_INVALID", "CHECKSUM_MISMATCH")
    assert error["message"].startswith("chat-0: ")
    assert house.begin(lease, new, MIB).json()["received"] == {}


def test_bytes_that_were_not_announced_are_refused(house: StreamHouse, lease: dict[str, object]) -> None:
    new = version(house) + 1
    house.begin(lease, new, 100)
    assert code(house.piece(lease, new, bytes(101)), 422)["details"]["reason"] == "TORN"
    assert code(house.piece(lease, new, bytes(1), file="other.bin"), 422)["details"]["reason"] == "UNREADABLE"
    gap = code(house.piece(lease, new, bytes(10), offset=50), 409)
    assert (gap["code"], gap["details"]["received"]) == ("MEMBERSHIP_CHANGED", 0)
    assert code(house.piece(lease, new, bytes(10), file=".hidden"), 400)["code"] == "INVALID_REQUEST"


def test_a_piece_has_its_limit(house: StreamHouse, lease: dict[str, object]) -> None:
    new = version(house) + 1
    house.begin(lease, new, 2 * CHUNK)
    assert house.piece(lease, new, bytes(CHUNK)).status_code == 200
    assert code(house.piece(lease, new, bytes(CHUNK + 1)), 400)["details"]["limit"] == CHUNK


def test_a_version_that_is_not_whole_gets_no_name(house: StreamHouse, lease: dict[str, object]) -> None:
    new = version(house) + 1
    house.begin(lease, new, 100)
    house.piece(lease, new, bytes(60))
    assert code(house.named(lease, new, b"{}"), 422)["details"]["reason"] == "TORN"
    house.piece(lease, new, bytes(40), offset=60)
    assert code(house.named(lease, new, b"{}"), 422)["details"]["file"] == "manifest.json"
    house.piece(lease, new, b"{}", file="manifest.json")
    assert code(house.named(lease, new, b"{}"), 422)["details"]["reason"] == "UNREADABLE"
    assert house.received() == [f".v{new}.part"]


def test_only_the_holder_sends(house: StreamHouse, lease: dict[str, object]) -> None:
    new = version(house) + 1
    older = {**lease, "epoch": int(str(lease["epoch"])) - 1}
    assert code(house.begin(older, new, 10), 412)["code"] == "STALE_EPOCH"
    assert code(house.begin(None, new, 10), 403)["code"] == "NOT_LEASE_HOLDER"
    house.begin(lease, new, 10)
    assert code(house.piece(older, new, bytes(10)), 412)["code"] == "STALE_EPOCH"
    assert code(house.named(older, new, b"{}"), 412)["code"] == "STALE_EPOCH"
    assert house.received() == [f".v{new}.part"]


def test_a_version_below_the_served_one_is_refused_at_once(house: StreamHouse, lease: dict[str, object]) -> None:
    served = version(house)
    assert served > 0
    assert code(house.begin(lease, served, 10), 409)["code"] == "VERSION_REGRESSION"


def test_what_an_earlier_lease_left_is_not_taken_for_new(house: StreamHouse) -> None:
    before = version(house)

    def fail(loan: Loan) -> None:
        loan.publish(weights(8, seed=3), version=before + 1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), house.group as group, group.borrow() as loan:
        fail(loan)
    assert house.versions() == [before] * 2
    with house.group as group, group.borrow() as loan:
        loan.publish(weights(8, seed=4), version=before + 1)
    data = (house.layout.member_memory("chat-1") / "weights" / f"v{before + 1}" / FILE).read_bytes()
    assert weights(8, seed=4)["layer.1"].tobytes() in data


def test_an_agent_that_dies_meanwhile_gets_all_of_it_again(house: StreamHouse) -> None:
    before, killed = version(house), list[int]()

    def kill(report: Progress) -> None:
        if report.stage is Stage.PUBLISH and not killed:
            killed.append(house.pid("agent", "chat-1"))
            os.kill(killed[0], signal.SIGKILL)

    with house.group as group, group.borrow(on_progress=kill) as loan:
        loan.publish(weights(8, seed=6), version=before + 1)
    assert killed
    assert house.versions() == [before + 1] * 2
    data = (house.layout.member_memory("chat-1") / "weights" / f"v{before + 1}" / FILE).read_bytes()
    assert weights(8, seed=6)["layer.2"].tobytes() in data


def test_an_update_begun_with_the_wrong_tensors_brings_the_old_weights_back(house: StreamHouse) -> None:
    before, wrong = version(house), weights(8)
    wrong["stranger"] = wrong.pop("norm")
    with pytest.raises(EbbtideError) as caught, house.group as group, group.borrow() as loan:
        loan.publish(wrong, version=before + 1)
    assert (caught.value.code, caught.value.details["reason"]) == (ErrorCode.MANIFEST_INVALID, "TENSOR_UNKNOWN")
    house.both()
    assert house.versions() == [before] * 2
