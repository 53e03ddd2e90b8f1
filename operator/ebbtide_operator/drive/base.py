"""What an operator needs of whatever runs its members: processes now, a cluster later.

A driver never decides. It reports what it sees (frozen), carries out what plans ask, and calls back when something
changed. Nothing it does may block: what takes time runs on, and its end is a change like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ebbtide_api.server import InferenceServer

from ebbtide_operator.plan import Call, GroupRecord, MemberView, Outcome, TrainerView

from .agents import AgentClient

Changed = Callable[[str], None]
"""Called with the name of a group of which something changed."""


class Driver(Protocol):
    """Runs the members of all groups."""

    def listen(self, changed: Changed) -> None:
        """Say whom to tell of changes."""

    def want(self, servers: Mapping[str, InferenceServer]) -> None:
        """Take the servers that are wanted from now on. Nothing is started or ended by this alone."""

    def members(self, group: str) -> tuple[MemberView, ...]:
        """Return every member of a group that exists, also those that nobody wants any more."""

    async def refresh(self, group: str) -> None:
        """Ask every agent of a group now, so that measurements are as new as they can be."""

    async def trainer(self, record: GroupRecord) -> TrainerView | None:
        """Measure who may hold the memory behind a group's lease; None when nobody can be known."""

    def sources(self, record: GroupRecord) -> frozenset[str]:
        """Return which folders of published weights that a record names are there."""

    def handoff(self, group: str) -> str:
        """Return the folder in which weights for a group are published: a relative one is in each member's memory."""

    def streams(self, group: str) -> bool:
        """Say whether weights of a group are sent to its members' agents, not written into a folder that they share."""

    def agents(self, group: str) -> Mapping[str, AgentClient | None]:
        """Return how to reach the agent of every member of a group; None where it cannot be reached now."""

    def ensure(self, name: str, server: str, ordinal: int) -> None:
        """Begin to run a member, or run it again with its new configuration."""

    def end(self, name: str) -> None:
        """Begin to end a member; it is in members() until nothing of it is left."""

    def call(self, call: Call) -> None:
        """Begin a call; its outcome is in the member's view when it is known."""

    async def ask(self, call: Call) -> Outcome | None:
        """Make a call and wait for its outcome; None when it is unknown."""

    def started_at(self, pid: int) -> int | None:
        """Return what tells a process from a later one of the same pid; None when there is no such process."""

    def retire(self, group: str, version: int) -> None:
        """Remove what was handed off up to a version."""

    async def stop(self, *, keep: bool) -> None:
        """End everything, or leave it running for the next operator."""


class Records(Protocol):
    """Keeps the intent of groups. A record that was saved survives a crash at any point."""

    def load(self, group: str) -> GroupRecord:
        """Return a group's record, or a first one."""

    def save(self, record: GroupRecord) -> None:
        """Make a record durable. Blocks; raises OSError."""
