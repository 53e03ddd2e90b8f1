"""Every bound of every field, tried on both sides of it. The objects are built from the schema itself."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from ebbtide_api.explain import dotted, faults
from ebbtide_api.schema import structural
from pydantic import ValidationError

from tests.unit.api.objects import PAIR, POLICY, SERVER
from tests.unit.api.test_objects import KINDS, read

Schema = dict[str, Any]
Path = tuple[str | int, ...]

# A full object of each kind, so that every field has a place in it.
FULL: dict[str, dict[str, Any]] = {
    "InferenceServer": SERVER
    | {
        "spec": {
            "model": {"source": "/m", "servedName": "m", "revision": "r", "quantization": "fp8"},
            "role": "Decode",
            "pair": PAIR,
            "awakeReplicas": 1,
            "template": {},
            "engine": {"image": "vllm", "version": "0.32", "extraArgs": ["--a"], "env": [{"name": "A", "value": "1"}]},
            "sleep": {"drain": {}, "idle": {"after": "1m", "deeperAfter": "1h"}},
            "colocation": {"group": "g", "hostMemoryLimit": "1Gi", "devices": {"cpu": {"memory": "1Gi"}}},
            "weights": {"canary": {"prompt": "p", "tokens": 1}},
            "parallelism": {},
            "cachePolicy": {"name": "p"},
        }
    },
    "KVCachePolicy": POLICY
    | {
        "spec": {
            "tiers": {"dram": {"capacity": "1Gi"}, "disk": {"capacity": "1Gi", "volume": {"hostPath": {"path": "/x"}}}},
            "eviction": {},
            "contexts": {},
            "quotas": [{"tenant": "a", "dram": "1Gi", "disk": "1Gi"}],
            "cascade": {},
        }
    },
}


def fields(schema: Schema, path: Path = ()) -> Iterator[tuple[Path, Schema]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from fields(inner, (*path, name))
    if "items" in schema:
        yield from fields(schema["items"], (*path, 0))


def tries(schema: Schema) -> Iterator[tuple[object, bool]]:
    """Yield values at a field's bounds, and whether the field takes them."""
    if "minimum" in schema:
        low, high = schema["minimum"], schema["maximum"]
        yield from [(low, True), (high, True), (low - 1, False), (high + 1, False), (str(low), False), (None, False)]
    if schema.get("type") == "boolean":
        yield from [(True, True), (False, True), ("true", False), (1, False)]
    for value in schema.get("enum", []):
        yield value, True
        yield value.lower(), False
    if schema.get("type") == "string" and "enum" not in schema:
        yield from [("\x00", False), ("x" * (schema["maxLength"] + 1), False), (7, False), ([], False)]
    if schema.get("type") == "array":
        yield from [([], True), ({}, False), ("", False)]
    if schema.get("type") == "object":
        yield from [([], False), ("", False), (3, False)]


def cases() -> list[Any]:
    made = []
    for kind, model in KINDS.items():
        spec = structural(model)["properties"]["spec"]
        for path, schema in fields(spec, ("spec",)):
            for value, fits in tries(schema):
                name = f"{dotted(path)}={str(value)[:20]!r}"
                made.append(pytest.param(kind, path, value, fits, id=name.replace("\x00", "NUL")))
    return made


def with_value(kind: str, path: Path, value: object) -> dict[str, Any]:
    made = copy.deepcopy(FULL[kind])
    inner: Any = made
    for step in path[:-1]:
        inner = inner[step] if isinstance(step, int) else inner.setdefault(step, {})
    inner[path[-1]] = value
    return made


@pytest.mark.parametrize("kind", FULL)
def test_the_full_objects_are_right(kind: str) -> None:
    assert read(FULL[kind]).name


@pytest.mark.parametrize(("kind", "path", "value", "fits"), cases())
def test_a_bound(kind: str, path: Path, value: object, fits: bool) -> None:
    raw = with_value(kind, path, value)
    refused = refusals(kind, raw)
    at_field = [why for where, why in refused.items() if where.startswith(dotted(path))]
    if fits:
        # Rules over several fields may still refuse it, with a sentence of their own.
        assert not [why for why in at_field if "must be" in why or "not one of" in why or "not between" in why]
    elif value is None and not at_field:
        pytest.skip("null means absent in an optional field")
    else:
        assert at_field, refused


def refusals(kind: str, raw: dict[str, Any]) -> dict[str, str]:
    try:
        read(raw)
    except ValidationError as error:
        return {dotted(path): why for path, _, why in faults(error, KINDS[kind])}
    return {}


def test_the_cases_reach_every_field() -> None:
    for kind, model in KINDS.items():
        leaves = [
            path
            for path, schema in fields(structural(model)["properties"]["spec"], ("spec",))
            if "properties" not in schema and "items" not in schema
        ]
        reached = json.dumps(FULL[kind])
        assert len(leaves) > 10
        for path in leaves:
            assert any(f'"{step}"' in reached for step in path if isinstance(step, str)), path
