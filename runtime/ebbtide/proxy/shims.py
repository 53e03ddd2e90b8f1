"""vLLM's own control paths, for clients that were written for one engine: they move the whole group, and block.

POST /sleep?level=1&mode=abort   takes the lease and lends: answered when the memory is measured free
POST /wake_up                    gives back: answered when every engine serves again
GET  /is_sleeping                whether every member is measured asleep
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import Phase
from ebbtide_api.verbs import Drain, DrainMode, LendRequest, ReclaimRequest

from ..client.gateway import group_path
from .holder import Holder

Query = Mapping[str, Sequence[str]]
Shim = Callable[[Holder, Query], Any]
TAGS = ("weights", "kv_cache")
_MODES = {"abort": DrainMode.ABORT, "wait": DrainMode.WAIT}


def sleep(holder: Holder, query: Query) -> Any:
    """Borrow the group's memory."""
    level, mode = _one(query, "level"), _one(query, "mode")
    if level not in ("", "1", "2"):
        raise EbbtideError(ErrorCode.LEVEL_UNSUPPORTED, f"level {level!r} is none of 1, 2.", level=1)
    if mode and mode not in _MODES:
        raise EbbtideError(ErrorCode.INVALID_MODE, f"mode {mode!r} is none of {', '.join(_MODES)}.", modes=list(_MODES))
    drain = Drain(mode=_MODES[mode]) if mode else None
    _perform(holder, "lend", LendRequest(level=int(level or 0), drain=drain), holder.epoch())
    return {}


def wake_up(holder: Holder, query: Query) -> Any:
    """Give the group's memory back."""
    tags = {tag for each in query.get("tags", ()) for tag in each.split(",")} or set(TAGS)
    if wrong := sorted(tags - set(TAGS)):
        raise EbbtideError(ErrorCode.INVALID_TAG, f"there is no tag {wrong[0]!r}.")
    if tags != set(TAGS):
        message = f"waking {tags.pop()} alone is not supported here."
        action = "Wake everything: leave the tags out, or call the gateway's :wake-weights and :wake-kv."
        raise EbbtideError(ErrorCode.NOT_YET_SUPPORTED, message, next_action=action)
    if holder.held:
        _perform(holder, "reclaim", ReclaimRequest(), holder.epoch())
        holder.forget()
    return {}


def is_sleeping(holder: Holder, _query: Query) -> Any:
    """Say whether all of it sleeps."""
    servers = holder.run(holder.gateway.servers())
    members = [member for server in servers if server.group == holder.terms.group for member in server.members]
    return {"is_sleeping": bool(members) and all(member.phase is Phase.ASLEEP for member in members)}


SHIMS: dict[tuple[str, str], Shim] = {
    ("POST", "/sleep"): sleep,
    ("POST", "/wake_up"): wake_up,
    ("GET", "/is_sleeping"): is_sleeping,
}


def _perform(holder: Holder, verb: str, body: LendRequest | ReclaimRequest, epoch: int) -> None:
    path = f"{group_path(holder.terms.group)}:{verb}"
    timeout = holder.terms.timeout
    holder.run(holder.gateway.perform(path, body, epoch=epoch, timeout=timeout, watch=lambda _operation: None))


def _one(query: Query, name: str) -> str:
    values = query.get(name, ())
    return values[-1] if values else ""
