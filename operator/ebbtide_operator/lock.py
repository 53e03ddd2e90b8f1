"""One operator a home: an advisory lock that ends with its holder, however that ends."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from ebbtide_api.errors import EbbtideError, ErrorCode

from .drive.files import private_folder


class HomeLock:
    """Held while an operator runs. Raises OPERATION_IN_PROGRESS that names who holds it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def __enter__(self) -> HomeLock:
        """Take the lock."""
        private_folder(self._path.parent)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 4096)
            self._close()
            raise _held(self._path.parent, holder) from None
        self.say("")
        return self

    def say(self, url: str) -> None:
        """Write down who holds the lock, and where its gateway is."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps({"pid": os.getpid(), "url": url}).encode(), 0)

    def __exit__(self, *_: object) -> None:
        """Let the lock go."""
        os.ftruncate(self._descriptor, 0)
        self._close()

    def _close(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1


def _held(home: Path, holder: bytes) -> EbbtideError:
    try:
        known = json.loads(holder)
        pid, url = int(known["pid"]), str(known["url"])
    except (ValueError, KeyError, TypeError):
        pid, url = 0, ""
    where = f"; its gateway is {url}" if url else ""
    return EbbtideError(
        ErrorCode.OPERATION_IN_PROGRESS,
        f"an operator already runs on {home} (pid {pid or 'unknown'}){where}.",
        next_action="Use it, end it with `ebbtide down`, or choose another folder with --home.",
        pid=pid,
        url=url,
    )
