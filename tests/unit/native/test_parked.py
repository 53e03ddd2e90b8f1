"""Parked weights: bit-exact or refused by name, never half."""

import os
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide_runtime.native import Arena, Cancel, NativeError, Parked, ParkedInfo, Status, Tag, crc32c
from ebbtide_runtime.native.library import ABI_VERSION

from .children import child, says, until
from .memory import anonymous_bytes, randomize, read, write

MIB = 1 << 20
CHUNK = 4 * MIB
SIZE = 3 * CHUNK + 5 * 64
HEADER = struct.Struct("<QIIQQQQQQI")


@pytest.fixture
def address(arena: Arena) -> int:
    return arena.allocate(Tag.WEIGHTS, SIZE)


@pytest.fixture
def data(address: int) -> bytes:
    return randomize(address, SIZE)


@pytest.fixture
def path(shm: Path) -> Path:
    return shm / "v1.park"


@pytest.fixture
def parked(arena: Arena, data: bytes, path: Path) -> Iterator[Parked]:
    made = Parked.create(path, arena, Tag.WEIGHTS, version=1, layout=7)
    yield made
    made.close()


def status_of(error: pytest.ExceptionInfo[NativeError], path: Path) -> Status:
    assert str(path) in error.value.message
    return error.value.status


def opening(path: Path) -> Status:
    with pytest.raises(NativeError) as caught:
        Parked.open(path)
    return status_of(caught, path)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def data_offset(path: Path) -> int:
    return int(HEADER.unpack_from(path.read_bytes())[8])


def reseal(path: Path, word: int, value: int) -> None:
    """Change a word of the header and make its checksum right again: a liar, not an accident."""
    raw = bytearray(path.read_bytes())
    words = list(HEADER.unpack_from(raw))
    words[word] = value
    HEADER.pack_into(raw, 0, *words)
    struct.pack_into("<I", raw, HEADER.size, crc32c(bytes(raw[: HEADER.size])))
    path.write_bytes(raw)


# Right use


def test_the_info_says_what_was_parked(parked: Parked, path: Path) -> None:
    expected = ParkedInfo(version=1, span=SIZE, chunks=4, layout=7, bytes=path.stat().st_size)
    assert parked.info == expected
    again = Parked.open(path)
    assert again.info == expected
    again.close()


