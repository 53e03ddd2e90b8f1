"""The lifecycle of one member as a table: (phase, event) -> decision. DESIGN 5.1, drawn in docs/lifecycle.md.

Total by construction: a verb that a row does not name is refused with the row's `otherwise`, a happening that it does
not name is impossible there. A row that decides an event twice stops the import.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ebbtide_api.errors import ErrorCode as Code
from ebbtide_api.state import Phase

from .events import HAPPENINGS, VERBS, Decision, Derive, Event, Go, Impossible, Noop, Refuse, Start, Stay

# Phases in which a member may stay for ever. Every other phase has a deadline.
TERMINAL: frozenset[Phase] = frozenset({Phase.PENDING_DEVICE, Phase.RUNNING, Phase.PAUSED, Phase.ASLEEP})
# Phases that exist only while an operation runs.
TRANSIENT: frozenset[Phase] = frozenset({Phase.DRAINING, Phase.WAKING_WEIGHTS, Phase.WAKING_KV})
# The one phase in which requests are admitted.
ADMITTING: frozenset[Phase] = frozenset({Phase.RUNNING})

_BROKEN = {Event.FAULT: Phase.FAULTED, Event.ENGINE_DIED: Phase.FAULTED, Event.BOOTED: Phase.PENDING_DEVICE}
_TIMED = {**_BROKEN, Event.DEADLINE: Phase.FAULTED}
_EVER_TRUE = frozenset({Event.GRANT, Event.RECONCILE})
# A kill that the launcher has answered already, and a derivation that lost its race, are old news anywhere.
_OLD_NEWS = frozenset({Event.KILLED, Event.DERIVED})


@dataclass(frozen=True)
class Row:
    """One phase. `refuse` names exceptions; verbs that no other column names are refused with `otherwise`."""

    start: Mapping[Event, Phase] = field(default_factory=dict)
    noop: frozenset[Event] = frozenset()
    refuse: Mapping[Event, Code] = field(default_factory=dict)
    otherwise: Code = Code.ILLEGAL_TRANSITION
    go: Mapping[Event, Phase] = field(default_factory=dict)
    stay: frozenset[Event] = frozenset()
    derive: frozenset[Event] = frozenset()


_ROWS: dict[Phase, Row] = {
    Phase.UNKNOWN: Row(
        noop=frozenset({Event.RECONCILE}),
        go={Event.FAULT: Phase.FAULTED, Event.BOOTED: Phase.PENDING_DEVICE, Event.DEADLINE: Phase.FAULTED},
        stay=frozenset({Event.ENGINE_DIED, Event.KILLED}),
        derive=frozenset({Event.DERIVED}),
    ),
    Phase.PENDING_DEVICE: Row(
        start={Event.GRANT: Phase.STARTING},
        noop=frozenset({Event.SLEEP, Event.ABORT_UPDATE, Event.RECONCILE}),
        go={Event.FAULT: Phase.FAULTED},
        stay=_OLD_NEWS | {Event.ENGINE_DIED, Event.BOOTED},
    ),
    Phase.STARTING: Row(
        noop=_EVER_TRUE | {Event.ABORT_UPDATE},
        otherwise=Code.ENGINE_STARTING,
        go={**_TIMED, Event.ENGINE_READY: Phase.VERIFYING},
        stay=_OLD_NEWS,
    ),
    Phase.RUNNING: Row(
        start={Event.SLEEP: Phase.DRAINING, Event.PAUSE: Phase.DRAINING, Event.RELEASE_KV: Phase.DRAINING},
        noop=_EVER_TRUE | {Event.RESUME, Event.WAKE_WEIGHTS, Event.WAKE_KV, Event.ABORT_UPDATE},
        go=_BROKEN,
        stay=_OLD_NEWS,
    ),
    Phase.PAUSED: Row(
        start={
            Event.SLEEP: Phase.DRAINING,
            Event.RELEASE_KV: Phase.DRAINING,
            Event.RESUME: Phase.VERIFYING,
            Event.BEGIN_UPDATE: Phase.PAUSED,
        },
        noop=_EVER_TRUE | {Event.PAUSE, Event.WAKE_WEIGHTS, Event.WAKE_KV, Event.ABORT_UPDATE},
        go={**_BROKEN, Event.UPDATE_CHECKED: Phase.UPDATING},
        stay=_OLD_NEWS,
    ),
    Phase.DRAINING: Row(
        otherwise=Code.OPERATION_IN_PROGRESS,
        go={**_TIMED, Event.DRAINED: Phase.SUSPENDING, Event.QUIET: Phase.PAUSED, Event.DRAIN_ENDED: Phase.RUNNING},
        stay=_OLD_NEWS,
    ),
    # At rest here after RELEASE_INCOMPLETE: the engine was told to sleep, and the memory was not measured free.
    Phase.SUSPENDING: Row(
        start={Event.SLEEP: Phase.SUSPENDING, Event.WAKE_WEIGHTS: Phase.WAKING_WEIGHTS, Event.RECONCILE: Phase.FAULTED},
        noop=frozenset({Event.GRANT, Event.ABORT_UPDATE}),
        go={**_TIMED, Event.RELEASED: Phase.ASLEEP, Event.KV_RELEASED: Phase.WAKING_WEIGHTS},
        stay=_OLD_NEWS,
        derive=frozenset({Event.SLEEP_REFUSED}),
    ),
    Phase.ASLEEP: Row(
        start={Event.WAKE_WEIGHTS: Phase.WAKING_WEIGHTS},
        noop=_EVER_TRUE | {Event.SLEEP, Event.RELEASE_KV, Event.ABORT_UPDATE},
        go=_BROKEN,
        stay=_OLD_NEWS,
    ),
    Phase.WAKING_WEIGHTS: Row(
        otherwise=Code.OPERATION_IN_PROGRESS,
        go={**_TIMED, Event.WEIGHTS_AWAKE: Phase.WEIGHTS_RESIDENT},
        stay=_OLD_NEWS,
    ),
    Phase.WEIGHTS_RESIDENT: Row(
        start={
            Event.SLEEP: Phase.SUSPENDING,
            Event.BEGIN_UPDATE: Phase.WEIGHTS_RESIDENT,
            Event.RELOAD: Phase.UPDATING,
            Event.WAKE_KV: Phase.WAKING_KV,
        },
        noop=_EVER_TRUE | {Event.WAKE_WEIGHTS, Event.RELEASE_KV, Event.ABORT_UPDATE},
        go={**_TIMED, Event.UPDATE_CHECKED: Phase.UPDATING},
        stay=_OLD_NEWS,
    ),
    Phase.UPDATING: Row(
        start={Event.COMMIT_UPDATE: Phase.UPDATING, Event.ABORT_UPDATE: Phase.UPDATING},
        noop=_EVER_TRUE | {Event.WAKE_WEIGHTS},
        refuse={Event.WAKE_KV: Code.WEIGHTS_NOT_COMMITTED, Event.RESUME: Code.WEIGHTS_NOT_COMMITTED},
        go={**_TIMED, Event.UPDATE_COMMITTED: Phase.COMMITTED},
        stay=_OLD_NEWS,
    ),
    Phase.COMMITTED: Row(
        start={
            Event.SLEEP: Phase.SUSPENDING,
            Event.BEGIN_UPDATE: Phase.COMMITTED,
            Event.RELOAD: Phase.UPDATING,
            Event.WAKE_KV: Phase.WAKING_KV,
        },
        noop=_EVER_TRUE | {Event.WAKE_WEIGHTS, Event.ABORT_UPDATE},
        go={**_TIMED, Event.UPDATE_CHECKED: Phase.UPDATING},
        stay=_OLD_NEWS,
    ),
    Phase.WAKING_KV: Row(
        otherwise=Code.OPERATION_IN_PROGRESS,
        go={**_TIMED, Event.KV_AWAKE: Phase.VERIFYING},
        stay=_OLD_NEWS,
    ),
    # At rest here after wake-kv, and after a canary that failed: new weights, or the old ones again, are a way on.
    Phase.VERIFYING: Row(
        start={
            Event.RESUME: Phase.VERIFYING,
            Event.SLEEP: Phase.DRAINING,
            Event.PAUSE: Phase.DRAINING,
            Event.RELEASE_KV: Phase.DRAINING,
            Event.BEGIN_UPDATE: Phase.VERIFYING,
            Event.RELOAD: Phase.UPDATING,
        },
        noop=_EVER_TRUE | {Event.WAKE_KV, Event.WAKE_WEIGHTS, Event.ABORT_UPDATE},
        go={**_TIMED, Event.VERIFIED: Phase.RUNNING, Event.UPDATE_CHECKED: Phase.UPDATING},
        stay=_OLD_NEWS,
    ),
    Phase.FAULTED: Row(
        start={Event.RECONCILE: Phase.FAULTED},
        otherwise=Code.ENGINE_FAULTED,
        go={Event.KILLED: Phase.RECOVERING, Event.BOOTED: Phase.PENDING_DEVICE, Event.DEADLINE: Phase.FAULTED},
        stay=frozenset({Event.FAULT, Event.ENGINE_DIED, Event.DERIVED}),
    ),
    # Its deadline asks the launcher to end the engine once more.
    Phase.RECOVERING: Row(
        noop=frozenset({Event.RECONCILE}),
        otherwise=Code.ENGINE_FAULTED,
        go={Event.BOOTED: Phase.PENDING_DEVICE, Event.DEADLINE: Phase.FAULTED},
        stay=frozenset({Event.FAULT, Event.ENGINE_DIED, Event.KILLED, Event.DERIVED}),
    ),
}


def _columns(row: Row) -> Iterable[tuple[Event, Decision]]:
    yield from ((event, Start(phase)) for event, phase in row.start.items())
    yield from ((event, Noop()) for event in row.noop)
    yield from ((event, Refuse(code)) for event, code in row.refuse.items())
    yield from ((event, Go(phase)) for event, phase in row.go.items())
    yield from ((event, Stay()) for event in row.stay)
    yield from ((event, Derive()) for event in row.derive)


def _decided(phase: Phase, row: Row) -> dict[Event, Decision]:
    cells: dict[Event, Decision] = {}
    for event, decision in _columns(row):
        if event in cells:
            raise ValueError(f"{phase} decides {event} twice")
        cells[event] = decision
    rest: dict[Event, Decision] = {event: Refuse(row.otherwise) for event in VERBS - cells.keys()}
    never: dict[Event, Decision] = {event: Impossible() for event in HAPPENINGS - cells.keys()}
    return {**cells, **rest, **never}


TABLE: dict[tuple[Phase, Event], Decision] = {
    (phase, event): decision for phase in Phase for event, decision in _decided(phase, _ROWS[phase]).items()
}


def decide(phase: Phase, event: Event) -> Decision:
    """Say what `event` does to a member in `phase`. Total: every pair has a decision."""
    return TABLE[phase, event]


def allowed(phase: Phase) -> list[Event]:
    """Return the verbs that a member in `phase` accepts, in the order of the interface."""
    return [event for event in Event if event in VERBS and isinstance(TABLE[phase, event], Start | Noop)]
