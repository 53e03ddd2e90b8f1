"""CRC32C (Castagnoli, reflected, as in iSCSI and RFC 3720), as fast as this installation allows.

    libebbtide    tens of GB/s; there when `ebbtide[runtime]` was built
    numpy         hundreds of MB/s; there whenever torch is
    plain Python  a few MB/s; always there

All three give the same answer. Chain with `seed`: `crc32c(b, crc32c(a)) == crc32c(a + b)`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

POLYNOMIAL = 0x82F63B78
WORD = 0xFFFFFFFF
LANE = 512  # bytes that one lane takes in the numpy version
LANES = 1 << 14


def crc32c(data: Buffer, seed: int = 0) -> int:
    """Return the CRC32C of a contiguous buffer, carried on from `seed`."""
    view = memoryview(data).cast("B")
    return _fastest()(view, seed)


@cache
def backend() -> str:
    """Return which version is used: `native`, `numpy` or `python`."""
    if _native() is not None:
        return "native"
    return "numpy" if _numpy() is not None else "python"


@cache
def _fastest() -> Callable[[memoryview, int], int]:
    native = _native()
    if native is not None:
        return native
    return by_numpy if _numpy() is not None else by_table


def _native() -> Callable[[memoryview, int], int] | None:
    # By name, at run time: the base install has neither the package nor the library, and must not need them.
    try:
        found: Callable[[memoryview, int], int] = import_module("ebbtide_runtime.native").crc32c
        return found if found(memoryview(b"123456789"), 0) == 0xE3069283 else None
    except Exception:  # no package, no library, another ABI: whatever it is, the answer is the slower version
        return None


def _numpy() -> Any:
    """Return numpy if it is installed."""
    if "numpy" in sys.modules:
        return sys.modules["numpy"]
    try:
        return import_module("numpy")
    except ImportError:
        return None


# Plain Python


@cache
def _table() -> array[int]:
    def entry(byte: int) -> int:
        for _ in range(8):
            byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
        return byte

    return array("L", map(entry, range(256)))


def by_table(view: memoryview, seed: int) -> int:
    """One byte at a time."""
    table, crc = _table(), seed ^ WORD
    for byte in view:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ WORD


# numpy: many lanes side by side, then the lanes' remainders folded together


def by_numpy(view: memoryview, seed: int) -> int:
    """Cut the buffer into lanes of 512 bytes, walk all lanes at once, and fold their remainders in pairs."""
    crc, at = seed ^ WORD, 0
    while len(view) - at >= LANE:
        lanes = min(LANES, 1 << ((len(view) - at) // LANE).bit_length() - 1)
        size = lanes * LANE
        crc = shift(crc, size) ^ _fold(_walk(view[at : at + size], lanes))
        at += size
    return by_table(view[at:], crc ^ WORD)


def _walk(view: memoryview, lanes: int) -> Any:
    """Return each lane's remainder, from a start of zero."""
    np = _numpy()
    low, high = _word_tables()
    columns = np.ascontiguousarray(np.frombuffer(view, dtype="<u4").reshape(lanes, LANE // 4).T)
    crc = np.zeros(lanes, dtype=np.uint32)
    for column in columns:
        crc ^= column
        crc = low[crc & 0xFFFF] ^ high[crc >> 16]
    return crc


def _fold(crc: Any) -> int:
    np = _numpy()
    size = LANE
    while len(crc) > 1:
        low, high = _shift_tables(size)
        left, right = crc[0::2], crc[1::2]
        crc = (low[left & 0xFFFF] ^ high[left >> 16] ^ right).astype(np.uint32)
        size *= 2
    return int(crc[0])


@cache
def _word_tables() -> tuple[Any, Any]:
    """Tables that advance a remainder by the four bytes already mixed into it: one for each half."""
    return _shift_tables(4)


@cache
def _shift_tables(size: int) -> tuple[Any, Any]:
    """Tables that advance a remainder over `size` zero bytes: for its low and its high 16 bits."""
    np = _numpy()
    images = [shift(1 << bit, size) for bit in range(32)]
    tables = []
    for half in (images[:16], images[16:]):
        table = np.zeros(1, dtype=np.uint32)
        for image in half:
            table = np.concatenate([table, table ^ np.uint32(image)])
        tables.append(table)
    return tables[0], tables[1]


def shift(crc: int, size: int) -> int:
    """Return the remainder `crc` after `size` zero bytes: a product with x**(8 * size), by squaring."""
    power = 0x80000000 >> 8  # x**8, reflected
    while size:
        if size & 1:
            crc = _multiply(crc, power)
        power = _multiply(power, power)
        size >>= 1
    return crc


def _multiply(a: int, b: int) -> int:
    """Multiply two reflected polynomials modulo Castagnoli's."""
    product = 0
    while a:
        if a & 0x80000000:
            product ^= b
        a = a << 1 & WORD
        b = b >> 1 ^ (POLYNOMIAL if b & 1 else 0)
    return product
