"""The intent of one group, as it is kept on disk: who holds the lease, what was asked, what must serve.

Everything else is derived by observation each time. A change of this record is the only thing that changes an owner.

    owner   who uses the devices now: ENGINE, or the holder of a lease whose memory was measured free
    epoch   grows with every grant of a lease and with every return to the engine; an older caller is refused
    serve   the weights that every member must serve, decided before the first member commits
"""

from __future__ import annotations

from ebbtide_api.base import Reading
from ebbtide_api.errors import ErrorBody
from ebbtide_api.verbs import Canary, Drain, LeaseStage
from pydantic import Field

ENGINE = "engine"
PAST = 16
"""How many ended leases are remembered, so that a repeated call gets the same answer."""


class LendIntent(Reading):
    """Every server shall sleep. With `failure` set, every server shall come back."""

    operation: str
    drain: Drain | None = None
    level: int = 0
    deadline: float
    failure: ErrorBody | None = None


class ReturnIntent(Reading):
    """Every server shall serve, with `version` if one was published. With `failure` set, with the old weights."""

    operation: str | None = None
    version: int | None = None
    source: str | None = None
    canary: Canary | None = None
    deadline: float
    failure: ErrorBody | None = None


class PodRef(Reading):
    """A pod, as the API server knows it. Another pod of the same name has another `uid`."""

    namespace: str
    name: str
    uid: str


class LeaseRecord(Reading):
    """One request for the group, from the queue to its end. `ending` asks a lend that runs to stop and come back.

    Who asked: the process `pid` on this machine, or on a cluster `pod`, where the caller's token is bound to one.
    """

    id: str
    holder: str
    stage: LeaseStage = LeaseStage.QUEUED
    epoch: int = 0
    ttl_seconds: float
    pid: int | None = None
    pid_start: int = 0
    pod: PodRef | None = None
    need_mib: float | None = None
    fingerprint: str = ""
    ending: bool = False
    lend: LendIntent | None = None
    back: ReturnIntent | None = None


class Serve(Reading):
    """What every member must serve. Version 0 is the model's own source; `canary` proves the version."""

    version: int = 0
    source: str = ""
    canary: Canary | None = None


class Size(Reading):
    """What a member takes of its device, as it said when it was lent. MiB."""

    weights: float = 0
    kv: float = 0
    residual: float = 0


class GroupRecord(Reading):
    """A group's intent. `manual` names the servers that somebody drives step by step.

    `sizes` are the members' as last lent: an engine that died since says nothing of what it will need to come back.
    """

    group: str
    epoch: int = 1
    owner: str = ENGINE
    serve: Serve = Serve()
    lease: LeaseRecord | None = None
    queue: tuple[LeaseRecord, ...] = ()
    past: tuple[LeaseRecord, ...] = ()
    manual: frozenset[str] = Field(default_factory=frozenset)
    sizes: dict[str, Size] = Field(default_factory=dict)

    @property
    def loading(self) -> int | None:
        """The published version that members shall load: not decided yet, and refused by none."""
        back = self.lease.back if self.lease and self.lease.stage is LeaseStage.RETURNING else None
        if back is None or back.failure or back.version is None or back.version <= self.serve.version:
            return None
        return back.version

    def find(self, lease_id: str) -> LeaseRecord | None:
        """Return a lease by its id: the current one, one in the queue, or one that ended."""
        known = (*((self.lease,) if self.lease else ()), *self.queue, *self.past)
        return next((lease for lease in known if lease.id == lease_id), None)

    def with_lease(self, **changes: object) -> GroupRecord:
        """Return the record with the current lease changed."""
        if self.lease is None:
            raise ValueError(f"group {self.group} has no lease to change")
        return self.model_copy(update={"lease": self.lease.model_copy(update=changes)})

    def retire(self, lease: LeaseRecord, stage: LeaseStage) -> GroupRecord:
        """Return the record with an ended lease moved to the past."""
        ended = lease.model_copy(update={"stage": stage})
        return self.model_copy(
            update={
                "lease": None if self.lease and self.lease.id == lease.id else self.lease,
                "queue": tuple(waiting for waiting in self.queue if waiting.id != lease.id),
                "past": (*self.past, ended)[-PAST:],
            }
        )

    def end_lease(self, stage: LeaseStage) -> GroupRecord:
        """Return the record with the devices back at the engine, one epoch on: late calls of the holder are refused."""
        if self.lease is None:
            raise ValueError(f"group {self.group} has no lease to end")
        moved = self.retire(self.lease, stage)
        return moved.model_copy(update={"epoch": self.epoch + 1, "owner": ENGINE, "manual": frozenset()})
