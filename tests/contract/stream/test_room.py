"""Streamed weights and host memory: refused before a byte is taken; and a large file, which nobody holds whole."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from ebbtide import EbbtideError, ErrorCode

from tests.support.streaming import DEVICES, MIB, StreamHouse, weights

MEMBERS = ("chat-0", "chat-1")


def test_no_room_is_said_with_its_numbers_before_a_byte_is_taken(tmp_path: Path) -> None:
    colocation = {"group": "actor", "devices": DEVICES, "hostMemoryLimit": "20Mi"}
    house = StreamHouse(tmp_path, weights(24), colocation=colocation, engine={"port": 21100})
    try:
        house.start()
        house.both()
        with pytest.raises(EbbtideError) as caught, house.group as group, group.borrow() as loan:
            loan.publish(weights(24), version=1)
        error = caught.value
        assert (error.code, error.status) == (ErrorCode.HOST_MEMORY_INSUFFICIENT, 507)
        assert error.details["needMiB"] == pytest.approx(24, abs=0.1)
        assert error.details["availableMiB"] == 20
        assert error.details["member"] in MEMBERS
        house.forgotten()
        house.both()
        assert house.versions() == [0, 0]
    finally:
        house.close()


def test_183_mib_reach_two_members_and_nobody_holds_them_whole(tmp_path: Path) -> None:
    tensors = weights(183)
    house = StreamHouse(tmp_path, tensors, engine={"port": 21200})
    try:
        house.start()
        house.both()
        assert house.operator is not None
        watched = {name: psutil.Process(house.pid("agent", name)) for name in MEMBERS}
        watched["operator"] = psutil.Process(house.operator.pid)
        before = {name: process.memory_info().rss for name, process in watched.items()}
        with house.group as group, group.borrow() as loan:
            published = loan.publish(tensors, version=1)
            grown = {name: process.memory_info().rss - before[name] for name, process in watched.items()}
        assert published.bytes >= 182 * MIB
        assert house.versions() == [1, 1]
        assert all(size < 100 * MIB for size in grown.values()), grown
    finally:
        house.close()
