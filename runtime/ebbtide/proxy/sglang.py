"""SGLang's control paths, and AReaL's own: the same verbs as vLLM's, in another shape. Parameters are in the body."""

from __future__ import annotations

from typing import Any

from ebbtide_api.verbs import DrainMode

from .asked import Answer, Asked, mode_of, refuse, tags_of
from .desk import Desk, Shim, health_generate, of_all, version_of, wake
from .mover import Done

# Graphs keep their memory here: there is nothing to release, and nothing to wake.
TAGS = {"weights": "weights", "kv_cache": "kv_cache", "cuda_graph": ""}
_MODES = {"in_place": "keep"}


def release(desk: Desk, asked: Asked) -> Answer:
    """Borrow the group's memory, or that of its KV alone."""
    tags = tags_of(asked.body.get("tags"), TAGS)
    if tags == {"weights"}:
        raise refuse("weights alone cannot be released: a KV without them serves nobody", "Leave the tags out.")
    if tags == {"kv_cache"}:
        return _answer(desk.mover.release_kv(), "The KV's memory is measured free.")
    return _answer(desk.mover.lend(), "The memory is measured free.")


def resume(desk: Desk, asked: Asked) -> Answer:
    """Wake the weights; or all of it, which commits what was loaded and gives the memory back."""
    done = wake(desk, tags_of(asked.body.get("tags"), TAGS))
    return _answer(done, "Every engine serves." if done.sight.serves else "The KV sleeps on.")


def pause(desk: Desk, asked: Asked) -> Answer:
    """Shut every gate, and end or freeze what is in flight."""
    given = asked.text("mode")
    mode = mode_of(_MODES.get(given, given), ("abort", "wait", "keep")) or DrainMode.ABORT
    return _answer(desk.mover.pause(mode), "Generation is paused.")


def go_on(desk: Desk, _asked: Asked) -> Answer:
    """Open every gate; while the memory is lent there is none to open."""
    done = desk.mover.resume()
    return _answer(done, "Generation goes on." if done.sight.serves else done.note)


def flush_cache(desk: Desk, _asked: Asked) -> Answer:
    """Empty every prefix cache."""
    return _answer(desk.mover.flush(), "The caches are empty.")


def abort_request(desk: Desk, asked: Asked) -> Answer:
    """End every request in flight."""
    if refusal := of_all(desk, asked):
        raise refusal
    return _answer(desk.mover.abort(), "No request is in flight.")


def update_from_disk(desk: Desk, asked: Asked) -> Answer:
    """Load weights from a folder into every engine."""
    mode = DrainMode.ABORT if asked.flag("abort_all_requests", False) else DrainMode.WAIT
    done = desk.updates.update(asked.text("model_path"), asked.text("weight_version"), field="model_path", mode=mode)
    return _answer(done, "The weights are in every engine.", num_paused_requests=0)


def areal_update(desk: Desk, asked: Asked) -> Answer:
    """Load weights from a folder; AReaL's server ends what is in flight for it."""
    done = desk.updates.update(asked.text("model_path"), field="model_path", mode=DrainMode.ABORT)
    return _answer(done, "The weights are in every engine.")


def get_weight_version(desk: Desk, _asked: Asked) -> Answer:
    """Say which version is in every engine, loaded or committed."""
    seen = desk.mover.look()
    return Answer({"weight_version": version_of(desk, seen), "ebbtide": seen.wire()})


def info(desk: Desk, _asked: Asked) -> Answer:
    """Say what is known of the group."""
    seen = desk.mover.look()
    model = seen.servers[0].model if seen.servers else ""
    known = {"model_path": model, "served_model_name": model, "weight_version": version_of(desk, seen)}
    # What TRL's client reads of vLLM's own: without such an engine it says so, and does not wait for NCCL.
    vllm = {"weight_transfer_config": None}
    return Answer({**known, "is_generation": True, "vllm_config": vllm, "ebbtide": seen.wire()})


def _answer(done: Done, message: str, **more: Any) -> Answer:
    return Answer({"success": True, "status": "ok", "message": message, **more, "ebbtide": done.wire()})


SHIMS: dict[tuple[str, str], Shim] = {
    ("POST", "/release_memory_occupation"): release,
    ("POST", "/resume_memory_occupation"): resume,
    ("POST", "/pause_generation"): pause,
    ("POST", "/continue_generation"): go_on,
    ("POST", "/flush_cache"): flush_cache,
    ("GET", "/flush_cache"): flush_cache,
    ("POST", "/abort_request"): abort_request,
    ("POST", "/update_weights_from_disk"): update_from_disk,
    ("GET", "/get_weight_version"): get_weight_version,
    ("GET", "/weight_version"): get_weight_version,
    ("GET", "/model_info"): info,
    ("GET", "/get_model_info"): info,
    ("GET", "/server_info"): info,
    ("GET", "/get_server_info"): info,
    ("GET", "/health_generate"): health_generate,
    ("POST", "/areal_pause_generation"): pause,
    ("POST", "/areal_continue_generation"): go_on,
    ("POST", "/areal_update_weights"): areal_update,
}
