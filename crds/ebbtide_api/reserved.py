"""What a user may not set on the engine, because Ebbtide sets it: flags of vLLM and environment variables.

This is the first look, by name, early and with a good message; abbreviations (`--middlew`) and values inside
JSON are found later by `launch`, which asks vLLM's own parser.
"""

from __future__ import annotations

from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from .spec import VALIDATIONS, Cel

# flag -> the field to use instead ("" = none)
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


class FreeFlag:
    """An annotation: the argument names no flag that Ebbtide sets."""

    def _check(self, argument: str) -> str:
        flag = flag_of(argument)
        if flag in FLAGS:
            instead = f": use {FLAGS[flag]}" if FLAGS[flag] else ""
            raise PydanticCustomError("rule", "{why}", {"why": f"Ebbtide sets the flag {flag}{instead}"})
        return argument

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check after the string itself."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add the CEL rule."""
        cel = Cel(f"!self.matches('{_pattern()}')", "Ebbtide sets this flag: use the field of the spec for it")
        return {**handler(schema), VALIDATIONS: [cel.schema()]}


def _pattern() -> str:
    """Return FLAGS as a regular expression (RE2) over one whole argument."""
    names = "|".join(flag[2:].replace("-", "[-_]") for flag in FLAGS if flag.startswith("--"))
    short = "|".join(flag[1:] for flag in FLAGS if not flag.startswith("--"))
    return f"^(--({names})|-({short}))(=.*)?$"


def environment_list() -> str:
    """Return ENVIRONMENT as a CEL list."""
    return "[" + ", ".join(f"'{name}'" for name in ENVIRONMENT) + "]"
