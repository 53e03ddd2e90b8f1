"""The safetensors format: 8 bytes of header length, a JSON header, then the tensors' bytes without a gap.

Source: the format's description in the safetensors repository. Written here so that the base install stays small.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ebbtide_api.errors import EbbtideError, ErrorCode

from .tensors import CHUNK, SIZES, Names, Piece, renamed

INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000
_ALIGN = 8


def arrange(pieces: Sequence[Piece]) -> list[Piece]:
    """Order pieces so that each is aligned to its dtype: the widest first."""
    return sorted(pieces, key=lambda piece: -SIZES[piece.code])


def header_of(pieces: Sequence[Piece]) -> bytes:
    """Return everything that comes before the first tensor's bytes."""
    entries: dict[str, Any] = {}
    at = 0
    for piece in pieces:
        place = [at, at + piece.length]
        entries[piece.name] = {"dtype": piece.code, "shape": list(piece.shape), "data_offsets": place}
        at += piece.length
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


def files_of(path: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint: a file, or a folder with or without an index."""
    if path.is_file():
        return [path]
    index = path / INDEX
    if index.is_file():
        return sorted({path / name for name in _index_files(index)})
    found = sorted(path.glob("*.safetensors"))
    if not found:
        _unreadable(path, "holds no *.safetensors file")
    return found


def _index_files(index: Path) -> set[str]:
    try:
        names = {str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as problem:
        _unreadable(index, f"is not an index of safetensors ({problem})", problem)
    if any(Path(name).name != name for name in names):
        _unreadable(index, "names files outside its folder")
    return names


def pieces_in(paths: Sequence[Path], names: Names | None = None) -> list[Piece]:
    """Return the tensors of checkpoint files, to be copied. Raises INVALID_REQUEST, which names the file."""
    pieces: dict[str, Piece] = {}
    for path in paths:
        for piece in _pieces_of_file(path, names):
            if piece.name in pieces:
                _unreadable(path, f"holds {piece.name!r}, which another file holds too")
            pieces[piece.name] = piece
    return list(pieces.values())


@dataclass(frozen=True)
class _Range:
    """A tensor's bytes in a file, read anew each time."""

    path: Path
    offset: int
    length: int

    def __call__(self) -> Iterator[memoryview]:
        with self.path.open("rb", buffering=0) as file:
            buffer = memoryview(bytearray(min(CHUNK, self.length)))
            at, end = self.offset, self.offset + self.length
            while at < end:
                read = os.preadv(file.fileno(), [buffer[: end - at]], at)
                if read == 0:
                    _unreadable(self.path, f"ends at byte {at}, before a tensor does")
                yield buffer[:read]
                at += read


def _pieces_of_file(path: Path, names: Names | None) -> Iterator[Piece]:
    header, start = _read_header(path)
    size = path.stat().st_size
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        code, shape, begin, end = _entry(path, name, entry)
        if not 0 <= begin <= end <= size - start:
            _unreadable(path, f"is torn: {name!r} ends at byte {start + end} of {size}")
        yield Piece(renamed(name, names), code, shape, _Range(path, start + begin, end - begin))


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= MAX_HEADER:
                _unreadable(path, f"is no safetensors file: its header would have {length} bytes")
            header = json.loads(file.read(length))
    except (OSError, ValueError) as problem:
        _unreadable(path, f"cannot be read ({problem})", problem)
    if not isinstance(header, dict):
        _unreadable(path, "is no safetensors file: its header is not an object")
    return header, 8 + length


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    try:
        code, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as problem:
        _unreadable(path, f"has a malformed header entry for {name!r}", problem)
    if code not in SIZES or end - begin != prod(shape) * SIZES[code]:
        _unreadable(path, f"holds {name!r} with dtype {code}, shape {list(shape)} and {end - begin} bytes")
    return code, shape, begin, end


def _unreadable(path: Path, why: str, cause: BaseException | None = None) -> Any:
    raise EbbtideError(ErrorCode.INVALID_REQUEST, f"{path} {why}.", path=str(path)) from cause
