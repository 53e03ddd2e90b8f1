"""What can happen to a member, and what the table may say about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import Phase
from ebbtide_api.verbs import Verb


class Event(StrEnum):
    """A verb that was asked, or something that was observed."""

    GRANT = "grant"
    SLEEP = "sleep"
    WAKE_WEIGHTS = "wake-weights"
    BEGIN_UPDATE = "begin-update"
    COMMIT_UPDATE = "commit-update"
    ABORT_UPDATE = "abort-update"
    RELOAD = "reload"
    WAKE_KV = "wake-kv"
    RESUME = "resume"
    PAUSE = "pause"
    RELEASE_KV = "release-kv"
    RECONCILE = "reconcile"

    DERIVED = "derived"
    ENGINE_READY = "engine ready"
    DRAINED = "drained"
    QUIET = "quiet"
    DRAIN_ENDED = "drain given up"
    SLEEP_REFUSED = "sleep refused"
    RELEASED = "measured free"
    KV_RELEASED = "KV measured free"
    WEIGHTS_AWAKE = "weights awake"
    UPDATE_CHECKED = "update checked"
    UPDATE_COMMITTED = "update committed"
    KV_AWAKE = "KV awake"
    VERIFIED = "verified"
    FAULT = "fault"
    ENGINE_DIED = "engine died"
    DEADLINE = "deadline"
    KILLED = "killed"
    BOOTED = "launcher booted"


VERBS: frozenset[Event] = frozenset(Event(verb.value) for verb in Verb)
HAPPENINGS: frozenset[Event] = frozenset(Event) - VERBS


@dataclass(frozen=True)
class Start:
    """The verb is accepted; its operation begins in `phase`."""

    phase: Phase


@dataclass(frozen=True)
class Noop:
    """The verb's goal is true already; nothing changes."""


@dataclass(frozen=True)
class Refuse:
    """The verb is refused with `code`; nothing changes."""

    code: ErrorCode


@dataclass(frozen=True)
class Go:
    """The member moves to `phase`."""

    phase: Phase


@dataclass(frozen=True)
class Derive:
    """The member moves to where `derive()` says it is."""


@dataclass(frozen=True)
class Stay:
    """The event is old news here; nothing changes."""


@dataclass(frozen=True)
class Impossible:
    """No correct agent sees this: the operation fails as INTERNAL and nothing moves."""


Decision = Start | Noop | Refuse | Go | Derive | Stay | Impossible