def test_the_copy_is_private(parked: Parked, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_restore_is_bit_exact(
    arena: Arena, address: int, data: bytes, parked: Parked, verify: bool, threads: int
) -> None:
    arena.release(Tag.WEIGHTS)
    parked.restore(arena, Tag.WEIGHTS, threads=threads, verify=verify)
    assert read(address, SIZE) == data
    assert not arena.stats(Tag.WEIGHTS).released


def test_restore_over_live_memory_is_bit_exact(arena: Arena, address: int, data: bytes, parked: Parked) -> None:
    randomize(address, SIZE)
    parked.restore(arena, Tag.WEIGHTS)
    assert read(address, SIZE) == data


def test_another_process_of_the_same_layout_can_restore(data: bytes, parked: Parked, path: Path) -> None:
    other = Arena(1 << 30)
    place = other.allocate(Tag.WEIGHTS, SIZE)
    other.release(Tag.WEIGHTS)
    copy = Parked.open(path)
    copy.restore(other, Tag.WEIGHTS)
    assert read(place, SIZE) == data
    copy.close()
    other.close()


def test_an_open_copy_survives_its_replacement(
    arena: Arena, address: int, data: bytes, parked: Parked, path: Path
) -> None:
    newer = randomize(address, SIZE)
    Parked.create(path, arena, Tag.WEIGHTS, version=2, layout=7).close()
    parked.restore(arena, Tag.WEIGHTS)
    assert read(address, SIZE) == data
    replaced = Parked.open(path)
    assert replaced.info.version == 2
    replaced.restore(arena, Tag.WEIGHTS)
    assert read(address, SIZE) == newer
    replaced.close()
    assert os.listdir(path.parent) == [path.name]


def test_matches_sees_one_changed_byte(arena: Arena, address: int, data: bytes, parked: Parked) -> None:
    assert parked.matches(arena, Tag.WEIGHTS)
    write(address + CHUNK + 5, bytes([data[CHUNK + 5] ^ 1]))
    assert not parked.matches(arena, Tag.WEIGHTS, threads=2)


def test_matches_sees_another_span(arena: Arena, parked: Parked) -> None:
    arena.allocate(Tag.WEIGHTS, 64)
    assert not parked.matches(arena, Tag.WEIGHTS)


def test_an_empty_tag_can_be_parked(arena: Arena, path: Path) -> None:
    parked = Parked.create(path, arena, Tag.KV, version=1, layout=0)
    assert (parked.info.span, parked.info.chunks) == (0, 0)
    parked.verify()
    arena.release(Tag.KV)
    parked.restore(arena, Tag.KV)
    assert parked.matches(arena, Tag.KV)
    parked.close()


def test_verify_passes_intact_copies(parked: Parked) -> None:
    for sample in (0, 1, 3, 4, 1000):
        parked.verify(sample, threads=2)


def test_sleeping_with_a_copy_and_waking_leaves_no_memory_behind(arena: Arena, parked: Parked) -> None:
    arena.release(Tag.WEIGHTS)
    before = anonymous_bytes()
    for _ in range(5):
        parked.restore(arena, Tag.WEIGHTS)
        arena.release(Tag.WEIGHTS)
    assert anonymous_bytes() - before < MIB


# Damage


@pytest.mark.parametrize("chunk", [0, 1, 3])
def test_verify_finds_a_flipped_bit_and_names_the_chunk(parked: Parked, path: Path, chunk: int) -> None:
    flip(path, data_offset(path) + chunk * CHUNK + 77)
    with pytest.raises(NativeError) as caught:
        parked.verify()
    assert status_of(caught, path) is Status.CORRUPT
    assert f"chunk {chunk} of 4" in caught.value.message


def test_a_sample_finds_a_flipped_bit_sooner_or_later(parked: Parked, path: Path) -> None:
    flip(path, data_offset(path) + CHUNK)

    def found() -> bool:
        try:
            parked.verify(1)
        except NativeError as problem:
            return problem.status is Status.CORRUPT
        return False

    until(found)


def test_restore_refuses_a_flipped_bit_and_leaves_nothing(arena: Arena, parked: Parked, path: Path) -> None:
    arena.release(Tag.WEIGHTS)
    flip(path, data_offset(path) + 2 * CHUNK)
    with pytest.raises(NativeError) as caught:
        parked.restore(arena, Tag.WEIGHTS, verify=True)
    assert status_of(caught, path) is Status.CORRUPT
    stats = arena.stats(Tag.WEIGHTS)
    assert (stats.released, stats.resident) == (True, 0)


def test_restore_over_live_memory_never_leaves_a_mix(arena: Arena, parked: Parked, path: Path) -> None:
    flip(path, data_offset(path) + 2 * CHUNK)
    with pytest.raises(NativeError):
        parked.restore(arena, Tag.WEIGHTS)
    assert arena.stats(Tag.WEIGHTS).released


def test_without_verify_a_flipped_bit_is_copied(
    arena: Arena, address: int, data: bytes, parked: Parked, path: Path
) -> None:
    flip(path, data_offset(path))
    parked.restore(arena, Tag.WEIGHTS, verify=False)
    assert read(address, SIZE) == bytes([data[0] ^ 0x10]) + data[1:]


def test_a_copy_cut_short_while_open_is_refused(arena: Arena, parked: Parked, path: Path) -> None:
    """A mapped file would end the process with SIGBUS here."""
    os.truncate(path, data_offset(path) + CHUNK + 1)
    for attempt in (parked.verify, lambda: parked.restore(arena, Tag.WEIGHTS)):
        with pytest.raises(NativeError) as caught:
            attempt()
        assert status_of(caught, path) is Status.TRUNCATED


@pytest.mark.parametrize("length", [0, 1, 7, 100, 4096, 5000, -1])
def test_a_short_file_is_refused(parked: Parked, path: Path, length: int) -> None:
    size = path.stat().st_size
    os.truncate(path, length if length >= 0 else size + length)
    assert opening(path) is (Status.FOREIGN if 0 <= length < 8 else Status.TRUNCATED)


def test_a_long_file_is_refused(parked: Parked, path: Path) -> None:
    os.truncate(path, path.stat().st_size + 1)
    assert opening(path) is Status.TRUNCATED


@pytest.mark.parametrize("content", [b"weights", b"\0" * 100_000, b"EBBPARK2" + b"\0" * 5000])
def test_a_foreign_file_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert opening(path) is Status.FOREIGN


def test_a_missing_file_and_a_link_are_refused(parked: Parked, path: Path) -> None:
    assert opening(path.parent / "none") is Status.NOT_FOUND
    (path.parent / "link").symlink_to(path)
    assert opening(path.parent / "link") is Status.FOREIGN


def test_another_abi_is_refused(parked: Parked, path: Path) -> None:
    reseal(path, 1, ABI_VERSION + 1)
    assert opening(path) is Status.WRONG_ABI
    reseal(path, 1, ABI_VERSION - 1)
    assert opening(path) is Status.WRONG_ABI


@pytest.mark.parametrize("offset", range(16, HEADER.size, 9))
def test_a_flipped_bit_in_the_header_is_refused(parked: Parked, path: Path, offset: int) -> None:
    flip(path, offset)
    assert opening(path) is Status.CORRUPT


def test_a_flipped_bit_in_the_checksums_is_refused(parked: Parked, path: Path) -> None:
    flip(path, 4096 + 6)
    assert opening(path) is Status.CORRUPT


@pytest.mark.parametrize(
    ("word", "value"), [(2, 4096), (5, 1 << 62), (5, SIZE + CHUNK), (6, 4096), (7, 1 << 61), (8, 0), (8, 1 << 63)]
)
def test_a_header_that_contradicts_itself_is_refused(parked: Parked, path: Path, word: int, value: int) -> None:
    reseal(path, word, value)
    assert opening(path) is Status.CORRUPT


def test_a_span_beyond_the_file_is_refused(parked: Parked, path: Path) -> None:
    reseal(path, 5, SIZE + 64)
    assert opening(path) is Status.TRUNCATED


# Misuse and bad luck


def test_another_layout_of_memory_is_refused_and_nothing_changes(
    arena: Arena, address: int, data: bytes, parked: Parked
) -> None:
    arena.allocate(Tag.WEIGHTS, 64)
    with pytest.raises(NativeError) as caught:
        parked.restore(arena, Tag.WEIGHTS)
    assert caught.value.status is Status.MISMATCH
    assert read(address, SIZE) == data


def test_a_released_tag_cannot_be_parked(arena: Arena, data: bytes, path: Path) -> None:
    arena.release(Tag.WEIGHTS)
    with pytest.raises(NativeError) as caught:
        Parked.create(path, arena, Tag.WEIGHTS, version=1, layout=7)
    assert caught.value.status is Status.RELEASED
    assert os.listdir(path.parent) == []


def test_a_cancelled_copy_leaves_no_file(arena: Arena, data: bytes, path: Path) -> None:
    cancel = Cancel()
    cancel.set()
    assert cancel.is_set
    with pytest.raises(NativeError) as caught:
        Parked.create(path, arena, Tag.WEIGHTS, version=1, layout=7, cancel=cancel)
    assert caught.value.status is Status.CANCELLED
    assert os.listdir(path.parent) == []


def test_a_running_copy_can_be_cancelled_and_holds_off_release(arena: Arena, path: Path) -> None:
    size = 512 * MIB
    write(arena.allocate(Tag.WEIGHTS, size), b"x" * size)
    cancel, failure = Cancel(), []

    def make() -> None:
        try:
            Parked.create(path, arena, Tag.WEIGHTS, version=1, layout=7, nice=19, cancel=cancel)
        except NativeError as problem:
            failure.append(problem.status)

    thread = threading.Thread(target=make)
    thread.start()
    until(lambda: _is_held(arena))
    with pytest.raises(NativeError) as caught:
        arena.release(Tag.WEIGHTS)
    assert caught.value.status is Status.BUSY
    cancel.set()
    thread.join()
    assert failure == [Status.CANCELLED]
    assert os.listdir(path.parent) == []


def _is_held(arena: Arena) -> bool:
    try:
        arena.restore(Tag.WEIGHTS)  # of memory that is not released: changes nothing, but waits for nobody
    except NativeError as problem:
        return problem.status is Status.BUSY
    return False


def test_making_a_copy_changes_nobody_elses_priority(arena: Arena, data: bytes, path: Path) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    Parked.create(path, arena, Tag.WEIGHTS, version=1, layout=7, nice=19).close()
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_a_maker_killed_midway_leaves_no_broken_file(shm: Path) -> None:
    """Whatever the moment, the name holds nothing or a whole copy, and nothing else is left behind."""
    path = shm / "v.park"
    for attempt in range(6):
        with child("park", path, 64) as maker:
            says(maker, "parking")
            if attempt % 2:
                until(path.exists)
            maker.kill()
            maker.wait()
        if path.exists():
            copy = Parked.open(path)
            copy.verify()
            copy.close()
        assert {name for name in os.listdir(shm) if ".tmp." not in name} <= {"v.park"}


@pytest.mark.parametrize("threads", [0, 65])
def test_an_odd_number_of_threads_is_refused(arena: Arena, parked: Parked, threads: int) -> None:
    with pytest.raises(NativeError) as caught:
        parked.restore(arena, Tag.WEIGHTS, threads=threads)
    assert caught.value.status is Status.INVALID_ARGUMENT


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_no_room_is_known_before_anything_is_written(arena: Arena, data: bytes, small_disk: Path) -> None:
    with pytest.raises(NativeError) as caught:
        Parked.create(small_disk / "v1.park", arena, Tag.WEIGHTS, version=1, layout=7)
    assert caught.value.status is Status.NO_MEMORY
    assert "needs" in caught.value.message
    assert os.listdir(small_disk) == []


def test_a_closed_copy_raises(parked: Parked) -> None:
    parked.close()
    with pytest.raises(NativeError) as caught:
        parked.verify()
    assert caught.value.status is Status.INVALID_STATE
