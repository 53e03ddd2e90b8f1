"""What a checkpoint consists of, by its safetensors headers. The bytes of tensors are never read here."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_HEADER = 100 << 20  # the limit of safetensors itself
_LENGTH = 8
_INDEX = "model.safetensors.index.json"
_CONFIG = "config.json"
_TIED = "lm_head.weight"


class CheckpointError(Exception):
    """A checkpoint or a header cannot be read; the message says which and why."""


@dataclass(frozen=True)
class TensorShape:
    """A tensor's shape and its safetensors dtype."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Placed:
    """A tensor in a file: absolute byte offset and length."""

    kind: TensorShape
    offset: int
    length: int


@dataclass(frozen=True)
class Expected:
    """What published weights must consist of. `tied` tensors may be absent: they share storage with another one."""

    tensors: Mapping[str, TensorShape]
    tied: frozenset[str] = frozenset()


def parse_header(data: bytes) -> dict[str, Placed]:
    """Parse everything of a safetensors file that comes before its tensors. Raises CheckpointError."""
    length = int.from_bytes(data[:_LENGTH], "little")
    if len(data) < _LENGTH or length != len(data) - _LENGTH:
        raise CheckpointError(f"the header says {length} bytes and has {max(0, len(data) - _LENGTH)}")
    try:
        entries = json.loads(data[_LENGTH:])
    except ValueError as error:
        raise CheckpointError("the header is not JSON") from error
    if not isinstance(entries, dict):
        raise CheckpointError("the header is not an object")
    return {name: _placed(name, entry, len(data)) for name, entry in entries.items() if name != "__metadata__"}


def _placed(name: str, entry: Any, start: int) -> Placed:
    try:
        begin, end = (int(offset) for offset in entry["data_offsets"])
        kind = TensorShape(tuple(int(size) for size in entry["shape"]), str(entry["dtype"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the header's entry for {name!r} is malformed") from error
    return Placed(kind, start + begin, end - begin)


def read_header(path: Path) -> dict[str, Placed]:
    """Read and parse the header of a file of ours. Raises CheckpointError, OSError."""
    return parse_header(_raw_header(path))


def _raw_header(path: Path) -> bytes:
    with path.open("rb") as file:
        prefix = file.read(_LENGTH)
        length = int.from_bytes(prefix, "little")
        if length > MAX_HEADER:
            raise CheckpointError(f"{path.name}: a header of {length} bytes is more than {MAX_HEADER}")
        return prefix + file.read(length)


def read_expected(model: str, environment: Mapping[str, str] = os.environ) -> Expected:
    """Read names, shapes and dtypes of the original checkpoint. Raises CheckpointError."""
    folder = _resolve(model, environment)
    try:
        names = _files(folder)
        tensors = {name: placed.kind for file in names for name, placed in read_header(folder / file).items()}
        tied = frozenset({_TIED}) if _ties(folder) else frozenset()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: {error}") from error
    return Expected(tensors, tied)


def copy_headers(model: str, target: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Make `target` a checkpoint of headers alone, for who cannot see the model itself. Raises CheckpointError.

    What was there before is replaced whole.
    """
    folder, fresh = _resolve(model, environment), target.with_name(f".{target.name}.new")
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True, mode=0o700)
        for name in (_INDEX, _CONFIG):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, fresh / name)
        for name in _files(folder):
            (fresh / name).write_bytes(_raw_header(folder / name))
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: {error}") from error


def _files(folder: Path) -> list[str]:
    index = folder / _INDEX
    if index.is_file():
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        raise CheckpointError(f"{folder} holds no safetensors")
    return names


def _ties(folder: Path) -> bool:
    path = folder / _CONFIG
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return bool(config.get("tie_word_embeddings") or config.get("text_config", {}).get("tie_word_embeddings"))


def _resolve(model: str, environment: Mapping[str, str]) -> Path:
    """Find a model's folder: a local one, or the snapshot that the hub's cache calls main."""
    local = Path(model)
    if local.is_dir():
        return local
    home = Path(environment.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cached = home / "hub" / f"models--{model.replace('/', '--')}"
    reference = cached / "refs" / "main"
    if not reference.is_file():
        raise CheckpointError(f"{model} is neither a folder nor in the hub's cache")
    return cached / "snapshots" / reference.read_text(encoding="utf-8").strip()
