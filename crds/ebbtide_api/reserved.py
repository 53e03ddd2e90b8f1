"""What a user may not set on the engine, because Ebbtide sets it: flags of vLLM and environment variables.

This is the first look, by name, early and with a good message; abbreviations (`--middlew`) and values inside
JSON are found later by `launch`, which asks vLLM's own parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# flag -> where to say it instead ("" = nowhere)
FLAGS: dict[str, str] = {
    "--api-server-count": "",
    "-asc": "",
    "--config": "spec.engine.extraArgs, one flag each",
    "--enable-sleep-mode": "spec.sleep",
    "--no-enable-sleep-mode": "spec.sleep",
    "--grpc": "",
    "--headless": "",
    "--host": "",
    "--kv-transfer-config": "spec.cachePolicy and spec.pair",
    "--load-format": "",
    "--middleware": "",
    "--model": "spec.model.source",
    "--pipeline-parallel-size": "spec.parallelism.pipeline",
    "-pp": "spec.parallelism.pipeline",
    "--port": "spec.engine.port",
    "--quantization": "spec.model.quantization",
    "-q": "spec.model.quantization",
    "--revision": "spec.model.revision",
    "--served-model-name": "spec.model.servedName",
    "--tensor-parallel-size": "spec.parallelism.tensor",
    "-tp": "spec.parallelism.tensor",
    "--uds": "",
    "--worker-cls": "",
}

ENVIRONMENT: tuple[str, ...] = (
    "EBBTIDE_LIBRARY",
    "EBBTIDE_MEMBER",
    "PYTHONHOME",
    "PYTHONPATH",
    "VLLM_PLUGINS",
    "VLLM_SERVER_DEV_MODE",
    "VLLM_USE_RUST_FRONTEND",
)


def flag_of(argument: str) -> str:
    """Return the flag that an argument names, as vLLM normalizes it: `--worker_cls=x` is `--worker-cls`."""
    name = argument.split("=", 1)[0]
    return name.replace("_", "-") if name.startswith("--") else name


def taken(arguments: Iterable[str]) -> list[str]:
    """Return the arguments that name a flag which Ebbtide sets."""
    return [argument for argument in arguments if flag_of(argument) in FLAGS]


def flags_pattern() -> str:
    """Return FLAGS as a regular expression (RE2) over one whole argument."""
    names = "|".join(re.escape(flag).replace(r"\-", "-").replace("-", "[-_]") for flag in _stems("--"))
    short = "|".join(_stems("-"))
    return f"^(--({names})|-({short}))(=.*)?$"


def _stems(dashes: str) -> list[str]:
    long = dashes == "--"
    return [flag.lstrip("-") for flag in FLAGS if flag.startswith("--") is long]


def environment_list() -> str:
    """Return ENVIRONMENT as a CEL list."""
    return "[" + ", ".join(f"'{name}'" for name in ENVIRONMENT) + "]"
