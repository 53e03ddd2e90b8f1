"""The next step of one member: a pure function of its state vector and its goal.

    PendingDevice -> (grant) Starting -> Running                                 goal Serving
    Running -> (sleep) Asleep                                                    goal Asleep
    Asleep -> (wake weights) WeightsResident -> (begin) Updating                 goal Loaded(v): stops here
           -> (commit) Committed -> (wake KV) Verifying -> (resume) Running      goal Serving(v)

Loading and serving a version are two goals, so that a group can wait until every member has loaded it before the
first one commits. A member that runs an older version than decided sleeps and takes the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from ebbtide_api.base import Message
from ebbtide_api.state import Level, Phase, StateVector, Weights
from ebbtide_api.verbs import (
    BeginUpdateRequest,
    Canary,
    CommitUpdateRequest,
    Drain,
    GrantRequest,
    Nothing,
    ResumeRequest,
    SleepRequest,
    Verb,
    WeightsSource,
)

DRAIN = Drain()
"""How a member is emptied unless somebody says otherwise."""


class Need(StrEnum):
    """What a step takes from the device: it waits until that is measured free."""

    NOTHING = "nothing"
    WEIGHTS = "weights"
    KV = "kv"
    ALL = "all"


@dataclass(frozen=True)
class Asleep:
    """Hold no memory of weights or KV. Not `confirmed`: who sleeps is asked again, to hear the answer of the call.

    `wakes`: a request that comes wakes it, and is held for `hold` seconds. `deeper`: without parked weights either.
    """

    level: int = 0
    drain: Drain = DRAIN
    settle: float = 0.2
    need_mib: float | None = None
    confirmed: bool = True
    wakes: bool = False
    hold: float = 0.0
    deeper: bool = False


@dataclass(frozen=True)
class Loaded:
    """Have a published version loaded and checked, not committed."""

    version: int
    source: str
    sleep: Asleep = Asleep()


@dataclass(frozen=True)
class Serving:
    """Take requests with `version` (0: whatever is committed). `source` may be gone: then an older version stays."""

    version: int = 0
    source: str = ""
    canary: Canary | None = None
    sleep: Asleep = Asleep()


@dataclass(frozen=True)
class Leave:
    """Nobody's goal: somebody drives the member by hand, or its device's owner was lost."""

    why: str


Goal = Asleep | Loaded | Serving | Leave


@dataclass(frozen=True)
class Do:
    """Call this verb now."""

    verb: Verb
    body: Message
    need: Need = Need.NOTHING
    version: int = 0


@dataclass(frozen=True)
class Wait:
    """Something runs or must happen first."""

    why: str


@dataclass(frozen=True)
class Done:
    """The goal is reached."""


Step = Do | Wait | Done

_RESTARTING = frozenset({Phase.FAULTED, Phase.RECOVERING})
_IN_MOTION = frozenset({Phase.STARTING, Phase.DRAINING, Phase.WAKING_WEIGHTS, Phase.WAKING_KV})
_UPDATABLE = frozenset({Phase.WEIGHTS_RESIDENT, Phase.COMMITTED, Phase.VERIFYING, Phase.PAUSED})


def next_step(state: StateVector, goal: Goal) -> Step:
    """Return what to do with a member to bring it nearer to its goal."""
    if isinstance(goal, Leave):
        return Done()
    if state.operation is not None:
        return Wait(f"{state.phase}: an operation runs")
    if state.phase in _RESTARTING:
        return Wait(f"{state.phase}: the engine restarts")
    if state.phase in _IN_MOTION:
        return Wait(f"{state.phase}")
    if state.phase is Phase.UNKNOWN:
        return Do(Verb.RECONCILE, Nothing())
    if isinstance(goal, Asleep):
        return _toward_asleep(state, goal)
    return _toward_serving(state, goal)


def _toward_asleep(state: StateVector, goal: Asleep) -> Step:
    if state.phase is Phase.PENDING_DEVICE and goal.confirmed:
        return Done()
    if state.phase is Phase.ASLEEP and goal.confirmed:
        return _try_deeper(state, goal) or _try_tell(state, goal) or Done()
    if state.phase is Phase.UPDATING:
        # A member that holds half a version cannot sleep: it has nothing to wake from.
        return Do(Verb.ABORT_UPDATE, Nothing())
    return _sleep(goal)


def _try_deeper(state: StateVector, goal: Asleep) -> Step | None:
    # No engine drops what it parked while it sleeps: it takes its weights back, and discards them.
    parked = goal.deeper and state.level is Level.PARKED
    return Do(Verb.WAKE_WEIGHTS, Nothing(), Need.WEIGHTS) if parked else None


def _try_tell(state: StateVector, goal: Asleep) -> Step | None:
    """Who sleeps is told when a request no longer wakes it, or now does: the same verb, which touches nothing."""
    if (state.wakes, state.hold_seconds) == (goal.wakes, goal.hold):
        return None
    return _sleep(replace(goal, level=0, need_mib=None))


def _toward_serving(state: StateVector, goal: Loaded | Serving) -> Step:
    return (
        _try_grant(state)
        or _try_done(state, goal)
        or _try_sleep_to_update(state, goal)
        or _try_wake_weights(state)
        or _try_abort(state, goal)
        or _try_commit(state, goal)
        or _try_begin(state, goal)
        or _try_reload(state)
        or _try_wake_kv(state)
        or _try_resume(state, goal)
        or Wait(f"{state.phase}")
    )


def _behind(state: StateVector, goal: Loaded | Serving) -> bool:
    return bool(goal.version > state.committed_version and goal.source)


def _try_grant(state: StateVector) -> Step | None:
    if state.phase is not Phase.PENDING_DEVICE:
        return None
    if state.boot < 1:
        return Wait("PendingDevice: the launcher has not announced itself")
    return Do(Verb.GRANT, GrantRequest(boot=state.boot), Need.ALL)


def _try_done(state: StateVector, goal: Loaded | Serving) -> Step | None:
    if isinstance(goal, Loaded):
        loaded = state.phase is Phase.UPDATING and state.pending_version == goal.version
        return Done() if loaded or goal.version <= state.committed_version else None
    if state.phase is Phase.RUNNING and not _behind(state, goal):
        return Done() if state.admission else Wait("Running: the gate is closed")
    return None


def _try_sleep_to_update(state: StateVector, goal: Loaded | Serving) -> Step | None:
    return _sleep(goal.sleep) if _behind(state, goal) and state.phase is Phase.RUNNING else None


def _sleep(goal: Asleep) -> Step:
    request = SleepRequest(
        level=goal.level,
        drain=goal.drain,
        need_mib=goal.need_mib,
        settle=goal.settle,
        wakes=goal.wakes,
        hold=goal.hold,
    )
    return Do(Verb.SLEEP, request)


def _try_wake_weights(state: StateVector) -> Step | None:
    if state.phase is Phase.SUSPENDING:
        # A release that was not complete: the member still holds its memory, so it needs no more.
        return Do(Verb.WAKE_WEIGHTS, Nothing())
    return Do(Verb.WAKE_WEIGHTS, Nothing(), Need.WEIGHTS) if state.phase is Phase.ASLEEP else None


def _try_abort(state: StateVector, goal: Loaded | Serving) -> Step | None:
    # Only Updating has something to abort, and only a version that is not the goal's. Version 0 was never published:
    # it is pending where an agent died while it loaded the model's own weights again.
    if state.phase is Phase.UPDATING and (state.pending_version != goal.version or not goal.version):
        return Do(Verb.ABORT_UPDATE, Nothing())
    return None


def _try_commit(state: StateVector, goal: Loaded | Serving) -> Step | None:
    if state.phase is not Phase.UPDATING or not isinstance(goal, Serving):
        return None
    return Do(Verb.COMMIT_UPDATE, CommitUpdateRequest(version=goal.version), version=goal.version)


def _try_begin(state: StateVector, goal: Loaded | Serving) -> Step | None:
    if _behind(state, goal) and state.phase in _UPDATABLE:
        request = BeginUpdateRequest(version=goal.version, source=WeightsSource(path=goal.source))
        return Do(Verb.BEGIN_UPDATE, request, version=goal.version)
    return None


def _try_reload(state: StateVector) -> Step | None:
    # Weights that are discarded, partial or unknown never serve: the last committed version is loaded again.
    if state.phase is Phase.WEIGHTS_RESIDENT and state.weights is not Weights.RESIDENT:
        return Do(Verb.RELOAD, Nothing())
    return None


def _try_wake_kv(state: StateVector) -> Step | None:
    if state.phase in {Phase.WEIGHTS_RESIDENT, Phase.COMMITTED}:
        return Do(Verb.WAKE_KV, Nothing(), Need.KV)
    return None


def _try_resume(state: StateVector, goal: Loaded | Serving) -> Step | None:
    if state.phase not in {Phase.VERIFYING, Phase.PAUSED}:
        return None
    canary = goal.canary if isinstance(goal, Serving) else None
    return Do(Verb.RESUME, ResumeRequest(canary=canary or Canary()), version=state.committed_version)
