"""Small checkpoints and published versions, whole or spoiled in one way."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from ebbtide_api.manifest import FORMAT, MANIFEST
from ebbtide_runtime.native import crc32c

SHAPES: dict[str, tuple[list[int], str]] = {
    "model.embed_tokens.weight": ([16, 8], "BF16"),
    "model.layers.0.mlp.weight": ([8, 8], "BF16"),
    "model.norm.weight": ([8], "F32"),
    "lm_head.weight": ([16, 8], "BF16"),
}
_BYTES = {"BF16": 2, "F32": 4}


def safetensors(tensors: dict[str, tuple[list[int], str]], seed: int = 0) -> tuple[bytes, dict[str, Any]]:
    """Return a file's bytes and its header's entries."""
    entries: dict[str, Any] = {}
    data = b""
    for number, (name, (shape, dtype)) in enumerate(tensors.items()):
        size = prod(shape) * _BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += bytes((seed + number + index) % 251 for index in range(size))
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data, entries


def make_model(folder: Path, *, tied: bool = False, shards: int = 1) -> Path:
    """Write the original checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    names = list(SHAPES)
    for shard in range(shards):
        part = {name: SHAPES[name] for name in names[shard::shards]}
        (folder / f"model-{shard}.safetensors").write_bytes(safetensors(part)[0])
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    return folder


def describe(data: bytes, entries: dict[str, Any], file: str, version: int) -> dict[str, Any]:
    """Return the manifest of one file."""
    start = 8 + struct.unpack("<Q", data[:8])[0]
    tensors = []
    for name, entry in entries.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        tensors.append(
            {
                "name": name,
                "file": file,
                "offset": begin,
                "length": end - begin,
                "shape": entry["shape"],
                "dtype": entry["dtype"],
                "crc32c": crc32c(data[begin:end]),
            }
        )
    header = {"name": file, "length": len(data), "headerLength": start, "headerCrc32c": crc32c(data[:start])}
    return {"format": FORMAT, "version": version, "files": [header], "tensors": tensors}


Spoil = Callable[[Path, dict[str, Any]], None]


def publish(
    folder: Path,
    version: int,
    *,
    tensors: dict[str, tuple[list[int], str]] | None = None,
    spoil: Spoil | None = None,
) -> Path:
    """Publish a version, and spoil the folder or the manifest on the way."""
    path = folder / f"v{version}"
    path.mkdir(parents=True)
    data, entries = safetensors(tensors or SHAPES, seed=version)
    file = "model-00001.safetensors"
    (path / file).write_bytes(data)
    manifest = describe(data, entries, file, version)
    if spoil is not None:
        spoil(path, manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))
    return path
