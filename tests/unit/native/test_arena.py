"""The arena: addresses that outlive their memory, measured by the kernel."""

import os
import signal

import pytest
from ebbtide_runtime.native import Arena, NativeError, Status, Tag
from hypothesis import given, settings
from hypothesis import strategies as st

from .children import child, says
from .memory import anonymous_bytes, randomize, read, write

MIB = 1 << 20
SIZE = 64 * MIB


def test_reserving_takes_no_memory(arena: Arena) -> None:
    stats = arena.stats(Tag.WEIGHTS)
    assert stats.reserved == 8 << 30
    assert (stats.span, stats.live, stats.resident, stats.released, stats.blocks) == (0, 0, 0, False, 0)


def test_memory_is_zero_and_writable(arena: Arena) -> None:
    address = arena.allocate(Tag.KV, SIZE)
    assert read(address, SIZE) == b"\0" * SIZE
    data = randomize(address, SIZE)
    assert read(address, SIZE) == data


def test_release_gives_the_memory_back_and_restore_keeps_the_addresses(arena: Arena) -> None:
    before = anonymous_bytes()
    address = arena.allocate(Tag.WEIGHTS, SIZE)
    randomize(address, SIZE)
    assert anonymous_bytes() - before >= SIZE
    assert arena.stats(Tag.WEIGHTS).resident >= SIZE
    arena.release(Tag.WEIGHTS)
    assert abs(anonymous_bytes() - before) < 4 * MIB
    released = arena.stats(Tag.WEIGHTS)
    assert (released.resident, released.released, released.live) == (0, True, SIZE)
    arena.restore(Tag.WEIGHTS)
    assert read(address, SIZE) == b"\0" * SIZE
    write(address, b"again")
    assert read(address, 5) == b"again"
    assert not arena.stats(Tag.WEIGHTS).released


def test_tags_are_apart(arena: Arena) -> None:
    weights, kv = arena.allocate(Tag.WEIGHTS, MIB), arena.allocate(Tag.KV, MIB)
    write(weights, b"w" * MIB)
    write(kv, b"k" * MIB)
    arena.release(Tag.KV)
    assert read(weights, MIB) == b"w" * MIB
    assert arena.stats(Tag.KV).resident == 0
    assert arena.base(Tag.WEIGHTS) != arena.base(Tag.KV)


def test_release_and_restore_may_be_repeated(arena: Arena) -> None:
    address = arena.allocate(Tag.KV, MIB)
    arena.release(Tag.KV)
    arena.release(Tag.KV)
    arena.restore(Tag.KV)
    write(address, b"kept")
    arena.restore(Tag.KV)
    assert read(address, 4) == b"kept"


def test_prefault_takes_the_memory_of_the_span_at_once(arena: Arena) -> None:
    arena.allocate(Tag.WEIGHTS, SIZE)
    arena.release(Tag.WEIGHTS)
    arena.restore(Tag.WEIGHTS, threads=2, prefault=True)
    assert SIZE <= arena.stats(Tag.WEIGHTS).resident <= SIZE + 2 * MIB


def test_without_prefault_nothing_is_taken(arena: Arena) -> None:
    arena.allocate(Tag.WEIGHTS, SIZE)
    arena.release(Tag.WEIGHTS)
    arena.restore(Tag.WEIGHTS)
    assert arena.stats(Tag.WEIGHTS).resident == 0


def test_touching_released_memory_ends_the_process() -> None:
    with child("touch-released") as process:
        says(process, "released")
        assert process.wait(30) == -signal.SIGSEGV


def test_a_forked_child_holds_no_memory_that_a_release_should_free(arena: Arena) -> None:
    # A child of this process has its other memory too, however much that is by now.
    before = anonymous_bytes(os.getpid())
    address = arena.allocate(Tag.WEIGHTS, SIZE)
    randomize(address, SIZE)
    stop, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(stop, 1)
        os._exit(0)
    try:
        arena.release(Tag.WEIGHTS)
        assert anonymous_bytes(pid) < before + SIZE // 2
    finally:
        os.write(go, b"x")
        os.waitpid(pid, 0)
        os.close(stop)
        os.close(go)


def test_large_blocks_start_on_huge_pages(arena: Arena) -> None:
    arena.allocate(Tag.WEIGHTS, 100)
    assert arena.allocate(Tag.WEIGHTS, 2 * MIB) % (2 * MIB) == 0


