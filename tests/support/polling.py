"""Waits for a condition, with a deadline, instead of sleeping and hoping."""

import time
from collections.abc import Callable


def eventually(true: Callable[[], object], seconds: float = 10.0) -> None:
    """Poll until `true` says so; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
