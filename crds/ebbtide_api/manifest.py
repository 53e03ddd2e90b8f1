"""Published weights: safetensors files and the manifest that vouches for them (DESIGN 5.4).

A version is a folder `v<version>` that appears by rename, so it is there whole or not at all:

    v7/manifest.json            this model
    v7/model-00001.safetensors  ...

CRC32C (Castagnoli) is taken over each tensor's bytes in the file, and over each file.
"""

from __future__ import annotations

from pydantic import Field

from .base import LARGEST_INTEGER, Message

MANIFEST = "manifest.json"
FORMAT = "ebbtide.dev/weights.v1"


class TensorEntry(Message):
    """One tensor: its place in a file (absolute byte offset), shape, safetensors dtype (`BF16`, `F32`), and CRC32C."""

    name: str = Field(min_length=1, max_length=1024)
    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$")
    offset: int = Field(ge=0)
    length: int = Field(ge=0)
    shape: list[int] = Field(max_length=16)
    dtype: str = Field(pattern=r"^[A-Z0-9_]{1,16}$")
    crc32c: int = Field(ge=0, lt=2**32)


class FileEntry(Message):
    """One file, whole: its size in bytes, and the CRC32C of its header (everything before the first tensor)."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$")
    length: int = Field(ge=0)
    header_length: int = Field(ge=0)
    header_crc32c: int = Field(ge=0, lt=2**32)


class Manifest(Message):
    """What a version consists of."""

    format: str = FORMAT
    version: int = Field(ge=1, le=LARGEST_INTEGER)
    files: list[FileEntry] = Field(min_length=1, max_length=4096)
    tensors: list[TensorEntry] = Field(min_length=1, max_length=1_000_000)
