"""What is said of a server: chains of pure checks. The first check that finds something is the condition's reason.

Exactly one of Ready, Reconciling and Stalled is true. Ready means as you asked: serving, asleep, or lent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ebbtide_api.conditions import ConditionStatus, ConditionType
from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage

from .finding import Finding
from .group import Moves, step_base
from .idle import Rest
from .lending import MEMORY_DEADLINE, error_of
from .lost import how_to_end, unmeasured
from .member import Do, Done, Wait
from .world import Idle, MemberView, ServerView, World

TRIES = 3
"""How many answers without effect make a step stalled."""


@dataclass(frozen=True)
class Reason:
    """What a check found, what to do about it (without advice it passes by itself), and which member it is about."""

    word: str
    what: str
    advice: str = ""
    about: str = ""

    @property
    def sentence(self) -> str:
        """Both, for people."""
        return f"{self.what} {self.advice}".rstrip()


@dataclass(frozen=True)
class Situation:
    """What the checks look at: one server in its world, and what its members do next."""

    world: World
    server: ServerView
    moves: Moves
    now: float

    @property
    def members(self) -> tuple[MemberView, ...]:
        """The server's members."""
        return self.world.members_of(self.server.name)

    @property
    def rest(self) -> Rest | None:
        """How the server rests, if nobody asks it."""
        return self.moves.rests.get(self.server.name)

    @property
    def stage(self) -> LeaseStage | None:
        """The stage of the group's lease."""
        return self.world.record.lease.stage if self.world.record.lease else None

    @property
    def holder(self) -> str:
        """Who has the group's lease."""
        return self.world.record.lease.holder if self.world.record.lease else "nobody"


Check = Callable[[Situation], Reason | None]


def _owner_lost(at: Situation) -> Reason | None:
    if at.stage is not LeaseStage.OWNER_LOST:
        return None
    trainer = at.world.trainer
    if trainer and trainer.unmeasured:
        trainer = unmeasured(at.world)
    held = how_to_end(trainer) if trainer and trainer.alive else ""
    return Reason("OwnerLost", f"{at.holder} let its lease expire; its memory was not measured free yet.", held)


def device_not_free(at: Situation) -> Reason | None:
    """Say which memory has not become free for so long that somebody must look."""
    for hold, error in at.moves.blocked.items():
        if at.now - at.world.held.get(hold, at.now) > MEMORY_DEADLINE:
            return Reason("DeviceNotFree", error.message, "Free it, or raise the device's budget.")
    return None


def _canary_failed(at: Situation) -> Reason | None:
    for member in at.members:
        error = _last_error(at, member)
        if error and error[0] is ErrorCode.CANARY_FAILED:
            way = "Publish another version, or reload the old one."
            return Reason("CanaryFailed", f"{member.name} answered its canary wrong: {error[1]}", way, member.name)
    return None


def _version_behind(at: Situation) -> Reason | None:
    serve = at.world.record.serve
    for member in at.members:
        if member.state and member.state.phase is Phase.RUNNING and member.state.committed_version < serve.version:
            has = f"{member.name} serves version {member.state.committed_version}, the group version {serve.version}"
            return Reason("VersionBehind", f"{has}, whose files are gone.", "Publish a newer version.", member.name)
    return None


def _keeps_failing(at: Situation) -> Reason | None:
    for member in at.members:
        step = at.moves.steps.get(member.name)
        if isinstance(step, Do) and len(member.answers(step_base(at.world, member, step))) >= TRIES:
            error = _last_error(at, member)
            why = error[1] if error else "it says that it is done, and is not"
            look = f"See `ebbtide logs {member.name}`."
            return Reason("KeepsFailing", f"{member.name} does not {step.verb}: {why}", look, member.name)
    return None


def _last_error(at: Situation, member: MemberView) -> tuple[ErrorCode, str] | None:
    step = at.moves.steps.get(member.name)
    answers = member.answers(step_base(at.world, member, step)) if isinstance(step, Do) else ()
    error = error_of(answers[-1]) if answers else None
    return (error.code, error.message) if error else None


def _process_trouble(at: Situation) -> Reason | None:
    troubled = next((member for member in at.members if member.trouble), None)
    if troubled is None:
        return None
    return Reason("ProcessTrouble", f"{troubled.name}: {troubled.trouble}", about=troubled.name)


STALLED: tuple[Check, ...] = (
    _owner_lost,  # a dead holder frees nothing: people must hear of it before anything else
    device_not_free,  # the engines wait for memory that somebody keeps
    _canary_failed,  # the gate stays shut
    _version_behind,  # one member answers with older weights than the others
    _keeps_failing,  # a step that never has its effect
    _process_trouble,  # agent or launcher do not stay up
)


