"""vLLM's control paths, as vLLM 0.32 has them (entrypoints/serve/dev, entrypoints/rl/online), and prime-rl's own.

They move the whole group and block. The body has what vLLM answers, and under `ebbtide` what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import KV, Phase
from ebbtide_api.verbs import DrainMode

from .asked import Answer, Asked, invalid, mode_of, refuse, tags_of
from .desk import Desk, Shim, drain_of, health, of_all, version_of, wake
from .mover import Done
from .refused import BY_FOLDER, METHODS
from .sight import WEIGHTS_AWAKE

TAGS = {"weights": "weights", "kv_cache": "kv_cache"}


def sleep(desk: Desk, asked: Asked) -> Answer:
    """Borrow the group's memory, or that of its KV alone."""
    level, mode = asked.one("level"), mode_of(asked.one("mode"), ("abort", "wait"))
    if level not in ("", "1", "2"):
        action = "Use 1 or 2; /pause stops requests and keeps the memory."
        raise EbbtideError(
            ErrorCode.LEVEL_UNSUPPORTED, f"level {level!r} is none of 1, 2.", next_action=action, level=1
        )
    tags = tags_of(asked.query.get("tags", ()), TAGS)
    if tags == {"weights"}:
        raise refuse("weights alone cannot sleep: a KV without them serves nobody", "Leave the tags out.")
    if tags == {"kv_cache"}:
        return release_kv(desk, asked)
    done = desk.mover.lend(int(level or 0), drain_of(desk, mode))
    levels = {int(one.level) for one in done.sight.members if one.level}
    return _answer(done, status="sleeping", level=min(levels, default=None))


def release_kv(desk: Desk, _asked: Asked) -> Answer:
    """Give the KV's memory back, and keep the weights."""
    return _answer(desk.mover.release_kv(), status="kv_cache_released")


def wake_up(desk: Desk, asked: Asked) -> Answer:
    """Wake the weights; or all of it, which commits what was loaded and gives the memory back."""
    tags = asked.query.get("tags", ())
    done = wake(desk, tags_of(tags, TAGS))
    return _answer(done, status="awake" if done.sight.serves else "sleeping", tags=list(tags) or None)


def is_sleeping(desk: Desk, _asked: Asked) -> Answer:
    """Say whether every member is measured asleep, in whole or in part: as long as its KV has no memory."""
    seen = desk.mover.look()
    resting = seen.all_in({Phase.ASLEEP, *WEIGHTS_AWAKE})
    return Answer({"is_sleeping": resting and not any(member.kv is KV.RESIDENT for member in seen.members)})


def pause(desk: Desk, asked: Asked) -> Answer:
    """Shut every gate, and end, finish or freeze what is in flight."""
    mode = mode_of(asked.one("mode"), ("abort", "wait", "keep")) or DrainMode.ABORT
    return _answer(desk.mover.pause(mode), status="paused")


def resume(desk: Desk, _asked: Asked) -> Answer:
    """Open every gate."""
    return _answer(desk.mover.resume(), status="resumed")


def is_paused(desk: Desk, _asked: Asked) -> Answer:
    """Say whether no member takes requests."""
    seen = desk.mover.look()
    return Answer({"is_paused": not seen.admits, "ebbtide": seen.wire()})


def abort_requests(desk: Desk, asked: Asked) -> Answer:
    """End every request in flight."""
    if refusal := of_all(desk, asked):
        raise refusal
    return _answer(desk.mover.abort(), status="aborted")


def reset_prefix_cache(desk: Desk, asked: Asked) -> Answer:
    """Empty every prefix cache; as vLLM, `success: false` while requests hold blocks."""
    if asked.flag("reset_running_requests", False):
        desk.mover.abort()
    try:
        return _answer(desk.mover.flush(), success=True)
    except EbbtideError as error:
        if error.code is not ErrorCode.OPERATION_IN_PROGRESS:
            raise
        return Answer({"success": False, "ebbtide": error.body().wire()})


def update_weights(desk: Desk, asked: Asked) -> Answer:
    """Load weights from a folder: prime-rl's `weight_dir`, or `weights_path` in vLLM's `update_info`."""
    info = asked.body.get("update_info")
    inner = info if isinstance(info, Mapping) else {}
    path = asked.text("weight_dir") or Asked(asked.path, body=inner).text("weights_path")
    if not path:
        raise refuse("weights that are not in a folder cannot be taken by a whole group", BY_FOLDER)
    done = desk.updates.update(path, asked.text("weight_version"), field="weight_dir")
    return _answer(done, status="ok", message="Weights updated")


def weight_info(desk: Desk, _asked: Asked) -> Answer:
    """Say which version is in every engine."""
    seen = desk.mover.look()
    return Answer({"weight_version": version_of(desk, seen), "ebbtide": seen.wire()})


def collective_rpc(desk: Desk, asked: Asked) -> Answer:
    """Do the calls that have a verb here; every other one is refused by its name."""
    method, kwargs = asked.text("method"), asked.body.get("kwargs") or {}
    if not method:
        raise invalid("method", "is missing")
    if not isinstance(kwargs, Mapping):
        raise invalid("kwargs", f"{kwargs!r} is no object")
    if method == "reload_weights":
        return _rpc(_reload(desk, kwargs))
    if method == "sleep":
        return _rpc(desk.mover.lend(int(Asked("", body=kwargs).text("level") or 0)))
    if method == "wake_up":
        return _rpc(wake(desk, tags_of(kwargs.get("tags"), TAGS)))
    what, action = METHODS.get(method, ("methods of workers cannot be called through a group", BY_FOLDER))
    raise refuse(f"collective_rpc {method}: {what}", action)


def _reload(desk: Desk, kwargs: Mapping[str, Any]) -> Done:
    path = Asked("", body=kwargs).text("weights_path")
    return desk.updates.update(path, field="weights_path") if path else desk.updates.reload()


def _rpc(done: Done) -> Answer:
    return _answer(done, results=[None for _ in done.sight.members])


def _answer(done: Done, **shape: Any) -> Answer:
    return Answer({**shape, "ebbtide": done.wire()})


SHIMS: dict[tuple[str, str], Shim] = {
    ("POST", "/sleep"): sleep,
    ("POST", "/release_kv_cache_memory"): release_kv,
    ("POST", "/wake_up"): wake_up,
    ("GET", "/is_sleeping"): is_sleeping,
    ("POST", "/pause"): pause,
    ("POST", "/resume"): resume,
    ("GET", "/is_paused"): is_paused,
    ("POST", "/abort_requests"): abort_requests,
    ("POST", "/reset_prefix_cache"): reset_prefix_cache,
    ("POST", "/update_weights"): update_weights,
    ("GET", "/weight_info"): weight_info,
    ("POST", "/collective_rpc"): collective_rpc,
    ("GET", "/health"): health,
    ("GET", "/ping"): health,
    ("GET", "/liveness"): health,
}
