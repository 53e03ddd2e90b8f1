"""The parked copy of one rank, over the real arena: when it is made, trusted, and thrown away."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide_runtime.engine import storage
from ebbtide_runtime.engine.parking import Contents, Parking
from ebbtide_runtime.engine.storage import Region
from ebbtide_runtime.native import Arena, NativeError, Parked, Status, Tag

from tests.support.launching import until

MIB = 1 << 20
SIZE = 9 * MIB
FIRST = Contents(version=0, digest=77)


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(64 * MIB)
    yield made
    made.close()


@pytest.fixture
def region(arena: Arena) -> Region:
    found = Region(arena.allocate(Tag.WEIGHTS, SIZE), SIZE)
    storage.view(found)[:] = 7
    return found


@pytest.fixture
def parking(tmp_path: Path, arena: Arena, region: Region) -> Parking:
    return Parking(str(tmp_path), 1, 2, arena)


def file(folder: Path) -> Path:
    return folder / "rank1of2.park"


def test_there_is_none_at_first(parking: Parking, tmp_path: Path) -> None:
    assert (parking.state(), parking.running, parking.error) == (None, False, "")
    assert os.listdir(tmp_path) == []


def test_it_is_made_beside(parking: Parking, tmp_path: Path) -> None:
    parking.start(FIRST)
    until(lambda: not parking.running, "the copy")
    state = parking.state()
    assert state is not None
    assert (state.version, state.valid) == (0, True)
    assert state.mib == pytest.approx(SIZE / MIB, abs=4)
    assert os.listdir(tmp_path) == ["rank1of2.park"]


def test_a_copy_that_is_there_costs_nothing(parking: Parking) -> None:
    parking.start(FIRST)
    assert parking.ensure(FIRST) == 0
    assert parking.ensure(FIRST) == 0


def test_a_copy_that_is_not_there_is_made_and_counted(parking: Parking) -> None:
    assert parking.ensure(FIRST) >= SIZE
    assert parking.ensure(FIRST) == 0


def test_starting_again_makes_no_second_one(parking: Parking, tmp_path: Path) -> None:
    parking.ensure(FIRST)
    before = file(tmp_path).stat().st_ino
    parking.start(FIRST)
    until(lambda: not parking.running, "nothing")
    assert file(tmp_path).stat().st_ino == before


def test_sleep_and_wake(parking: Parking, arena: Arena, region: Region) -> None:
    parking.ensure(FIRST)
    arena.release(Tag.WEIGHTS)
    parking.restore()
    assert (storage.view(region) == 7).all()


def test_a_dropped_copy_is_gone(parking: Parking, tmp_path: Path) -> None:
    parking.ensure(FIRST)
    parking.drop()
    assert (parking.state(), os.listdir(tmp_path)) == (None, [])
    parking.drop()


@pytest.mark.parametrize("other", [Contents(0, 78), Contents(1, 77)])
def test_a_copy_of_other_contents_is_made_anew(parking: Parking, other: Contents) -> None:
    parking.ensure(FIRST)
    assert parking.ensure(other) >= SIZE
    parking.start(FIRST)
    assert parking.ensure(FIRST) == 0
    state = parking.state()
    assert state is not None
    assert state.version == 0


def test_dropping_ends_a_copy_that_is_being_made(parking: Parking, tmp_path: Path) -> None:
    for _ in range(5):
        parking.start(FIRST)
        parking.drop()
        assert (parking.running, parking.state()) == (False, None)
    assert os.listdir(tmp_path) == []


def test_a_new_version_replaces_the_old_one(parking: Parking, arena: Arena, region: Region) -> None:
    parking.ensure(FIRST)
    parking.drop()
    storage.view(region)[:] = 9
    assert parking.ensure(Contents(3, 77)) >= SIZE
    state = parking.state()
    assert state is not None
    assert state.version == 3
    arena.release(Tag.WEIGHTS)
    parking.restore()
    assert (storage.view(region) == 9).all()


def test_a_copy_left_by_an_earlier_engine_is_shared(
    parking: Parking, tmp_path: Path, arena: Arena, region: Region
) -> None:
    Parking(str(tmp_path), 1, 2, arena).ensure(FIRST)
    inode = file(tmp_path).stat().st_ino
    parking.ensure(FIRST)
    assert file(tmp_path).stat().st_ino == inode


@pytest.mark.parametrize("what", ["bytes", "version", "layout", "torn", "foreign"])
def test_a_copy_of_anything_else_is_made_anew(
    parking: Parking, tmp_path: Path, arena: Arena, region: Region, what: str
) -> None:
    before = {"version": Contents(5, 77), "layout": Contents(0, 78)}.get(what, FIRST)
    Parking(str(tmp_path), 1, 2, arena).ensure(before)
    inode = file(tmp_path).stat().st_ino
    if what == "bytes":
        storage.view(region)[5 * MIB] = 8
    if what == "torn":
        os.truncate(file(tmp_path), 5 * MIB)
    if what == "foreign":
        file(tmp_path).write_bytes(b"not a copy")
    parking.ensure(FIRST)
    assert file(tmp_path).stat().st_ino != inode
    assert Parked.open(str(file(tmp_path))).matches(arena, Tag.WEIGHTS)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as target:
        target.seek(offset)
        byte = target.read(1)[0]
        target.seek(offset)
        target.write(bytes([byte ^ 1]))


def test_a_copy_that_rots_is_noticed_before_weights_are_given_away_for_it(parking: Parking, tmp_path: Path) -> None:
    parking.ensure(FIRST)
    size = file(tmp_path).stat().st_size
    for at in range(size - SIZE, size, 2 * MIB):
        flip(file(tmp_path), at)
    assert parking.ensure(FIRST) >= SIZE
    assert parking.error == ""


def test_a_copy_that_rots_while_asleep_is_refused(parking: Parking, tmp_path: Path, arena: Arena) -> None:
    parking.ensure(FIRST)
    arena.release(Tag.WEIGHTS)
    flip(file(tmp_path), file(tmp_path).stat().st_size - 100)
    with pytest.raises(NativeError) as caught:
        parking.restore()
    assert caught.value.status is Status.CORRUPT
    assert arena.stats(Tag.WEIGHTS).released


def test_a_folder_that_is_gone_is_said(tmp_path: Path, arena: Arena, region: Region) -> None:
    parking = Parking(str(tmp_path / "gone"), 0, 1, arena)
    with pytest.raises(NativeError):
        parking.ensure(FIRST)
    parking.start(FIRST)
    until(lambda: not parking.running, "the failure")
    assert (parking.state(), parking.error != "") == (None, True)


def test_a_failure_beside_is_forgotten_once_it_works(parking: Parking, tmp_path: Path) -> None:
    os.rename(tmp_path, tmp_path.with_name("away"))
    parking.start(FIRST)
    until(lambda: not parking.running, "the failure")
    assert parking.error
    os.rename(tmp_path.with_name("away"), tmp_path)
    parking.ensure(FIRST)
    assert parking.error == ""
