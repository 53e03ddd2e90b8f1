"""Takes streamed weights into the member's own memory: pieces into a folder without a name, then the name, whole.

    handoff/.v7.part/   being received; gone when it is given up, replaced, or left alone for a while
    handoff/v7/         received whole: what `begin-update` checks and takes

One version is received at a time. What was received is remembered in memory only: an agent that was restarted has
nothing, and says so, and the sender starts again.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.manifest import MANIFEST, Manifest
from ebbtide_api.upload import PublishRequest, Upload, UploadRequest
from pydantic import ValidationError

from ..native import crc32c
from .action import refused
from .ingest import MAX_MANIFEST
from .lifecycle import host_refusal
from .manifest_check import Reason

Room = Callable[[], Awaitable[int]]
"""Measures the bytes that may be taken now."""


def received(folder: Path) -> list[int]:
    """Return the versions that are in a folder, whole."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(name[1:]) for name in names if name[0] == "v" and name[1:].isdecimal())


@dataclass
class _Part:
    """A version that is being received. `epoch` is the lease's that it belongs to."""

    version: int
    epoch: int
    folder: Path
    lengths: dict[str, int]
    received: dict[str, int] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """The bytes that it takes now."""
        return sum(self.received.values())


class Receiver:
    """Everything that one member receives. Its methods are for the event loop's thread."""

    def __init__(self, folder: Path, idle_s: float) -> None:
        self._folder, self._idle_s = folder, idle_s
        self._lock = asyncio.Lock()
        self._part: _Part | None = None
        self._epochs: dict[int, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def clean(self) -> None:
        """Remove what an earlier agent had not received whole."""
        for path in self._folder.glob(".v*.part"):
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Wait for nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    # The calls

    async def open(self, version: int, asked: UploadRequest, epoch: int, room: Room) -> Upload:
        """Expect a version, or go on with it. Raises HOST_MEMORY_INSUFFICIENT: then nothing was taken."""
        async with self._lock:
            self._stir()
            if self._is_published(version) and self._epochs.get(version) == epoch:
                return self._progress(version)
            lengths = {file.name: file.length for file in asked.files}
            part = self._part
            if part is None or (part.version, part.epoch, part.lengths) != (version, epoch, lengths):
                await self._make_room(version, asked, epoch, room)
                self._part = await asyncio.to_thread(self._begin, version, epoch, lengths)
            return self._progress(version)

    async def write(self, version: int, file: str, offset: int, data: bytes, crc: int) -> Upload:
        """Take bytes of a file. Raises MANIFEST_INVALID for bytes that are damaged or too many."""
        async with self._lock:
            self._stir()
            if self._is_published(version):
                return self._progress(version)
            part = self._expected(version)
            _check_bytes(part, file, offset, data, crc)
            try:
                await asyncio.to_thread(_write, part.folder / file, offset, data)
            except OSError as error:
                raise await self._no_room(error, part, len(data)) from error
            part.received[file] = max(part.received.get(file, 0), offset + len(data))
            return self._progress(version)

    async def publish(self, version: int, asked: PublishRequest) -> Upload:
        """Give a version its name. Raises MANIFEST_INVALID if it is not whole, VERSION_REGRESSION if it is another."""
        async with self._lock:
            self._stir()
            if self._is_published(version):
                await asyncio.to_thread(self._require_same, version, asked)
                return self._progress(version)
            part = self._expected(version)
            await asyncio.to_thread(_check_whole, part, asked)
            part.folder.rename(self._named(version))
            self._epochs[version], self._part = part.epoch, None
            return self._progress(version)

    async def drop(self, version: int, *, through: bool = False) -> None:
        """Forget a version, with `through` all the earlier ones too; their memory is given back."""
        async with self._lock:
            part = self._part
            if part is not None and (part.version == version or (through and part.version < version)):
                self._part = None
                await asyncio.to_thread(shutil.rmtree, part.folder, ignore_errors=True)
            for number in self._versions():
                if number == version or (through and number < version):
                    await asyncio.to_thread(shutil.rmtree, self._named(number), ignore_errors=True)

    # What is there

    def _named(self, version: int) -> Path:
        return self._folder / f"v{version}"

    def _is_published(self, version: int) -> bool:
        return self._named(version).is_dir()

    def _versions(self) -> list[int]:
        return received(self._folder)

    def _progress(self, version: int) -> Upload:
        if self._is_published(version):
            sizes = {path.name: path.stat().st_size for path in self._named(version).iterdir()}
            return Upload(version=version, published=True, received=sizes)
        received = self._part.received if self._part else {}
        return Upload(version=version, received=dict(received))

    def _expected(self, version: int) -> _Part:
        if self._part is None or self._part.version != version:
            message = f"nothing of version {version} is being received here"
            action = "Start the upload again: the member was restarted, or was left waiting for too long."
            raise EbbtideError(ErrorCode.MEMBERSHIP_CHANGED, message, next_action=action, version=version)
        return self._part

    def _require_same(self, version: int, asked: PublishRequest) -> None:
        manifest = (self._named(version) / MANIFEST).read_bytes()
        if (len(manifest), crc32c(manifest)) != (asked.length, asked.crc32c):
            message = f"version {version} was received already, with other content"
            raise EbbtideError(ErrorCode.VERSION_REGRESSION, message, version=version)

    # Beginning and end

    async def _make_room(self, version: int, asked: UploadRequest, epoch: int, room: Room) -> None:
        """Forget what nobody may ask for any more; the lease's earlier versions only if that is needed, and enough."""
        self._part = None
        earlier = {number for number in self._versions() if self._epochs.get(number) == epoch} - {version}
        await asyncio.to_thread(self._forget, earlier | {asked.keep} - {version})
        spare, there = sum(map(self._size, earlier - {asked.keep})), await room()
        if asked.size > there + spare:
            raise refused(host_refusal(f"receiving version {version}", asked.size, there + spare))
        if asked.size > there:
            await asyncio.to_thread(self._forget, {asked.keep})

    def _begin(self, version: int, epoch: int, lengths: dict[str, int]) -> _Part:
        folder = self._folder / f".v{version}.part"
        folder.mkdir(mode=0o700, parents=True)
        for name in lengths:
            (folder / name).touch(mode=0o600)
        return _Part(version, epoch, folder, lengths)

    def _size(self, version: int) -> int:
        """Return what forgetting a version frees: what is the member's own copy too stays."""
        files = (path.stat() for path in self._named(version).iterdir())
        return sum(file.st_size for file in files if file.st_nlink == 1)

    def _forget(self, keep: Set[int]) -> None:
        self.clean()
        for version in self._versions():
            if version not in keep:
                shutil.rmtree(self._named(version), ignore_errors=True)

    async def _no_room(self, error: OSError, part: _Part, size: int) -> EbbtideError:
        """Give back what was taken, and say why."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return EbbtideError(ErrorCode.INTERNAL, f"version {part.version} cannot be written: {error.strerror}")
        held = part.held
        self._part = None
        await asyncio.to_thread(shutil.rmtree, part.folder, ignore_errors=True)
        return refused(host_refusal(f"receiving version {part.version}", sum(part.lengths.values()), held))

    def _stir(self) -> None:
        """Put off the time at which a sender that is not heard of any more is given up."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._give_up)

    def _give_up(self) -> None:
        if (part := self._part) is not None:
            task = asyncio.create_task(self.drop(part.version))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


def _check_bytes(part: _Part, file: str, offset: int, data: bytes, crc: int) -> None:
    if crc32c(data) != crc:
        raise _bad(Reason.CHECKSUM_MISMATCH, f"{len(data)} bytes of {file} have CRC32C {crc32c(data)}, not {crc}", file)
    most = MAX_MANIFEST if file == MANIFEST else part.lengths.get(file)
    if most is None:
        raise _bad(Reason.UNREADABLE, f"{file} was not announced", file)
    if offset + len(data) > most:
        raise _bad(Reason.TORN, f"{file} has {most} bytes, and byte {offset + len(data)} was sent", file)
    if offset > (there := part.received.get(file, 0)):
        message = f"{file} was received up to byte {there}, and byte {offset} was sent"
        raise EbbtideError(ErrorCode.MEMBERSHIP_CHANGED, message, file=file, received=there)


def _write(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        view = memoryview(data)
        while view:
            done = os.pwrite(descriptor, view, offset)
            offset, view = offset + done, view[done:]
    finally:
        os.close(descriptor)


def _check_whole(part: _Part, asked: PublishRequest) -> None:
    for file, length in part.lengths.items():
        if (there := part.received.get(file, 0)) != length:
            raise _bad(Reason.TORN, f"{file} has {length} bytes, and {there} were received", file)
    path = part.folder / MANIFEST
    data = path.read_bytes() if path.exists() else b""
    if (len(data), crc32c(data)) != (asked.length, asked.crc32c):
        raise _bad(Reason.TORN, "the manifest was not received whole", MANIFEST)
    _check_manifest(part, data)


def _check_manifest(part: _Part, data: bytes) -> None:
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise _bad(Reason.UNREADABLE, f"the manifest's {where}: {first['msg']}", MANIFEST) from error
    if manifest.version != part.version:
        message = f"the manifest is of version {manifest.version}, not {part.version}"
        raise _bad(Reason.VERSION_MISMATCH, message, MANIFEST)
    if {file.name: file.length for file in manifest.files} != part.lengths:
        raise _bad(Reason.TORN, "the manifest names other files, or other sizes, than were received", MANIFEST)


def _bad(reason: Reason, message: str, file: str) -> EbbtideError:
    return EbbtideError(ErrorCode.MANIFEST_INVALID, message, reason=reason.value, file=file)
