"""Everything plan() can ask for. A driver executes actions in the order of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ebbtide_api.base import Message
from ebbtide_api.errors import ErrorBody
from ebbtide_api.state import Phase
from ebbtide_api.verbs import LendResult, ReclaimResult, Verb

from .explanation import Explanation
from .finding import Finding
from .record import GroupRecord


@dataclass(frozen=True)
class EnsureMember:
    """Run a member's processes as its server asks; restart them if they run as an older spec asked."""

    member: str
    server: str
    ordinal: int


@dataclass(frozen=True)
class EndMember:
    """End a member's processes and free its memory."""

    member: str


@dataclass(frozen=True)
class Call:
    """Call a verb of a member's agent. `key` makes it run at most once; `base` is the key without its attempt."""

    member: str
    verb: Verb
    body: Message
    base: str
    key: str
    epoch: int
    instance: str
    deadline: float


@dataclass(frozen=True)
class Save:
    """Make a new intent durable. Nothing after it in the plan may run before it is."""

    record: GroupRecord


@dataclass(frozen=True)
class Finish:
    """End an operation, with its result, or its error."""

    operation: str
    result: LendResult | ReclaimResult | None = None
    error: ErrorBody | None = None


@dataclass(frozen=True)
class Retire:
    """Remove handed-off versions up to `version`: every member has its own copy."""

    version: int


Action = EnsureMember | EndMember | Call | Save | Finish | Retire


@dataclass(frozen=True)
class Progress:
    """How far an operation has come, for people."""

    text: str
    phase: Phase | None = None


@dataclass(frozen=True)
class Plan:
    """What to do now, what to say of each server, and when to look again (seconds; None: when something happens).

    why says of each server what is wanted of it and what is in the way.
    rests are the servers that nobody asks, and that sleep therefore.
    holds are the things that are waited for now; whoever calls plan() remembers since when (World.held).
    """

    actions: tuple[Action, ...] = ()
    conditions: Mapping[str, tuple[Finding, ...]] = field(default_factory=lambda: MappingProxyType({}))
    progress: Mapping[str, Progress] = field(default_factory=lambda: MappingProxyType({}))
    holds: frozenset[str] = frozenset()
    rests: frozenset[str] = frozenset()
    why: Mapping[str, Explanation] = field(default_factory=lambda: MappingProxyType({}))
    requeue_after: float | None = None
