"""The choices of the lifecycle that are numbers: sleep levels, release targets, whether a goal is true already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import KV, Level, Phase, Weights
from ebbtide_api.verbs import Verb

from .derive import Meet

MIB = 1 << 20
SLACK = 16 * MIB
SLACK_PERCENT = 5


@dataclass(frozen=True)
class Refusal:
    """Why something is not done: a code, a sentence, and its numbers for the caller."""

    code: ErrorCode
    message: str
    details: Mapping[str, float | str]


@dataclass(frozen=True)
class LevelQuestion:
    """What the level of a sleep depends on. Byte counts; `host_room` is what may still be taken for a parked copy."""

    asked: int
    configured: int
    may_park: bool
    parked_valid: bool
    weights_bytes: int
    host_room: int
    has_source: bool
    forces_parked: bool = False


def choose_level(question: LevelQuestion) -> Level | Refusal:
    """Choose how deep to sleep (DESIGN 5.2, 11): a parked copy or room for one: 1; else 2, with a source."""
    want = question.asked or question.configured
    if want == Level.DISCARDED:
        return _discarded(question)
    parkable = question.parked_valid or (question.may_park and question.weights_bytes <= question.host_room)
    if parkable:
        return Level.PARKED
    if want == Level.PARKED or question.forces_parked or not question.has_source:
        return _no_room(question)
    return Level.DISCARDED


def _discarded(question: LevelQuestion) -> Level | Refusal:
    if question.forces_parked:
        return Refusal(
            ErrorCode.LEVEL_UNSUPPORTED, "adapters or draft weights have no source to come back from", {"level": 1}
        )
    if not question.has_source:
        return Refusal(ErrorCode.LEVEL_UNSUPPORTED, "discarded weights would have no source", {"level": 1})
    return Level.DISCARDED


def _no_room(question: LevelQuestion) -> Refusal:
    if not question.may_park:
        return Refusal(ErrorCode.LEVEL_UNSUPPORTED, "parking is off, so level 1 keeps no weights", {"level": 2})
    return host_refusal("a parked copy of the weights", question.weights_bytes, question.host_room)


def host_refusal(what: str, need: int, room: int) -> Refusal:
    """Return the refusal of a host allocation, with the numbers in MiB."""
    numbers = {"needMiB": round(need / MIB, 2), "availableMiB": round(room / MIB, 2)}
    sentence = f"{what} needs {numbers['needMiB']} MiB of host memory and {numbers['availableMiB']} MiB may be taken"
    return Refusal(ErrorCode.HOST_MEMORY_INSUFFICIENT, sentence, numbers)


def host_room(limit: int | None, held: int, available: int) -> int:
    """Return the host bytes that may still be taken: under the limit, and there at all."""
    return max(0, available if limit is None else min(limit - held, available))


@dataclass(frozen=True)
class TargetQuestion:
    """What a release is measured against, in bytes. `residual` was learned at the first sleep; 0 or None = unknown."""

    residual: int | None
    baseline: int
    used_before: int
    arena: int
    budget: int
    need: int | None = None


def release_target(question: TargetQuestion) -> int:
    """Return the most device bytes that a released member may still use."""
    expected = question.residual or question.baseline or max(0, question.used_before - question.arena * 95 // 100)
    most = expected + expected * SLACK_PERCENT // 100 + SLACK
    return most if question.need is None else min(most, question.budget - question.need)


def should_park(*, eager: bool, valid: bool, parking: bool, weights_bytes: int, room: int) -> bool:
    """Say whether to make a parked copy now, while serving. `parking`: one is being made."""
    return eager and not valid and not parking and weights_bytes <= room


@dataclass(frozen=True)
class Facts:
    """What the goals of verbs are compared with. `pending` is a version that is loaded and not committed."""

    phase: Phase
    ranks: Meet
    committed: int


def goal_reached(verb: Verb, version: int | None, facts: Facts) -> bool:
    """Say whether the goal of a verb is true now. `version` is the body's, where it has one."""
    phase, ranks = facts.phase, facts.ranks
    match verb:
        case Verb.BEGIN_UPDATE:
            return phase is Phase.UPDATING and ranks.pending == version
        case Verb.COMMIT_UPDATE:
            return ranks.pending is None and facts.committed == version == ranks.version
        case Verb.ABORT_UPDATE:
            return ranks.pending is None and phase not in _NOTHING_SAID and ranks.weights is not Weights.PARTIAL
        case Verb.RELOAD:
            return phase in _WEIGHTS_IN and ranks.weights is Weights.RESIDENT and ranks.version == facts.committed
        case Verb.WAKE_WEIGHTS:
            return phase in _WEIGHTS_IN
        case Verb.RELEASE_KV:
            return phase in _WEIGHTS_IN and ranks.kv is KV.DISCARDED
        case _:
            return phase in _GOALS[verb]


_NOTHING_SAID = frozenset({Phase.UNKNOWN, Phase.UPDATING, Phase.FAULTED, Phase.RECOVERING})
_WEIGHTS_IN = frozenset({Phase.WEIGHTS_RESIDENT, Phase.COMMITTED})
_GOALS: dict[Verb, frozenset[Phase]] = {
    Verb.GRANT: frozenset(Phase) - {Phase.PENDING_DEVICE, Phase.UNKNOWN, Phase.FAULTED, Phase.RECOVERING},
    Verb.SLEEP: frozenset({Phase.ASLEEP}),
    Verb.WAKE_KV: frozenset({Phase.VERIFYING, Phase.RUNNING}),
    Verb.RESUME: frozenset({Phase.RUNNING}),
    Verb.PAUSE: frozenset({Phase.PAUSED}),
    Verb.RECONCILE: frozenset(Phase) - {Phase.UNKNOWN, Phase.FAULTED},
}


_NEEDS_WEIGHTS = frozenset({Verb.WAKE_KV, Verb.RESUME})
_ANSWERING = frozenset(
    {Phase.SUSPENDING, Phase.ASLEEP, Phase.WEIGHTS_RESIDENT, Phase.UPDATING, Phase.COMMITTED, Phase.VERIFYING}
)
_LOST = frozenset({Weights.DISCARDED, Weights.PARTIAL, Weights.UNKNOWN})


def weights_refusal(verb: Verb, phase: Phase, weights: Weights) -> Refusal | None:
    """Refuse to go towards serving without weights: discarded, partial and unknown ones never serve."""
    if verb not in _NEEDS_WEIGHTS or phase not in _ANSWERING or weights not in _LOST:
        return None
    return Refusal(ErrorCode.WEIGHTS_NOT_COMMITTED, f"the weights are {weights}", {"weights": weights.value})
