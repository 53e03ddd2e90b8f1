"""New weights from a folder: published for every member, checked whole, loaded by all of them or by none.

While the memory is lent a version is loaded, and committed when the memory is given back, by the group's own two-phase
transaction. While requests are paused it is committed at once. What a client calls a version is kept as its name.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import Phase
from ebbtide_api.verbs import (
    BeginUpdateRequest,
    CommitUpdateRequest,
    DrainMode,
    Lease,
    LeaseStage,
    Nothing,
    Verb,
    WeightsSource,
)

from ..client.uploading import Uploading
from ..progress import silent
from ..safetensors import files_of, pieces_in
from ..tensors import total
from ..weights import Published, check_publishable, meter, publish_path
from .mover import STOPPED, Done, Mover
from .sight import WEIGHTS_AWAKE, Sight

TRIES = 4
"""How many numbers are tried for a version whose number is taken by other files."""


@dataclass(frozen=True)
class Folder:
    """Weights on disk. `print` tells whether the same path holds the same files as before."""

    path: Path
    print: tuple[tuple[str, int, int], ...]

    @classmethod
    def at(cls, path: str, field: str) -> Folder:
        """Return what lies at a path. Raises INVALID_REQUEST, which names the field that it came from."""
        folder = Path(path)
        if not path or not folder.is_absolute() or not folder.exists():
            action = "Give an absolute path that exists where the proxy runs: it reads the weights."
            message = f"{field}: there is nothing at {path!r}."
            raise EbbtideError(ErrorCode.INVALID_REQUEST, message, next_action=action, field=field)
        files = files_of(folder.resolve())
        stats = [(file, file.stat()) for file in sorted(files)]
        return cls(folder.resolve(), tuple((file.name, stat.st_size, stat.st_mtime_ns) for file, stat in stats))


@dataclass(frozen=True)
class _Last:
    folder: Folder
    label: str
    version: int


class Updates:
    """Loads versions, and knows what clients call them."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._labels: dict[int, str] = {}
        self._last: _Last | None = None

    def label(self, version: int) -> str:
        """Return what the client called a version; its number if it did not call it anything."""
        return self._labels.get(version, str(version))

    def update(self, path: str, label: str = "", *, field: str, mode: DrainMode = DrainMode.WAIT) -> Done:
        """Load the weights at a path into every engine; done when all of them have loaded it.

        While requests are served they are paused for it, by `mode`, and resumed.
        """
        folder = Folder.at(path, field)
        with self._mover.turn:
            seen = self._mover.look()
            if self._is_there(seen, folder, label):
                return Done(seen, noop=True)
            lease = self._mover.holder.current()
            if lease is None or (lease.stage is LeaseStage.GRANTED and seen.admits):
                return self._live(folder, label, mode)
            return self._load(folder, label, lease, seen)

    def reload(self) -> Done:
        """Load the last committed version again: what a sleep that discards weights needs before they serve."""
        mover = self._mover
        with mover.turn:
            lease, seen = mover.holder.current(), mover.look()
            if lease is None or not seen.all_in({Phase.WEIGHTS_RESIDENT, Phase.COMMITTED}):
                action = "Wake the tag weights first. To load other weights give weights_path."
                raise seen.odd(ErrorCode.ILLEGAL_TRANSITION, "there is nothing to load again", action)
            mover.step(Verb.RELOAD, Nothing(), lease.epoch)
            return Done(mover.look())

    def _is_there(self, seen: Sight, folder: Folder, label: str) -> bool:
        last = self._last
        if last is None or (last.folder, last.label) != (folder, label) or not seen.whole:
            return False
        return all(last.version in (one.pending_version, one.committed_version) for one in seen.members)

    def _live(self, folder: Folder, label: str, mode: DrainMode) -> Done:
        self._mover.pause(mode)
        try:
            lease = self._mover.holder.current()
            if lease is None:
                raise EbbtideError(ErrorCode.STALE_EPOCH, "the lease ended while requests were paused.")
            done = self._load(folder, label, lease, self._mover.look())
        finally:
            resumed = self._mover.resume()
        return replace(resumed, result=done.result)

    # Loading

    def _load(self, folder: Folder, label: str, lease: Lease, seen: Sight) -> Done:
        self._require_ready(lease, seen)
        published = self._publish_anew(folder.path, _number(label, seen), lease)
        version, self._mover.sources[published.version] = published.version, str(published.path)
        self._begin(published, lease)
        if lease.stage is LeaseStage.GRANTED:
            self._mover.step(Verb.COMMIT_UPDATE, CommitUpdateRequest(version=version), lease.epoch)
        now = self._mover.look()
        if now.version != version:
            raise now.odd(ErrorCode.ENGINE_FAULTED, f"version {version} is not in every engine")
        self._last, self._labels[version] = _Last(folder, label, version), label or str(version)
        numbers = {"version": version, "bytes": published.bytes, "tensors": published.tensors}
        return Done(now, result={**numbers, "committed": now.loaded is None})

    def _require_ready(self, lease: Lease, seen: Sight) -> None:
        lent = lease.stage is LeaseStage.LENT
        if lent and not seen.all_in(WEIGHTS_AWAKE):
            action = "Wake the tag weights first, update, then wake kv_cache."
            raise seen.odd(ErrorCode.ILLEGAL_TRANSITION, "the weights have no memory to load into", action)
        if not lent and not seen.all_in(STOPPED):
            raise seen.odd(ErrorCode.ILLEGAL_TRANSITION, "requests are not paused", "Pause first.")
        if frozen := seen.inflight:
            message = f"{frozen} requests are frozen half-way, with the KV of the old weights"
            action = "Pause with mode abort or wait instead of keep: then no request mixes two versions."
            raise seen.odd(ErrorCode.ILLEGAL_TRANSITION, message, action)

    def _publish_anew(self, path: Path, version: int, lease: Lease) -> Published:
        """A number may be taken by files that were refused, or that a loan left behind: the next one is taken then."""
        for number in range(version, version + TRIES):
            try:
                return self._publish(path, number, lease)
            except EbbtideError as error:
                if error.code is not ErrorCode.VERSION_REGRESSION or number == version + TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _publish(self, path: Path, version: int, lease: Lease) -> Published:
        if not lease.streams:
            handoff = Path(lease.handoff)
            if not handoff.is_dir():
                message = f"group {lease.group}'s hand-off folder {handoff} is not reached from here."
                raise EbbtideError(ErrorCode.TRANSPORT_IMPOSSIBLE, message)
            return publish_path(path, handoff, version)
        pieces = pieces_in(files_of(path), None)
        check_publishable(pieces, version)
        advance = meter(version, total(pieces), time.monotonic(), silent, "sent")
        return self._mover.holder.run(Uploading(self._mover.holder.gateway, lease, version, pieces, advance).run())

    def _begin(self, published: Published, lease: Lease) -> None:
        mover, seen = self._mover, self._mover.look()
        if seen.any_in({Phase.UPDATING}):
            # Another version was loaded in this loan, and never served: the new one takes its place.
            mover.step(Verb.ABORT_UPDATE, Nothing(), lease.epoch)
        request = BeginUpdateRequest(version=published.version, source=WeightsSource(path=str(published.path)))
        try:
            mover.step(Verb.BEGIN_UPDATE, request, lease.epoch)
        except EbbtideError:
            # One member that refuses it is enough: no engine keeps it.
            mover.step(Verb.ABORT_UPDATE, Nothing(), lease.epoch)
            raise


def _number(label: str, seen: Sight) -> int:
    """Return a version above all that members know: the client's own number, if it is one."""
    highest = max(max(one.pending_version or 0, one.committed_version) for one in seen.members)
    given = int(label) if label.isdecimal() and len(label) < 16 else 0
    return given if given > highest else highest + 1
