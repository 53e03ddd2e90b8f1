"""Where everything of one operator lies: its home, which survives, and its memory folder, which does not."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """The paths of one home."""

    home: Path
    memory: Path

    @classmethod
    def of(cls, home: Path, shared_memory: Path) -> Layout:
        """Return the layout of a home; every home has a memory folder of its own."""
        home = home.absolute()
        # The user is part of the name: two users may have homes of the same path in different mounts.
        digest = hashlib.sha256(f"{os.getuid()}:{home}".encode()).hexdigest()[:12]
        return cls(home, shared_memory / f"ebbtide-{digest}")

    @property
    def lock(self) -> Path:
        """Held by the operator that runs on this home."""
        return self.home / "lock"

    @property
    def operator(self) -> Path:
        """Where clients find the gateway: its URL, its pid, the path of its token."""
        return self.home / "operator.json"

    @property
    def token(self) -> Path:
        """The gateway's bearer token."""
        return self.home / "token"

    @property
    def operations(self) -> Path:
        """The last operations."""
        return self.home / "operations.json"

    @property
    def groups(self) -> Path:
        """The lease records, one file a group."""
        return self.home / "groups"

    @property
    def servers(self) -> Path:
        """The applied servers, one file each."""
        return self.home / "servers"

    @property
    def members(self) -> Path:
        """The members' own files, one folder each."""
        return self.home / "members"

    def member(self, name: str) -> Path:
        """What survives of a member: its configuration, its logs, what its agent remembers."""
        return self.members / name

    def member_memory(self, name: str) -> Path:
        """What does not survive of a member: control page, parked weights, its copies of published weights."""
        return self.memory / "members" / name

    def handoff(self, group: str) -> Path:
        """Where a trainer publishes weights for a group."""
        return self.memory / "handoff" / group
