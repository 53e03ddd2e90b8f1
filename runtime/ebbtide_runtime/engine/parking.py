"""The parked copy of one rank's weights: made once per version, beside serving, and read at every wake.

The copy is native work without the interpreter's lock, in a thread of its own: inside an RPC it would stall vLLM's
engine loop. Weights only change after `drop`, which ends the thread first, so a copy is never half of one version.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from pathlib import Path

from ebbtide_api.state import ParkedCopy

from ..native import Arena, Cancel, NativeError, Parked, Tag

MIB = 1 << 20
_NICE = 10
_SAMPLE = 4  # chunks checked each time before weights are given away for their copy


@dataclass(frozen=True)
class Contents:
    """What the weights in the arena are: their version, and a digest of all that can differ within a version."""

    version: int
    digest: int


class Parking:
    """One rank's parked copy, at `folder/rank<r>of<n>.park`. Methods are called from one thread, the worker's."""

    def __init__(self, folder: str, rank: int, ranks: int, arena: Arena, threads: int = 2) -> None:
        self._path = Path(folder) / f"rank{rank}of{ranks}.park"
        self._arena = arena
        self._threads = threads
        self._copy: Parked | None = None
        self._thread: threading.Thread | None = None
        self._cancel = Cancel()
        self._error = ""

    @property
    def running(self) -> bool:
        """Whether a copy is being made."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def error(self) -> str:
        """Why the last copy could not be made, or nothing."""
        return self._error

    def state(self) -> ParkedCopy | None:
        """Describe the copy, if there is one."""
        if self.running or self._copy is None:
            return None
        return ParkedCopy(version=self._copy.info.version, mib=self._copy.info.bytes / MIB, valid=True)

    def start(self, contents: Contents) -> None:
        """Begin a copy at low priority, unless there is one or one is being made. Returns at once."""
        if not self.running and not self._is_of(contents):
            self._close()
            self._cancel = Cancel()
            # A daemon: the process may end while it copies; the file is unnamed until it is whole.
            run = threading.Thread(target=self._make, args=(contents, _NICE, 1), name="ebbtide-park", daemon=True)
            self._thread = run
            run.start()

    def ensure(self, contents: Contents) -> int:
        """Have a checked copy, and return how many bytes had to be copied for it: none if it was there.

        Raises NativeError: NO_MEMORY when host memory does not hold it.
        """
        self._wait()
        if self._is_of(contents) and self._is_intact():
            return 0
        self._close()
        self._error = ""
        self._cancel = Cancel()
        self._make(contents, 0, self._threads, keep_error=False)
        return self._require().info.span

    def restore(self) -> None:
        """Write the copy back into the arena, checking every chunk. Raises NativeError."""
        self._require().restore(self._arena, Tag.WEIGHTS, threads=self._threads, verify=True)

    def drop(self) -> None:
        """Forget the copy and end its making: the weights change now, or are to leave no trace."""
        self._cancel.set()
        self._wait()
        self._close()
        self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _is_of(self, contents: Contents) -> bool:
        return self._copy is not None and _same(self._copy, contents)

    def _is_intact(self) -> bool:
        try:
            self._require().verify(_SAMPLE)
        except NativeError as problem:
            self._error = str(problem)
            self.drop()
            return False
        return True

    def _require(self) -> Parked:
        assert self._copy is not None, "there is no parked copy"  # noqa: S101
        return self._copy

    def _make(self, contents: Contents, nice: int, threads: int, keep_error: bool = True) -> None:
        try:
            self._copy = self._adopt(contents) or Parked.create(
                str(self._path),
                self._arena,
                Tag.WEIGHTS,
                version=contents.version,
                layout=contents.digest,
                threads=threads,
                nice=nice,
                cancel=self._cancel,
            )
            self._error = ""
        except NativeError as problem:
            if not keep_error:
                raise
            self._error = str(problem)

    def _adopt(self, contents: Contents) -> Parked | None:
        """Return the copy that an engine before us left, if it holds these very bytes."""
        with contextlib.suppress(NativeError):
            found = Parked.open(str(self._path))
            if _same(found, contents) and found.matches(self._arena, Tag.WEIGHTS):
                return found
            found.close()
        return None


def _same(copy: Parked, contents: Contents) -> bool:
    return (copy.info.version, copy.info.layout) == (contents.version, contents.digest)
