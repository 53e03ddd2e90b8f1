"""Lease records and servers on disk. A record is replaced whole, durably, and carries a checksum of itself."""

from __future__ import annotations

import json
import logging
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import yaml
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.load import load_file
from ebbtide_api.server import InferenceServer
from ebbtide_api.verbs import LeaseStage
from pydantic import ValidationError

from ebbtide_operator.plan import GroupRecord, LeaseRecord

from .files import read_or_none, write_atomic

log = logging.getLogger("ebbtide.store")
FORMAT = "ebbtide.dev/group.v1"
LOST_TTL = 60.0
"""Seconds that an unknown holder has to be heard of and refused, before its group's memory is taken back."""


def encode(record: GroupRecord) -> bytes:
    """Return a record as it lies on disk."""
    body = json.dumps(record.model_dump(mode="json"), sort_keys=True)
    return json.dumps({"format": FORMAT, "crc32": zlib.crc32(body.encode()), "record": body}, indent=1).encode()


def decode(data: bytes) -> GroupRecord:
    """Return a record from disk. Raises ValueError that says what is wrong with it."""
    envelope = json.loads(data)
    if not isinstance(envelope, dict) or envelope.get("format") != FORMAT:
        raise ValueError(f"it is not of the format {FORMAT}")
    body = envelope.get("record")
    if not isinstance(body, str) or zlib.crc32(body.encode()) != envelope.get("crc32"):
        raise ValueError("its checksum does not match")
    return GroupRecord.model_validate_json(body)


@dataclass(frozen=True)
class GroupStore:
    """The lease records of one home."""

    folder: Path

    def path(self, group: str) -> Path:
        """Return where a group's record lies."""
        return self.folder / f"{group}.json"

    def save(self, record: GroupRecord) -> None:
        """Make a record durable. Raises OSError."""
        write_atomic(self.path(record.group), encode(record))

    def load(self, group: str) -> GroupRecord:
        """Return a group's record, or a first one. A record that cannot be read is put aside, and its owner is lost."""
        path = self.path(group)
        data = read_or_none(path)
        if data is None:
            return GroupRecord(group=group)
        try:
            return decode(data)
        except (ValueError, ValidationError) as error:
            return self._quarantine(path, group, str(error))

    def _quarantine(self, path: Path, group: str, why: str) -> GroupRecord:
        aside = path.with_name(f"{path.name}.corrupt-{time.time_ns()}")
        path.rename(aside)
        log.error("the lease record of group %s cannot be used (%s); it was moved to %s", group, why, aside)
        return lost_record(group)


def lost_record(group: str) -> GroupRecord:
    """Return the record of a group of which only its members know anything.

    Somebody unknown may own its devices: they are the engine's again when they are measured free. The epoch is raised
    above the members' highest as soon as they are heard of, so a holder of the lost record is refused.
    """
    lease = LeaseRecord(
        id=f"lost-{time.time_ns()}", holder="unknown", stage=LeaseStage.OWNER_LOST, ttl_seconds=LOST_TTL
    )
    return GroupRecord(group=group, owner="unknown", lease=lease)


@dataclass(frozen=True)
class ServerStore:
    """The applied servers of one home."""

    folder: Path

    def save(self, server: InferenceServer) -> None:
        """Make a server durable."""
        document = server.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
        document = {"apiVersion": server.api_version, "kind": server.kind, **document}
        write_atomic(self.folder / f"{server.name}.yaml", yaml.safe_dump(document, sort_keys=False).encode())

    def remove(self, name: str) -> None:
        """Forget a server."""
        (self.folder / f"{name}.yaml").unlink(missing_ok=True)

    def load(self) -> list[InferenceServer]:
        """Return every applied server. Raises EbbtideError that names a file which cannot be used."""
        paths = sorted(self.folder.glob("*.yaml"))
        return [server for path in paths for server in _servers(path)]


def _servers(path: Path) -> list[InferenceServer]:
    found = load_file(path)
    others = [one.kind for one in found if not isinstance(one, InferenceServer)]
    if others:
        raise EbbtideError(ErrorCode.INVALID_REQUEST, f"{path} holds a {others[0]}, not an InferenceServer")
    return [one for one in found if isinstance(one, InferenceServer)]