def lease_moves(at: Situation) -> Reason | None:
    """Say that the group is between two owners."""
    if at.stage is LeaseStage.LENDING:
        return Reason("Lending", f"The memory is on its way to {at.holder}.")
    if at.stage is LeaseStage.RETURNING:
        return Reason("Returning", f"The memory is on its way back from {at.holder}.")
    return None


def _unreachable(at: Situation) -> Reason | None:
    absent = [member.name for member in at.members if member.state is None]
    return Reason("AgentUnreachable", f"No answer from the agent of {', '.join(absent)} yet.") if absent else None


def _restarting(at: Situation) -> Reason | None:
    names = [m.name for m in at.members if m.state and m.state.phase in {Phase.FAULTED, Phase.RECOVERING}]
    return Reason("Restarting", f"The engine of {', '.join(names)} failed and is started again.") if names else None


def moving(at: Situation) -> Reason | None:
    """Say which member has a step before it. A server that falls asleep because nobody asks is as asked all the way."""
    if at.rest:
        return None
    for member in at.members:
        match at.moves.steps.get(member.name, Done()):
            case Wait(why):
                return Reason("Moving", f"{member.name}: {why}.")
            case Do(verb):
                return Reason("Moving", f"{member.name}: next is {verb}.")
    return None


RECONCILING: tuple[Check, ...] = (
    _unreachable,  # nothing is known of a member
    _restarting,  # an engine died
    lease_moves,  # the group is between two owners
    moving,  # a member has a step before it
)


def conditions(at: Situation) -> tuple[Finding, ...]:
    """Return every condition of one server."""
    stalled, under_way = first(STALLED, at), first(RECONCILING, at)
    if stalled:
        under_way = None
    settled = Reason("Settled", "Nothing is to be done.")
    return (
        _ready(at, stalled or under_way),
        _finding(ConditionType.RECONCILING, under_way is not None, under_way or stalled or settled),
        _finding(ConditionType.STALLED, stalled is not None, stalled or under_way or settled),
        _serving(at),
        _released(at),
    )


def is_as_asked(at: Situation) -> bool:
    """Say whether a server is as asked."""
    return first((*STALLED, *RECONCILING), at) is None


def first(checks: Iterable[Check], at: Situation) -> Reason | None:
    """Return what the first check of a chain finds, if any finds something."""
    return next((reason for check in checks if (reason := check(at))), None)


def _finding(kind: ConditionType, holds: bool, reason: Reason) -> Finding:
    status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
    return Finding(kind, status, reason.word, reason.sentence)


def _ready(at: Situation, obstacle: Reason | None) -> Finding:
    return _finding(ConditionType.READY, obstacle is None, obstacle or as_asked(at))


def as_asked(at: Situation) -> Reason:
    """Return how a server is that is as asked."""
    if at.stage is LeaseStage.LENT:
        return Reason("Lent", f"Asleep: the memory is lent to {at.holder}.")
    if at.server.name in at.world.record.manual:
        return Reason("Manual", "Driven step by step; `:reconcile` hands it back.")
    if at.server.awake == 0:
        return Reason("Asleep", "Asleep, as asked.")
    if at.rest and at.rest.turn:
        return _waiting(at, at.rest.turn)
    if at.rest and at.server.idle:
        return _resting(at, at.server.idle)
    return Reason("Serving", f"{at.server.awake} of {at.server.replicas} replicas serve.")


def _resting(at: Situation, idle: Idle) -> Reason:
    then = "a request wakes it" if idle.wakes else "no request wakes it"
    if not all(member.released for member in at.members):
        return Reason("FallingAsleep", f"Nobody asks: it is on its way to sleep, and {then}.")
    return Reason("Idle", f"Asleep, because nobody asked for {idle.after:g} s; {then}.")


def _waiting(at: Situation, turn: str) -> Reason:
    if not all(member.released for member in at.members):
        return Reason("Yielding", f"On its way to sleep: it is the turn of {turn}, and a request asks for it back.")
    return Reason("OthersTurn", f"Asleep: {turn} has the device now, and a request asks for it.")


def _serving(at: Situation) -> Finding:
    count = sum(member.serving for member in at.members)
    sentence = f"{count} of {len(at.members)} members take requests."
    return _finding(ConditionType.SERVING, count > 0, Reason("Serving" if count else "NotServing", sentence))


def _released(at: Situation) -> Finding:
    if any(member.state is None for member in at.members):
        unknown = Reason("AgentUnreachable", "Not every member could be asked.")
        return Finding(ConditionType.MEMORY_RELEASED, ConditionStatus.UNKNOWN, unknown.word, unknown.sentence)
    held = sum(member.used_mib for member in at.members)
    released = all(member.released for member in at.members)
    word = "MeasuredFree" if released else "InUse"
    return _finding(ConditionType.MEMORY_RELEASED, released, Reason(word, f"The members use {held:.0f} MiB, measured."))
