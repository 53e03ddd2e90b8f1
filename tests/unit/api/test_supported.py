"""What this version does not honour is refused by name; what it honours, and what nobody asked for, is not."""

from typing import Any

import pytest
from ebbtide_api import supported
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.policy import KVCachePolicy
from ebbtide_api.server import InferenceServer, ServerSpec
from ebbtide_api.supported import require_supported, unsupported
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.unit.api.objects import POLICY, server


def refused(**changes: Any) -> list[str]:
    return [path for path, _ in unsupported(InferenceServer.model_validate(server("", **changes).object()))]


HONOURED: list[dict[str, Any]] = [
    {},
    {"spec__model__servedName": "llama"},
    {"spec__model__quantization": "fp8"},
    {"spec__replicas": 2},
    {"spec__replicas": 2, "spec__awakeReplicas": 2},
    {"spec__replicas": 2, "spec__awakeReplicas": 9},
    {"spec__power": "Asleep"},
    {"spec__parallelism": {"tensor": 2, "pipeline": 1}},
    {"spec__engine": {"extraArgs": ["--seed=1"], "env": [{"name": "A"}], "port": 0 + 9000, "version": "0.32"}},
    {"spec__sleep": {"level": "Discarded", "parking": "Never", "settle": "1s"}},
    {"spec__sleep": {"idle": {"after": "10m", "deeperAfter": "1h"}, "wakeOnRequest": True, "holdFor": "30s"}},
    {"spec__sleep": {"idle": {"after": "10m"}, "wakeOnRequest": False}},
    {"spec__sleep": {"drain": {"mode": "Abort", "timeout": "1s", "onDeadline": "Fail"}}},
    {"spec__colocation": {"group": "a", "hostMemoryLimit": "1Gi", "devices": {"cpu": {"memory": "1Gi"}}}},
    {"spec__colocation": {"devices": {"env": "CUDA_VISIBLE_DEVICES"}}},
    {"spec__weights": {"handoff": "SharedMemory", "canary": {"prompt": "hi", "tokens": 1}}},
    {"spec__weights": {"handoff": "None"}},
    {"spec__weights": {"handoff": "Stream"}},
    {"metadata__namespace": "default"},
]


@pytest.mark.parametrize("changes", HONOURED, ids=str)
def test_what_is_honoured(changes: dict[str, Any]) -> None:
    assert refused(**changes) == []


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"metadata__namespace": "prod"}, "metadata.namespace"),
    ({"spec__model__source": "Qwen/Qwen3-0.6B"}, "spec.model.source"),
    ({"spec__model__revision": "main"}, "spec.model.revision"),
    ({"spec__replicas": 2, "spec__awakeReplicas": 1}, "spec.awakeReplicas"),
    ({"spec__awakeReplicas": 0}, "spec.awakeReplicas"),
    ({"spec__parallelism": {"pipeline": 2}}, "spec.parallelism.pipeline"),
    ({"spec__engine": {"image": "vllm/vllm-openai:v0.32.0"}}, "spec.engine.image"),
    ({"spec__engine": {"extraArgs": ["--seed=1", "--enable-lora"]}}, "spec.engine.extraArgs[1]"),
    ({"spec__engine": {"extraArgs": ["--speculative_config={}"]}}, "spec.engine.extraArgs[0]"),
    ({"spec__engine": {"extraArgs": ["--lora-modules=a=/a"]}}, "spec.engine.extraArgs[0]"),
    ({"spec__engine": {"extraArgs": ["-dp", "2"]}}, "spec.engine.extraArgs[0]"),
    ({"spec__engine": {"extraArgs": ["--data-parallel-size=2"]}}, "spec.engine.extraArgs[0]"),
    ({"spec__engine": {"extraArgs": ["--kv-offloading-size=8"]}}, "spec.engine.extraArgs[0]"),
    ({"spec__engine": {"env": [{"name": "VLLM_API_KEY", "value": "x"}]}}, "spec.engine.env[0]"),
    ({"spec__template": {}}, "spec.template"),
    ({"spec__colocation": {"devices": {"claim": "gpus"}}}, "spec.colocation.devices.claim"),
    ({"spec__weights": {"handoff": "Disk"}}, "spec.weights.handoff"),
    ({"spec__role": "Prefill"}, "spec.role"),
    ({"spec__cachePolicy": {"name": "default"}}, "spec.cachePolicy"),
]


@pytest.mark.parametrize(("changes", "path"), REFUSED, ids=str)
def test_what_is_not_honoured(changes: dict[str, Any], path: str) -> None:
    assert refused(**changes) == [path]


def test_a_pair_is_refused_with_its_role() -> None:
    found = refused(spec__role="Decode", spec__pair={"prefill": {"name": "p"}})
    assert sorted(found) == ["spec.pair", "spec.role"]


def test_a_default_that_was_written_out_is_not_refused() -> None:
    plain = InferenceServer.model_validate(server("").object())
    written = InferenceServer.model_validate(plain.wire())
    assert written.spec.model_fields_set > {"role", "sleep", "engine"}
    assert unsupported(written) == []


def test_a_policy_is_refused_whole() -> None:
    assert [path for path, _ in unsupported(KVCachePolicy.model_validate(POLICY))] == ["kind"]


def test_the_error_names_every_field() -> None:
    made = InferenceServer.model_validate(server("", spec__role="Prefill", spec__template={"a": 1}).object())
    with pytest.raises(EbbtideError) as caught:
        require_supported(made)
    error = caught.value
    assert error.code is ErrorCode.NOT_YET_SUPPORTED
    assert [one["field"] for one in error.details["fields"]] == ["spec.template", "spec.role"]
    assert error.details["field"] == "spec.template"
    assert "InferenceServer tiny: spec.template: local mode starts processes" in error.message


def test_nothing_is_raised_for_what_is_honoured() -> None:
    require_supported(InferenceServer.model_validate(server("").object()))


def leaves(model: type[BaseModel], path: str) -> dict[str, object]:
    """Return every field that is no group of fields: its path, and a value that is not its default."""
    found: dict[str, object] = {}
    for field in model.model_fields.values():
        inner, kinds = f"{path}.{field.alias}", [field.annotation, *getattr(field.annotation, "__args__", ())]
        groups = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if groups and not str(field.annotation).startswith("tuple"):
            found |= leaves(groups[0], inner)
        else:
            found[inner] = field.default
    return found


def test_the_lists_name_fields_that_exist() -> None:
    """A field that is renamed must not silently fall off the list."""
    fields = set(leaves(ServerSpec, "spec"))
    groups = {path.rsplit(".", depth)[0] for path in fields for depth in (1, 2)}
    assert fields >= supported._HONOURED
    assert set(supported._WHY) - {"metadata.namespace"} <= fields | groups


def test_every_field_is_honoured_or_refused() -> None:
    undecided = set(leaves(ServerSpec, "spec")) - supported._HONOURED
    explained = {path for path in undecided if any(path.startswith(known) for known in supported._WHY)}
    assert undecided == explained


@settings(max_examples=30)
@given(st.sampled_from(sorted(supported._FLAGS)), st.sampled_from(["", "=x"]))
def test_every_refused_flag_is_found_in_either_form(flag: str, value: str) -> None:
    spelled = "--" + flag[2:].replace("-", "_") if flag.startswith("--") else flag
    for argument in (flag + value, spelled + value):
        assert refused(spec__engine={"extraArgs": [argument]}) == ["spec.engine.extraArgs[0]"]
