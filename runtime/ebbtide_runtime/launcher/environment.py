"""The environment of the engine: the user's, with what Ebbtide needs, and without what would undo it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points

from ebbtide_api.member import Engine, MemberConfig

PLUGIN = "ebbtide"
# Read by the engine's processes: which member they belong to.
MEMBER = "EBBTIDE_MEMBER"
_OFF = ("", "0", "false", "no")
# Switches that would open a way around the gate; `0` and the like are fine.
_SWITCHES = {
    "VLLM_SERVER_DEV_MODE": "dev mode has routes that sleep, wake and run code past the gate",
    "VLLM_USE_RUST_FRONTEND": "the Rust frontend has no middleware, so no gate",
}
_RESERVED = {
    MEMBER: "Ebbtide sets it",
    "PYTHONPATH": "it would decide which vLLM and which Ebbtide run",
    "VLLM_API_KEY": "API keys are not supported yet",
}
_DEFAULTS = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_INHERITED_OUT = ("VLLM_API_KEY",)


def problems(member: MemberConfig) -> list[str]:
    """Name the variables of `engine.env` that contradict what Ebbtide sets, each with the reason."""
    reserved = [f"{name} ({reason})" for name, reason in _RESERVED.items() if name in member.env]
    switched = [
        f"{name}={member.env[name]} ({reason})" for name, reason in _SWITCHES.items() if _is_on(member.env.get(name))
    ]
    return reserved + switched


def _is_on(value: str | None) -> bool:
    return value is not None and value.strip().lower() not in _OFF


def build(
    member: MemberConfig,
    path: str,
    inherited: Mapping[str, str],
    installed: Iterable[str],
    processors: Sequence[int],
) -> dict[str, str]:
    """Return the engine's environment. `installed` are the names of all vLLM plugins, `processors` those we may use."""
    kept = {name: value for name, value in inherited.items() if name not in _INHERITED_OUT}
    asked = {**_DEFAULTS, **kept, **member.env}
    plugins = asked["VLLM_PLUGINS"].split(",") if "VLLM_PLUGINS" in asked else sorted(installed)
    fixed = {
        MEMBER: path,
        # One list filters every kind of vLLM's plugins, so the others must be on it too.
        "VLLM_PLUGINS": ",".join(dict.fromkeys([*(name.strip() for name in plugins if name.strip()), PLUGIN])),
        **dict.fromkeys(_SWITCHES, "0"),
    }
    return {**_threads(member, processors), **asked, **fixed}


def _threads(member: MemberConfig, processors: Sequence[int]) -> dict[str, str]:
    """Give each rank on the CPU its share of the processors: vLLM itself refuses to split one memory node."""
    ranks = member.tensor_parallel * member.pipeline_parallel
    share = len(processors) // ranks
    if member.engine is not Engine.CPU or ranks == 1 or share == 0:
        return {}
    shares = [processors[rank * share : (rank + 1) * share] for rank in range(ranks)]
    return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, each)) for each in shares)}


def installed_plugins() -> set[str]:
    """Return the names of every installed vLLM plugin, of any kind."""
    groups = (group for group in entry_points().groups if group.startswith("vllm."))
    return {each.name for group in groups for each in entry_points(group=group)}


def processors() -> list[int]:
    """Return the processors this process may use."""
    return sorted(os.sched_getaffinity(0))