def test_a_freed_block_is_used_again(arena: Arena) -> None:
    first = arena.allocate(Tag.WEIGHTS, SIZE)
    arena.allocate(Tag.WEIGHTS, MIB)
    arena.free(first)
    assert arena.allocate(Tag.WEIGHTS, SIZE) == first


def test_a_freed_large_block_gives_its_memory_back(arena: Arena) -> None:
    address = arena.allocate(Tag.WEIGHTS, SIZE)
    kept = arena.allocate(Tag.WEIGHTS, MIB)
    write(kept, b"k" * MIB)
    write(address, b"x" * SIZE)
    arena.free(address)
    assert arena.stats(Tag.WEIGHTS).resident <= 2 * MIB
    assert read(kept, MIB) == b"k" * MIB


def test_the_span_ends_at_the_highest_live_block(arena: Arena) -> None:
    low = arena.allocate(Tag.WEIGHTS, 1000)
    high = arena.allocate(Tag.WEIGHTS, 1000)
    assert arena.stats(Tag.WEIGHTS).span == 2048
    arena.free(low)
    assert arena.stats(Tag.WEIGHTS).span == 2048
    arena.free(high)
    assert arena.stats(Tag.WEIGHTS).span == 0


def test_free_while_released_is_bookkeeping_only(arena: Arena) -> None:
    address = arena.allocate(Tag.WEIGHTS, SIZE)
    arena.release(Tag.WEIGHTS)
    arena.free(address)
    assert arena.stats(Tag.WEIGHTS).live == 0
    arena.restore(Tag.WEIGHTS)
    assert arena.allocate(Tag.WEIGHTS, SIZE) == address


def status_of(arena: Arena, *arguments: int) -> Status:
    with pytest.raises(NativeError) as caught:
        arena.allocate(*arguments)  # type: ignore[arg-type]
    return caught.value.status


def test_bad_requests_are_refused(arena: Arena) -> None:
    assert status_of(arena, 7, 64) is Status.INVALID_ARGUMENT
    assert status_of(arena, Tag.KV, 0) is Status.INVALID_ARGUMENT
    assert status_of(arena, Tag.KV, 64, 3) is Status.INVALID_ARGUMENT
    assert status_of(arena, Tag.KV, 64, 4 * MIB) is Status.INVALID_ARGUMENT
    assert status_of(arena, Tag.KV, (8 << 30) + 1) is Status.FULL
    assert status_of(arena, Tag.KV, 2**64 - 1) is Status.FULL


def test_a_released_tag_refuses_allocation(arena: Arena) -> None:
    arena.release(Tag.KV)
    assert status_of(arena, Tag.KV, 64) is Status.RELEASED


def test_only_live_blocks_are_freed(arena: Arena) -> None:
    address = arena.allocate(Tag.KV, 256)
    for wrong in (address + 64, address - 1, 64, 0):
        with pytest.raises(NativeError) as caught:
            arena.free(wrong)
        assert caught.value.status is Status.INVALID_ARGUMENT
    arena.free(address)
    with pytest.raises(NativeError):
        arena.free(address)


@pytest.mark.parametrize("size", [0, 1 << 60])
def test_an_impossible_reserve_is_refused(size: int) -> None:
    with pytest.raises(NativeError) as caught:
        Arena(size)
    assert caught.value.status in {Status.INVALID_ARGUMENT, Status.NO_MEMORY}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5 * MIB), st.sampled_from([64, 256, 4096])), max_size=60))
def test_blocks_never_overlap_and_all_come_back(steps: list[tuple[bool, int, int]]) -> None:
    arena = Arena(1 << 30)
    live: dict[int, int] = {}
    for take, size, align in steps:
        if take or not live:
            address = arena.allocate(Tag.WEIGHTS, size, align)
            assert address % align == 0
            assert all(address + size <= other or other + length <= address for other, length in live.items())
            live[address] = size
        else:
            address = list(live)[size % len(live)]
            arena.free(address)
            del live[address]
        stats = arena.stats(Tag.WEIGHTS)
        assert stats.blocks == len(live)
        assert stats.live >= sum(live.values())
        assert stats.span >= max((a + n - arena.base(Tag.WEIGHTS) for a, n in live.items()), default=0)
    for address in live:
        arena.free(address)
    assert arena.stats(Tag.WEIGHTS).span == 0
    arena.close()
