"""The sentences that people read, one for each way to be wrong."""

from typing import Any

import pytest
from ebbtide_api.base import Message
from ebbtide_api.explain import dotted, faults
from ebbtide_api.policy import PolicySpec
from ebbtide_api.server import ServerSpec
from pydantic import ValidationError

MODEL = {"model": {"source": "/m"}}


def sentences(model: type[Message], raw: Any, *, strict: bool = True) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(raw, strict=strict)
    return {dotted(path): why for path, _, why in faults(caught.value, model)}


@pytest.mark.parametrize(
    ("raw", "path", "why"),
    [
        ({}, "model", "is missing: The model to serve"),
        (MODEL | {"replicas": None}, "replicas", "has no value: it must be a whole number, or the line must go"),
        (MODEL | {"replicas": True}, "replicas", "must be a whole number, not true"),
        (MODEL | {"replicas": [1]}, "replicas", "must be a whole number, not a list"),
        (MODEL | {"replicas": {"a": 1}}, "replicas", "must be a whole number, not a group of fields"),
        (MODEL | {"replicas": 10**9}, "replicas", "1000000000 is not between 1 and 256"),
        (MODEL | {"model": None}, "model", "has no value: it must be a group of fields, or the line must go"),
        (MODEL | {"model": "/m"}, "model", "must be a group of fields, not '/m'"),
        (
            {"model": {"source": "/m", "servedName": 70}},
            "model.servedName",
            'must be a string, not 70: write "70" with the quotes',
        ),
        (
            {"model": {"source": "/m", "servedName": False}},
            "model.servedName",
            'must be a string, not false: write "false" with the quotes',
        ),
        ({"model": {"source": ["/m"]}}, "model.source", "must be a string, not a list"),
        ({"model": {"source": ""}}, "model.source", "string should have at least 1 character"),
        ({"model": {"source": "/" + "m" * 4096}}, "model.source", "string should have at most 4096 characters"),
        (
            {"model": {"source": "/m", "quantization": "FP8"}},
            "model.quantization",
            "'FP8' is not of the form ^([a-z0-9][a-z0-9_.-]*)?$",
        ),
    ],
)
def test_a_servers_faults(raw: Any, path: str, why: str) -> None:
    assert sentences(ServerSpec, raw) == {path: why}


@pytest.mark.parametrize(
    ("raw", "path", "why"),
    [
        ({"tiers": {"dram": {"capacity": "lots"}}}, "tiers.dram.capacity", "'lots' is not of the form 64Gi or 500Mi"),
        ({"tiers": {"dram": {"capacity": "1"}}}, "tiers.dram.capacity", "must be at least 1Mi and at most 4Pi"),
        ({"tiers": {}, "eviction": {"reserve": "ten"}}, "eviction.reserve", "'ten' is not of the form 10%"),
        ({"tiers": {}, "eviction": {"reserve": 0.1}}, "eviction.reserve", "must be a string such as 10%"),
        (
            {"tiers": {}, "contexts": {"defaultTTL": "1h", "maxTTL": "1m"}},
            "contexts.maxTTL",
            "maxTTL is not below defaultTTL",
        ),
        (
            {"tiers": {"ssd": {}}},
            "tiers.ssd",
            "there is no field 'ssd' here, only dram, disk",
        ),
    ],
)
def test_a_policys_faults(raw: Any, path: str, why: str) -> None:
    assert sentences(PolicySpec, raw) == {path: why}


@pytest.mark.parametrize(
    ("raw", "path", "why"),
    [
        (MODEL | {"replicas": "x"}, "replicas", "must be a whole number, not 'x'"),
        (MODEL | {"replicas": 1.5}, "replicas", "must be a whole number, not 1.5"),
        (
            MODEL | {"sleep": {"wakeOnRequest": "maybe"}},
            "sleep.wakeOnRequest",
            "must be true or false, not 'maybe'",
        ),
        (MODEL | {"power": "on"}, "power", "'on' is not one of Awake, Asleep"),
    ],
)
def test_the_same_sentences_when_types_are_converted(raw: Any, path: str, why: str) -> None:
    """Bodies of requests are read with conversion; their faults read alike."""
    assert sentences(ServerSpec, raw, strict=False) == {path: why}


def test_a_fault_inside_a_template_has_the_templates_path() -> None:
    ((path, why),) = sentences(ServerSpec, MODEL | {"template": {"a": object()}}).items()
    assert path.startswith("template.a")
    assert why


def test_several_faults_are_told_apart() -> None:
    raw = MODEL | {"replicas": 0, "engine": {"port": 0}, "parallelism": {"tensor": 65}}
    assert list(sentences(ServerSpec, raw)) == ["replicas", "parallelism.tensor", "engine.port"]
