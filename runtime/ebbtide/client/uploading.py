"""Sends a version to the gateway, which gives it to every member: as flows, a piece at a time.

Bytes are taken from the tensors as they are sent, so no copy of the weights is ever whole on this side. A piece that
was damaged on the way is sent again. When a member lost what it had, all of it starts again, from where members are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.manifest import MANIFEST, FileEntry, Manifest, TensorEntry
from ebbtide_api.upload import CHUNK, CRC32C, PublishRequest, Upload, UploadFile, UploadRequest
from ebbtide_api.verbs import Lease
from pydantic import BaseModel

from ..crc32c import crc32c
from ..safetensors import arrange, header_of
from ..tensors import Piece, total
from ..weights import Published, entry_of, shards
from .flow import Flow
from .gateway import Call, Gateway, group_path

TRIES = 3
PATIENCE = 60.0
"""Seconds for one piece and all its repetitions."""
TRY = 30.0
FAREWELL = 5.0
Advance = Callable[[int], None]


@dataclass
class _File:
    """One file of the version: its layout is known before a byte of it is read."""

    name: str
    pieces: Sequence[Piece]
    header: bytes
    tensors: list[TensorEntry] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.header) + total(self.pieces)

    @property
    def entry(self) -> FileEntry:
        """What the manifest says of the file."""
        size = len(self.header)
        return FileEntry(name=self.name, length=self.length, header_length=size, header_crc32c=crc32c(self.header))

    def views(self) -> Iterator[memoryview]:
        """Yield the file's bytes in order, and note each tensor's checksum on the way."""
        self.tensors.clear()
        yield memoryview(self.header)
        at = len(self.header)
        for piece in self.pieces:
            crc = 0
            for view in piece.chunks():
                crc = crc32c(view, crc)
                yield view
            self.tensors.append(entry_of(piece, self.name, at, crc))
            at += piece.length


def blocks(views: Iterator[memoryview], size: int = CHUNK) -> Iterator[bytes]:
    """Gather views into blocks of `size` bytes; the last may be shorter."""
    gathered = bytearray()
    for view in views:
        while view:
            taken = view[: size - len(gathered)]
            gathered += taken
            view = view[len(taken) :]
            if len(gathered) == size:
                yield bytes(gathered)
                gathered.clear()
    if gathered:
        yield bytes(gathered)


@dataclass
class Uploading:
    """One version on its way. `advance` hears of bytes that every member has."""

    gateway: Gateway
    lease: Lease
    version: int
    pieces: Sequence[Piece]
    advance: Advance
    clock: Callable[[], float] = time.monotonic
    _known: bool = False
    """Whether the members have the version from before: then it is not ours to take back."""

    def run(self) -> Flow[Published]:
        """Send all of it. Raises what the gateway answers; then the members keep nothing of it."""
        began = self.clock()
        files = [_file(number, shard) for number, shard in enumerate(shards(self.pieces), start=1)]
        try:
            yield from self._all_of(files)
        except BaseException:
            if not self._known:
                yield from self._drop()
            raise
        path = Path(self.lease.handoff, f"v{self.version}")
        return Published(self.version, path, len(self.pieces), total(self.pieces), self.clock() - began)

    def _all_of(self, files: list[_File]) -> Flow[None]:
        for left in reversed(range(TRIES)):
            try:
                return (yield from self._attempt(files))
            except EbbtideError as error:
                if error.code is not ErrorCode.MEMBERSHIP_CHANGED or not left:
                    raise

    def _attempt(self, files: list[_File]) -> Flow[None]:
        asked = UploadRequest(files=[UploadFile(name=file.name, length=file.length) for file in files])
        there = yield from self._post("", asked)
        self._known = there.published
        for file in files:
            yield from self._send(file.name, blocks(file.views()), _had(there, file.name))
        tensors = [tensor for file in files for tensor in file.tensors]
        manifest = Manifest(version=self.version, files=[file.entry for file in files], tensors=tensors)
        data = manifest.model_dump_json(by_alias=True).encode()
        yield from self._send(MANIFEST, blocks(iter([memoryview(data)])), _had(there, MANIFEST))
        yield from self._post("/publish", PublishRequest(length=len(data), crc32c=crc32c(data)))

    def _send(self, file: str, data: Iterator[bytes], had: float) -> Flow[None]:
        offset = 0
        for block in data:
            if offset + len(block) > had:
                yield from self._piece(file, offset, block)
            offset += len(block)
            if file != MANIFEST:
                self.advance(len(block))

    def _piece(self, file: str, offset: int, block: bytes) -> Flow[None]:
        headers = {CRC32C: str(crc32c(block))}
        call = self._call("PUT", f"/{file}?offset={offset}", content=block, extra=headers)
        for left in reversed(range(TRIES)):
            answer = yield from self.gateway.answer(call)
            if answer.ok:
                return
            error = self.gateway.error_in(answer, f"PUT {call.path}")
            if error.details.get("reason") != "CHECKSUM_MISMATCH" or not left:
                raise error

    def _post(self, path: str, body: BaseModel) -> Flow[Upload]:
        call = self._call("POST", path, body=body.model_dump(mode="json", by_alias=True))
        answer = yield from self.gateway.answer(call)
        return self.gateway.parse(answer, Upload.model_validate, f"POST {call.path}")

    def _drop(self) -> Flow[None]:
        try:
            yield from self.gateway.answer(self._call("DELETE", "", patience=FAREWELL))
        except EbbtideError:
            # The members forget by themselves what nobody goes on with.
            return

    def _call(self, method: str, path: str, *, patience: float = PATIENCE, **more: object) -> Call:
        whole = f"{group_path(self.lease.group)}/weights/{self.version}{path}"
        return Call(method, whole, epoch=self.lease.epoch, patience=patience, limit=TRY, **more)  # type: ignore[arg-type]


def _had(there: Upload, file: str) -> float:
    """Return how much of a file every member has. A version that has its name is not sent again, only compared."""
    return float("inf") if there.published else there.received.get(file, 0)


def _file(number: int, shard: Sequence[Piece]) -> _File:
    pieces = arrange(shard)
    return _File(f"model-{number:05}.safetensors", pieces, header_of(pieces))
