"""Weights that a trainer sends to the gateway, and the gateway to every member's agent (hand-off `Stream`).

    POST   .../weights/{version}           UploadRequest   how much will come; refused before a byte is taken
    PUT    .../weights/{version}/{file}    bytes           at most CHUNK of them, from ?offset=, with their CRC32C
    POST   .../weights/{version}/publish   PublishRequest  the version gets its name, whole
    DELETE .../weights/{version}                           forget it

Every call may be repeated. `manifest.json` is sent last, as a file like the others.
"""

from __future__ import annotations

from pydantic import Field

from .base import Message, Reading

CHUNK = 8 << 20
"""The most bytes of one PUT: nobody on the way holds more of a file."""
CRC32C = "Ebbtide-CRC32C"
"""The header with the CRC32C of a PUT's bytes, as a decimal number."""
FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$"


class UploadFile(Message):
    """One file that will come. `length` is in bytes."""

    name: str = Field(pattern=FILE_NAME)
    length: int = Field(ge=0)


class UploadRequest(Message):
    """All files of a version but its manifest. `keep` is the version that serves, whose files stay: the gateway's."""

    files: list[UploadFile] = Field(min_length=1, max_length=4096)
    keep: int = Field(0, ge=0)

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.length for file in self.files)


class PublishRequest(Message):
    """Give a version its name. Length and CRC32C of its manifest say which content is meant."""

    length: int = Field(ge=1)
    crc32c: int = Field(ge=0, lt=2**32)


class Upload(Reading):
    """How far a version has come: bytes received of each file, from its start. `published`: it has its name."""

    version: int
    published: bool = False
    received: dict[str, int] = Field(default_factory=dict)
