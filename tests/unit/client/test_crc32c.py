"""CRC32C: the three versions agree with each other and with what is published."""

import importlib
import random

import pytest
from ebbtide import crc32c as module
from ebbtide.crc32c import by_numpy, by_table, crc32c, shift
from hypothesis import given, settings
from hypothesis import strategies as st

# RFC 3720, appendix B.4.
PUBLISHED = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
    (b"123456789", 0xE3069283),
    (b"", 0),
]
NOISE = random.Random(0).randbytes(3 << 20)


@pytest.mark.parametrize(("data", "expected"), PUBLISHED)
def test_published_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == by_table(memoryview(data), 0) == by_numpy(memoryview(data), 0) == expected


@given(st.binary(max_size=5000), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_the_numpy_version_is_the_plain_one(data: bytes, seed: int) -> None:
    assert by_numpy(memoryview(data), seed) == by_table(memoryview(data), seed)


@pytest.mark.parametrize("size", [511, 512, 513, 1024, 65536, 65537, 1 << 20])
def test_every_way_to_cut_lanes_agrees(size: int) -> None:
    view = memoryview(NOISE)[:size]
    assert by_numpy(view, 7) == by_table(view, 7)


@given(st.integers(0, len(NOISE)))
@settings(deadline=None, max_examples=20)
def test_it_chains(cut: int) -> None:
    view = memoryview(NOISE)
    assert by_numpy(view[cut:], by_numpy(view[:cut], 0)) == by_numpy(view, 0) == crc32c(view)


def test_it_chains_by_the_public_name() -> None:
    assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")


def test_a_flipped_bit_is_noticed_anywhere() -> None:
    whole = crc32c(NOISE)
    for at in (0, 511, 512, 1 << 20, len(NOISE) - 1):
        broken = bytearray(NOISE)
        broken[at] ^= 0x10
        assert crc32c(broken) != whole


@given(st.integers(0, 2**32 - 1), st.integers(0, 300))
def test_a_shift_is_that_many_zero_bytes(crc: int, size: int) -> None:
    zeros = memoryview(bytes(size))
    assert shift(crc ^ 0xFFFFFFFF, size) ^ 0xFFFFFFFF == by_table(zeros, crc)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_any_buffer_is_taken(kind: type) -> None:
    assert crc32c(kind(b"123456789")) == 0xE3069283


def test_a_buffer_of_words_is_taken_as_bytes() -> None:
    words = memoryview(b"12345678").cast("I")
    assert crc32c(words) == crc32c(b"12345678")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Forget which version was chosen, before and after."""
    for chosen in (module._fastest, module.backend):
        chosen.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    for chosen in (module._fastest, module.backend):
        chosen.cache_clear()


def test_the_native_version_agrees_where_it_is_built(fresh: pytest.MonkeyPatch) -> None:
    native = module._native()
    if native is None:
        pytest.skip("libebbtide is not built")
    assert module.backend() == "native"
    assert native(memoryview(NOISE), 7) == by_numpy(memoryview(NOISE), 7)


def test_a_broken_library_is_never_used(fresh: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def crc32c(view: memoryview, seed: int) -> int:
            return 0

    fresh.setattr(module, "import_module", lambda name: Broken)
    assert module._native() is None


@pytest.mark.parametrize(("numpy", "expected"), [(True, "numpy"), (False, "python")])
def test_without_the_library_the_next_best_is_used(fresh: pytest.MonkeyPatch, numpy: bool, expected: str) -> None:
    real = importlib.import_module

    def missing(name: str) -> object:
        raise OSError("libebbtide.so: cannot open shared object file")

    fresh.setattr(module, "import_module", missing)
    fresh.setattr(module, "_numpy", lambda: real("numpy") if numpy else None)
    assert module.backend() == expected
    assert crc32c(b"123456789") == 0xE3069283
