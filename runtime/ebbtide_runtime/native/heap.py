"""The C library's heap: what it keeps of freed memory, and how to make it give that back."""

from __future__ import annotations

import ctypes


def trim() -> bool:
    """Give the free pages of malloc's heap back to the kernel; True when there were some.

    Memory of finished work, activations above all, stays in the heap otherwise. Does nothing, and says False, where
    the C library is not glibc.
    """
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except AttributeError:
        return False
