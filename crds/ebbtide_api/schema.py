"""Pydantic's JSON schema, rewritten as a Kubernetes structural schema.

References are inlined, null-unions dropped, constants become enums, titles go. A keyword that is neither kept nor
rewritten is an error, so that nothing of a model is lost on the way; so is a field without a description.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT = frozenset(
    [
        "description",
        "type",
        "default",
        "enum",
        "format",
        "pattern",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "required",
        "properties",
        "items",
        "additionalProperties",
        "anyOf",
        "x-kubernetes-validations",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-int-or-string",
        "x-kubernetes-preserve-unknown-fields",
    ]
)
_FIRST = ["description", "type", "default"]
_LAST = ["required", "properties", "items"]
_DEEPEST = 32


class SchemaError(Exception):
    """A model that has no structural form: a fault of the model, found when the CRDs are generated."""


def structural(model: type[BaseModel]) -> Schema:
    """Return the model's structural schema. SchemaError names the field that has none."""
    whole = model.model_json_schema(by_alias=True, mode="validation")
    return _rewrite(whole, whole.pop("$defs", {}), model.__name__, 0)


def _rewrite(schema: Schema, definitions: Schema, path: str, depth: int) -> Schema:
    if depth > _DEEPEST:
        raise SchemaError(f"{path}: a model contains itself")
    out = _plain(_flat(schema, definitions, path))
    if "properties" in out:
        fields = out["properties"].items()
        out["properties"] = {k: _rewrite(v, definitions, f"{path}.{k}", depth + 1) for k, v in fields}
        _demand_descriptions(out["properties"], path)
    for nested in ("items", "additionalProperties"):
        if nested in out:
            out[nested] = _rewrite(out[nested], definitions, f"{path}[]", depth + 1)
    if lost := set(out) - _KEPT:
        raise SchemaError(f"{path}: no structural form for {', '.join(sorted(lost))}")
    return _ordered(out)


def _flat(schema: Schema, definitions: Schema, path: str) -> Schema:
    """Follow references and `X | None` until neither is left. What stands beside them wins."""
    flat = dict(schema)
    for _ in range(_DEEPEST):
        if "$ref" in flat:
            target = definitions[flat.pop("$ref").removeprefix("#/$defs/")]
            flat = {**target, **flat}
        elif "anyOf" in flat and not flat.get("x-kubernetes-int-or-string"):
            flat = {**_only_branch(flat.pop("anyOf"), path), **flat}
        else:
            return flat
    raise SchemaError(f"{path}: a model refers to itself")


def _only_branch(branches: list[Schema], path: str) -> Schema:
    real = [branch for branch in branches if branch != {"type": "null"}]
    if len(real) != 1:
        raise SchemaError(f"{path}: a union of {len(real)} types")
    return real[0]


def _plain(schema: Schema) -> Schema:
    """Rewrite the keywords that Kubernetes spells otherwise, and drop those that say nothing to it."""
    out = {key: value for key, value in schema.items() if key != "title"}
    if "const" in out:
        out["enum"] = [out.pop("const")]
    for bound in ("Minimum", "Maximum"):
        if f"exclusive{bound}" in out:
            out |= {bound.lower(): out[f"exclusive{bound}"], f"exclusive{bound}": True}
    if out.get("additionalProperties") is False or out.get("x-kubernetes-preserve-unknown-fields"):
        del out["additionalProperties"]
    if (default := out.pop("default", None)) is not None:
        out["default"] = _without_nulls(default)
    return out


def _demand_descriptions(properties: Schema, path: str) -> None:
    for name, schema in properties.items():
        if not schema.get("description"):
            raise SchemaError(f"{path}.{name}: no description")


def _without_nulls(value: Any) -> Any:
    """Return a default as the API server wants it: whole, since rules are checked on it before its fields' defaults."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return value


def _ordered(schema: Schema) -> Schema:
    middle = sorted(set(schema) - {*_FIRST, *_LAST})
    return {key: schema[key] for key in [*_FIRST, *middle, *_LAST] if key in schema}
