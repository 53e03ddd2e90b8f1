"""Where a member is, from what can be observed. The way back from `Unknown`, and the check on every phase at rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ebbtide_api.state import KV, EngineState, Phase, RankState, Weights


@dataclass(frozen=True)
class Meet:
    """What all ranks agree on; `agree` is false when they do not, or when one is missing."""

    weights: Weights
    kv: KV
    version: int
    pending: int | None
    agree: bool


NOTHING_KNOWN = Meet(Weights.UNKNOWN, KV.UNKNOWN, 0, None, agree=False)


def meet(ranks: Sequence[RankState], expected: int) -> Meet:
    """Return the meet of the ranks of one replica, of which there must be `expected`."""
    if not ranks:
        return NOTHING_KNOWN
    views = {(rank.weights, rank.kv, rank.version, rank.pending_version) for rank in ranks}
    first = ranks[0]
    numbers = {rank.rank for rank in ranks}
    agree = len(views) == 1 and len(numbers) == expected == len(ranks)
    return Meet(
        weights=first.weights if len({rank.weights for rank in ranks}) == 1 else Weights.PARTIAL,
        kv=first.kv if len({rank.kv for rank in ranks}) == 1 else KV.UNKNOWN,
        version=min(rank.version for rank in ranks),
        pending=first.pending_version,
        agree=agree,
    )


def asleep(ranks: Meet) -> bool:
    """Say whether the ranks say that they hold no device memory, which is not yet a measurement."""
    return ranks.kv is KV.DISCARDED and ranks.weights in (Weights.PARKED, Weights.DISCARDED)


@dataclass(frozen=True)
class Observation:
    """Everything `derive` looks at. `engine` is absent while its API does not answer; byte counts are bytes."""

    boot: int
    grant: int
    kill: int
    engine_alive: bool
    engine_started: bool
    engine: EngineState | None
    ranks: int
    admission: bool
    committed: int
    used: int | None = None
    target: int | None = None

    @property
    def meet(self) -> Meet:
        """The meet of the observed ranks."""
        return meet(self.engine.ranks, self.ranks) if self.engine else NOTHING_KNOWN

    @property
    def measured_free(self) -> bool:
        """Whether the memory is at or under the target of a release."""
        return self.used is not None and self.target is not None and self.used <= self.target


def derive(seen: Observation) -> Phase:
    """Return the phase that a member is in, from observation alone."""
    if seen.boot and seen.kill == seen.boot:
        return Phase.RECOVERING
    if not seen.boot or seen.grant != seen.boot:
        return Phase.PENDING_DEVICE
    if not seen.engine_alive:
        return Phase.FAULTED if seen.engine_started else Phase.STARTING
    if seen.engine is None:
        return Phase.STARTING
    return _of_engine(seen, seen.engine, seen.meet)


def _of_engine(seen: Observation, engine: EngineState, ranks: Meet) -> Phase:
    if not ranks.agree or ranks.weights is Weights.UNKNOWN or ranks.kv is KV.UNKNOWN:
        return Phase.FAULTED
    if ranks.pending is not None or ranks.weights is Weights.PARTIAL:
        return Phase.UPDATING
    if ranks.weights is not Weights.RESIDENT:
        return _without_weights(seen, ranks)
    if ranks.kv is KV.DISCARDED:
        return Phase.COMMITTED if seen.committed and ranks.version == seen.committed else Phase.WEIGHTS_RESIDENT
    return _all_resident(seen, engine, ranks)


def _without_weights(seen: Observation, ranks: Meet) -> Phase:
    return Phase.ASLEEP if asleep(ranks) and seen.measured_free else Phase.SUSPENDING


def _all_resident(seen: Observation, engine: EngineState, ranks: Meet) -> Phase:
    if ranks.version != seen.committed:
        # A fresh engine holds version 0: bringing the committed one back is part of its start.
        return Phase.STARTING
    if engine.paused:
        return Phase.PAUSED
    return Phase.RUNNING if seen.admission else Phase.VERIFYING


_RESIDENT = {(Weights.RESIDENT, KV.RESIDENT)}
_ANY_KV = {KV.RESIDENT, KV.DISCARDED}
_AT_REST: dict[Phase, set[tuple[Weights, KV]]] = {
    Phase.RUNNING: _RESIDENT,
    Phase.PAUSED: _RESIDENT,
    Phase.VERIFYING: _RESIDENT,
    Phase.ASLEEP: {(Weights.PARKED, KV.DISCARDED), (Weights.DISCARDED, KV.DISCARDED)},
    Phase.WEIGHTS_RESIDENT: {(weights, kv) for weights in (Weights.RESIDENT, Weights.DISCARDED) for kv in _ANY_KV},
    Phase.COMMITTED: {(Weights.RESIDENT, kv) for kv in _ANY_KV},
}
_SERVING = frozenset({Phase.RUNNING, Phase.PAUSED, Phase.COMMITTED})


def contradicts(phase: Phase, ranks: Meet, committed: int) -> str | None:
    """Say how the engine differs from a member at rest in `phase`, or None when it does not."""
    if not ranks.agree:
        return "its ranks disagree"
    states = _AT_REST.get(phase)
    if states is not None and (ranks.weights, ranks.kv) not in states:
        return f"its weights are {ranks.weights} and its KV is {ranks.kv}"
    if phase in _SERVING and ranks.version != committed:
        return f"its weights are version {ranks.version}, not {committed}"
    return None
