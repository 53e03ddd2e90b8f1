"""The measurement just before weights are loaded: what the engine uses when it holds neither weights nor KV."""

from __future__ import annotations

import time

from ..native import Field, Page

_ANSWER_S = 10.0
_POLL_S = 0.005


def record(page: Page, answer_s: float = _ANSWER_S) -> int:
    """Ask the launcher for a measurement, store it as BASELINE and return it in bytes; 0 when nobody answered."""
    used = measure(page, answer_s)
    page.set(Field.BASELINE, used)
    return used


def measure(page: Page, answer_s: float = _ANSWER_S) -> int:
    """Return the device bytes in use now, measured after this call began; 0 when nobody answered in time."""
    request = page.add(Field.MEASURE_REQUEST, 1)
    due = time.monotonic() + answer_s
    while time.monotonic() < due:
        found = page.measurement()
        if found is not None and found.answered >= request:
            return found.used_bytes
        time.sleep(_POLL_S)
    return 0
