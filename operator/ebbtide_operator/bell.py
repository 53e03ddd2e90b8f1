"""Waiting for something to become true, woken by whoever may have made it true."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Bell:
    """Rings for everybody who waits."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake everybody who waits now."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait_for(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Return whether `holds()`, as soon as it does, or after `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not holds():
                    await self._event.wait()
        return holds()
