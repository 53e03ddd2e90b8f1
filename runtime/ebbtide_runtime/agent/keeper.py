"""The keeper of deadlines: one thread that shares neither event loop nor connection with the calls that it watches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class _Watch:
    due: float
    expire: Callable[[], None]


class Keeper:
    """Named deadlines. `expire` runs in the keeper's thread, under its lock: it must be short and must not call back.

    Once `arm` or `disarm` has returned, the deadline that it replaced has either fired whole or never will.
    """

    def __init__(self) -> None:
        self._watches: dict[str, _Watch] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ebbtide-deadlines", daemon=True)
        self._thread.start()

    def arm(self, name: str, seconds: float, expire: Callable[[], None]) -> None:
        """Call `expire` in `seconds`, unless the name is armed again or disarmed before."""
        with self._changed:
            self._watches[name] = _Watch(time.monotonic() + seconds, expire)
            self._changed.notify()

    def disarm(self, name: str) -> None:
        """Forget a deadline."""
        with self._changed:
            self._watches.pop(name, None)

    def armed(self) -> list[str]:
        """Return the names that have a deadline now."""
        with self._changed:
            return sorted(self._watches)

    def close(self) -> None:
        """End the thread. Nothing fires afterwards."""
        with self._changed:
            self._closed = True
            self._watches.clear()
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                self._fire(time.monotonic())
                self._changed.wait(self._next())

    def _next(self) -> float | None:
        dues = [watch.due for watch in self._watches.values()]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _fire(self, now: float) -> None:
        for name, watch in list(self._watches.items()):
            if watch.due <= now:
                del self._watches[name]
                watch.expire()
