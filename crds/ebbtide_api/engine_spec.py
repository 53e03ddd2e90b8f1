"""The parts of an InferenceServer's spec that say what is served, and by which engine."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from . import reserved
from .spec import Spec, list_map, list_of, rule

Argument = Annotated[str, Field(min_length=1, max_length=2048, pattern=r"^[^\x00-\x1f\x7f]*$"), reserved.FreeFlag()]


class Model(Spec):
    """The model to serve."""

    source: str = Field(
        min_length=1,
        max_length=4096,
        pattern=r"^[^\x00-\x1f\x7f-][^\x00-\x1f\x7f]*$",
        description="The folder with the model's safetensors, config and tokenizer: an absolute path as the engine sees"
        " it. In a file given to `ebbtide`, a path that starts with ./ or ../ is relative to that file.",
    )
    served_name: str = Field(
        "",
        max_length=253,
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._:/@-]*)?$",
        description="The model's name in requests. Empty means the server's name.",
    )
    revision: str = Field(
        "",
        max_length=253,
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._/-]*)?$",
        description="The branch, tag or commit of the model on a model hub. Empty means the default one.",
    )
    quantization: str = Field(
        "",
        max_length=63,
        pattern=r"^([a-z0-9][a-z0-9_.-]*)?$",
        description="vLLM's name of the quantization, such as fp8. Empty means as the model's config says.",
    )

    @rule(
        "!self.source.startsWith('./') && !self.source.startsWith('../')",
        "source is an absolute path; only `ebbtide` resolves ./ and ../, against the file it reads",
        field="source",
    )
    def _source_is_resolved(self) -> bool:
        return not self.source.startswith(("./", "../"))


class Parallelism(Spec):
    """How one replica is spread over devices."""

    tensor: int = Field(1, ge=1, le=64, description="Tensor-parallel ranks of a replica.")
    pipeline: int = Field(1, ge=1, le=64, description="Pipeline-parallel stages of a replica.")


class EnvVar(Spec):
    """One environment variable."""

    name: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", min_length=1, max_length=128, description="The variable's name."
    )
    value: str = Field("", max_length=4096, pattern=r"^[^\x00]*$", description="The variable's value, taken as it is.")

    @rule(f"!(self.name in {reserved.environment_list()})", "Ebbtide sets this variable", field="name")
    def _is_free(self) -> bool:
        return self.name not in reserved.ENVIRONMENT


class EngineSpec(Spec):
    """The engine that serves the model."""

    image: str = Field(
        "",
        max_length=512,
        pattern=r"^([a-zA-Z0-9]([a-zA-Z0-9._/:@-]*[a-zA-Z0-9_-])?)?$",
        description="The container image with vLLM, on a cluster. Ebbtide's runtime is mounted into it.",
    )
    version: str = Field(
        "",
        max_length=32,
        pattern=r"^([0-9]+\.[0-9]+(\.[0-9]+)?)?$",
        description="The vLLM version that must be found, such as 0.32. Empty means any supported version.",
    )
    port: int = Field(
        8000,
        ge=1,
        le=65535,
        description="The port of a member for requests. In local mode further replicas take the ports after it.",
    )
    extra_args: tuple[Argument, ...] = Field(
        (),
        max_length=128,
        description="More of vLLM's flags, one item each word, such as --max-model-len=4096."
        " Flags that Ebbtide sets (port, host, model, parallelism, middleware, ...) are refused.",
        json_schema_extra=list_of("atomic"),
    )
    env: tuple[EnvVar, ...] = Field(
        (),
        max_length=64,
        description="Environment variables of the engine. Variables that Ebbtide sets are refused.",
        json_schema_extra=list_map("name"),
    )
