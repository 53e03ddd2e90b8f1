"""What every shim works with, and what all engines' clients ask alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import Drain, DrainMode

from .asked import Answer, Asked
from .engines import Engines
from .mover import Done, Mover
from .sight import NO_ENGINE, Sight
from .updates import Updates


@dataclass(frozen=True)
class Desk:
    """The group, its weights, and its engines."""

    mover: Mover
    updates: Updates
    engines: Engines


Shim = Callable[[Desk, Asked], Answer]


def drain_of(desk: Desk, mode: DrainMode | None) -> Drain | None:
    """Return how to empty the engines; without a mode as each server's spec says."""
    return None if mode is None else Drain(mode=mode, timeout=desk.mover.holder.terms.timeout)


def wake(desk: Desk, tags: frozenset[str]) -> Done:
    """Wake what the tags name: the weights alone, or all that still sleeps, which ends the loan."""
    if not tags:
        return Done(desk.mover.look(), noop=True)
    if tags == {"weights"}:
        return desk.mover.wake_weights()
    return desk.mover.give_back(whole="weights" in tags)


def health(desk: Desk, _asked: Asked) -> Answer:
    """Say whether every engine lives. Asleep and paused are healthy: nobody shall restart them."""
    seen = desk.mover.look()
    if not seen.whole or seen.any_in(NO_ENGINE):
        raise seen.odd(ErrorCode.ENGINE_STARTING, "not every engine lives")
    return Answer({"status": "ok", "ebbtide": seen.wire()})


def health_generate(desk: Desk, _asked: Asked) -> Answer:
    """Let every member that is awake generate one token. Refused while the group does not serve."""
    seen = desk.mover.look()
    if not seen.serves:
        raise seen.odd(ErrorCode.ENGINE_ASLEEP, "the group does not serve")
    for server in seen.servers:
        for member in server.members:
            if member.admission:
                desk.engines.generate(server, member)
    return Answer({"status": "ok", "ebbtide": seen.wire()})


def version_of(desk: Desk, seen: Sight) -> str:
    """Return what the client calls the version that is in every engine. Raises MEMBERSHIP_CHANGED."""
    return desk.updates.label(seen.version)


def of_all(desk: Desk, asked: Asked) -> EbbtideError | None:
    """Return why single requests cannot be ended, when a client asks for that."""
    if not (asked.body.get("rid") or asked.body.get("request_ids")):
        return None
    message = "a single request cannot be ended here: which engine has it is not known."
    action = "Close its connection, which ends it; or end all of them (abort_all, or no request_ids)."
    return EbbtideError(ErrorCode.NOT_IMPLEMENTED, message, next_action=action)
