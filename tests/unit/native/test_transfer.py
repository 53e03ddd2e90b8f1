"""Checksums against an independent table, copies byte by byte, and ingest from files that cannot be trusted."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest
from ebbtide_runtime.native import NativeError, Range, Status, copy, crc32c, ingest
from hypothesis import given, settings
from hypothesis import strategies as st

from .memory import read, write

MIB = 1 << 20


def reference(data: bytes, seed: int = 0) -> int:
    """CRC32C bit by bit, from its definition."""
    crc = seed ^ 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


# RFC 3720, B.4
@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (b"\0" * 32, 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_known_checksums(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


@given(st.binary(max_size=3000), st.integers(0, 2**32 - 1))
def test_checksums_follow_the_definition(data: bytes, seed: int) -> None:
    assert crc32c(data, seed) == reference(data, seed)


@settings(max_examples=20)
@given(st.integers(0, 40_000), st.integers(0, 40_000), st.integers(0, 63))
def test_checksums_carry_on(first: int, second: int, shift: int) -> None:
    data = os.urandom(shift + first + second)[shift:]
    assert crc32c(data[first:], crc32c(data[:first])) == crc32c(data)


def test_any_contiguous_buffer_will_do(tmp_path: Path) -> None:
    data = os.urandom(100_000)
    (tmp_path / "f").write_bytes(data)
    with (tmp_path / "f").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        read_only = memoryview(mapped)
        assert crc32c(mapped) == crc32c(data)
        assert crc32c(read_only[3:]) == crc32c(data[3:])
        read_only.release()
    assert crc32c(bytearray(data)) == crc32c(data)
    assert crc32c((ctypes.c_char * len(data)).from_buffer_copy(data)) == crc32c(data)


def test_other_buffers_are_refused() -> None:
    with pytest.raises(BufferError):
        crc32c(memoryview(b"abcdef")[::2])
    with pytest.raises(TypeError):
        crc32c("text")  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1023, 1024, 1025, 4097, 2 * MIB - 1, 5 * MIB + 3])
@pytest.mark.parametrize("shift", [0, 1, 31])
def test_copies_are_exact_at_any_size_and_alignment(size: int, shift: int) -> None:
    data = os.urandom(size)
    source = ctypes.create_string_buffer(size + 64)
    target = ctypes.create_string_buffer(b"\xee" * (size + 128), size + 128)
    start = ctypes.addressof(target) + shift
    write(ctypes.addressof(source) + 7, data)
    copy(start, ctypes.addressof(source) + 7, size, threads=2)
    assert read(start, size) == data
    assert read(ctypes.addressof(target), shift) == b"\xee" * shift
    assert read(start + size, 64) == b"\xee" * 64


class Files:
    """A source with content and an empty destination."""

    def __init__(self, folder: Path, data: bytes) -> None:
        (folder / "source").write_bytes(data)
        self.destination = folder / "destination"
        self.source_fd = os.open(folder / "source", os.O_RDONLY)
        self.destination_fd = os.open(self.destination, os.O_RDWR | os.O_CREAT, 0o600)

    def ingest(self, *ranges: tuple[int, int], threads: int = 2) -> list[int]:
        try:
            return ingest(self.source_fd, self.destination_fd, [Range(*each) for each in ranges], threads)
        finally:
            os.close(self.source_fd)
            os.close(self.destination_fd)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_ingest_copies_and_sums_each_range(shm: Path, threads: int) -> None:
    data = os.urandom(20 * MIB + 17)
    ranges = [(0, 8), (8, 9 * MIB), (9 * MIB + 8, 0), (9 * MIB + 8, len(data) - 9 * MIB - 8)]
    found = Files(shm, data).ingest(*ranges, threads=threads)
    assert found == [crc32c(data[offset : offset + length]) for offset, length in ranges]
    assert (shm / "destination").read_bytes() == data


def test_ingest_leaves_the_rest_of_the_destination_alone(shm: Path) -> None:
    data = os.urandom(1000)
    assert Files(shm, data).ingest((200, 100)) == [crc32c(data[200:300])]
    assert (shm / "destination").read_bytes() == b"\0" * 200 + data[200:300]


def test_nothing_to_ingest_is_fine(shm: Path) -> None:
    assert Files(shm, b"x").ingest() == []


def failing(files: Files, *ranges: tuple[int, int]) -> NativeError:
    with pytest.raises(NativeError) as caught:
        files.ingest(*ranges)
    return caught.value


def test_a_source_that_ends_early_is_named(shm: Path) -> None:
    problem = failing(Files(shm, b"x" * 1000), (0, 500), (500, 501))
    assert problem.status is Status.TRUNCATED
    assert "ends at 1000, within range 1" in problem.message


def test_a_range_past_any_file_is_refused(shm: Path) -> None:
    for bad in ((2**63, 1), (1, 2**63 - 1), (0, 2**64 - 1)):
        assert failing(Files(shm, b"x"), bad).status is Status.INVALID_ARGUMENT


def test_a_closed_descriptor_is_an_error(shm: Path) -> None:
    files = Files(shm, b"x")
    with pytest.raises(NativeError) as caught:
        ingest(1 << 20, files.destination_fd, [Range(0, 1)])
    assert caught.value.status is Status.IO
    files.ingest()


def test_a_full_destination_is_an_error(shm: Path, small_disk: Path) -> None:
    (shm / "source").write_bytes(b"x" * 3 * MIB)
    source, destination = os.open(shm / "source", os.O_RDONLY), os.open(small_disk / "d", os.O_RDWR | os.O_CREAT)
    with pytest.raises(NativeError) as caught:
        ingest(source, destination, [Range(0, 3 * MIB)])
    assert caught.value.status is Status.NO_MEMORY
    os.close(source)
    os.close(destination)
