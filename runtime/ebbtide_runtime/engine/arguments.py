"""vLLM's command line: what Ebbtide sets, and the check that the user's own arguments leave that alone.

The check parses with vLLM's own parser and compares values, so prefixes (`--middlew`), underscores, `--name=value`,
dotted JSON and `--config` files are all seen as what they mean.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ebbtide_api.member import Engine, MemberConfig

_PACKAGE = "ebbtide_runtime.engine"
WORKERS = {
    Engine.CPU: f"{_PACKAGE}.worker.EbbtideCPUWorker",
    Engine.CUDA: f"{_PACKAGE}.cuda_worker.EbbtideCUDAWorker",
}
# Left at vLLM's default: another value would take the engine out of Ebbtide's hands, or is not supported yet.
LOCKED: Mapping[str, str] = {
    "middleware": "the gate must be the only middleware",
    "worker_cls": "the worker is Ebbtide's",
    "worker_extension_cls": "the worker is Ebbtide's",
    "load_format": "weights are read from safetensors alone",
    "model_loader_extra_config": "weights are read from safetensors alone",
    "enable_sleep_mode": "Ebbtide decides how the engine sleeps",
    "enable_cumem_allocator": "Ebbtide decides how the engine sleeps",
    "kv_transfer_config": "the KV connector is Ebbtide's",
    "kv_offloading_size": "the KV connector is Ebbtide's",
    "model_tag": "the model is spec.model.source",
    "uds": "the agent reaches the engine over TCP",
    "headless": "the gate lives in the API process",
    "grpc": "the gate guards HTTP",
    "root_path": "the agent knows the routes as they are",
    "api_server_count": "one API process a replica",
    "data_parallel_size": "one engine a replica",
    "data_parallel_rank": "one engine a replica",
    "data_parallel_backend": "one engine a replica",
    "nnodes": "one node a replica",
    "node_rank": "one node a replica",
    "ssl_keyfile": "TLS is not supported yet",
    "ssl_certfile": "TLS is not supported yet",
    "api_key": "API keys are not supported yet",
    "enable_elastic_ep": "replicas do not change their size",
}
# Values that a locked argument may have besides its default, because vLLM itself would choose them.
_ALSO: Mapping[str, tuple[object, ...]] = {"distributed_executor_backend": (None, "mp", "uni")}


class RefusedError(ValueError):
    """The user's arguments contradict what Ebbtide sets, or vLLM does not know them. The message says which."""


class Parser(Protocol):
    """vLLM's argument parser."""

    error: Callable[[str], object]

    def parse_args(self, args: list[str]) -> Namespace:
        """Parse a command line."""


def ours(member: MemberConfig) -> list[str]:
    """Return the arguments that Ebbtide sets for a member."""
    chosen = {
        "--model": member.model,
        "--served-model-name": member.served_name,
        "--host": member.host,
        "--port": str(member.data_port),
        "--tensor-parallel-size": str(member.tensor_parallel),
        "--pipeline-parallel-size": str(member.pipeline_parallel),
        "--load-format": "safetensors",
        "--worker-cls": WORKERS[member.engine],
        "--middleware": f"{_PACKAGE}.gate.Gate",
        "--revision": member.revision,
        "--quantization": member.quantization,
    }
    flags = ["--enable-sleep-mode"] if member.engine is Engine.CUDA else []
    return [part for name, value in chosen.items() if value for part in (name, value)] + flags


def command_line(parser: Parser, member: MemberConfig) -> list[str]:
    """Return the whole command line for vLLM. Raises RefusedError, naming every argument that is in the way."""
    fixed = ours(member)
    # The extra arguments alone, too: ours override what a `--config` file says, without a word.
    lines: list[list[str]] = [[], fixed, [*fixed, *member.extra_args], list(member.extra_args)]
    default, mine, together, alone = (_parse(parser, line) for line in lines)
    set_by_us = {part[2:].replace("-", "_") for part in fixed if part.startswith("--")}
    names = sorted(set_by_us | LOCKED.keys() | _ALSO.keys())
    if wrong := [said for name in names if (said := _contradiction(name, default, mine, together, alone))]:
        raise RefusedError(f"engine.extraArgs may not set {'; '.join(wrong)}")
    return [*fixed, *member.extra_args]


def _contradiction(name: str, *parsed: Namespace) -> str:
    """Say how what the user asks for differs from what Ebbtide sets, or nothing."""
    default, want, together, alone = (getattr(each, name, None) for each in parsed)
    allowed = (want, *_ALSO.get(name, ()))
    asked = together if together not in allowed or alone == default else alone
    if asked in allowed:
        return ""
    reason = LOCKED.get(name, f"Ebbtide sets {want!r}")
    return f"--{name.replace('_', '-')} to {asked!r} ({reason})"


def _parse(parser: Parser, arguments: list[str]) -> Namespace:
    def refuse(message: str) -> None:
        raise RefusedError(f"vLLM does not accept engine.extraArgs: {message}")

    parser.error = refuse
    try:
        return parser.parse_args(arguments)
    except SystemExit as problem:
        # `--help` and `--version` end the program.
        raise RefusedError("engine.extraArgs may not ask vLLM for help or its version") from problem
    except (ValueError, OSError) as problem:
        raise (
            problem if isinstance(problem, RefusedError) else RefusedError(f"engine.extraArgs: {problem}")
        ) from problem


def environment_problems(environment: Mapping[str, str], reserved: Sequence[tuple[str, str]]) -> list[str]:
    """Name the user's variables that Ebbtide reserves, with the reason."""
    return [f"{name} ({reason})" for name, reason in reserved if name in environment]
