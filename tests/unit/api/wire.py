"""Strategies for wire forms, made from a model's own JSON schema, and every message there is."""

import importlib
import pkgutil
from typing import Any

import ebbtide_api
from ebbtide_api.base import Message, Reading
from ebbtide_api.quantity import Duration, Percent, Quantity
from ebbtide_api.resource import Resource
from ebbtide_api.spec import Spec
from hypothesis import strategies as st

Schema = dict[str, Any]

# Amounts that lie within the bounds of every field of their type.
_AMOUNTS = {
    Duration.PATTERN: ["1s", "1.5s", "30s", "60s"],
    Quantity.PATTERN: ["64Mi", "1Gi", "1.5Gi", "500M", "1073741824"],
    Percent.PATTERN: ["0%", "10%", "50%"],
}
_PLAIN = st.characters(min_codepoint=32, max_codepoint=0x2FFF)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(_PLAIN, max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(_PLAIN, max_size=5), inner, max_size=3),
    max_leaves=6,
)


def messages() -> list[type[Message]]:
    """Return every message class of ebbtide_api, by name."""
    for module in pkgutil.iter_modules(ebbtide_api.__path__):
        importlib.import_module(f"ebbtide_api.{module.name}")
    found: set[type[Message]] = set()
    queue: list[type[Message]] = [Message]
    while queue:
        for one in queue.pop().__subclasses__():
            found.add(one)
            queue.append(one)
    ours = {one for one in found if one.__module__.startswith("ebbtide_api.")}
    return sorted(ours - {Reading, Spec, Resource}, key=lambda one: one.__name__)


def wire(model: type[Message]) -> st.SearchStrategy[dict[str, Any]]:
    """Return wire forms that hold to each field's own bounds; rules over several fields may still refuse them."""
    schema = model.model_json_schema(by_alias=True)
    return _values(schema, schema.get("$defs", {}))


def _values(schema: Schema, definitions: Schema) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        return _values(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    if schema.get("pattern") in _AMOUNTS:
        return st.sampled_from(_AMOUNTS[schema["pattern"]])
    if "anyOf" in schema:
        return st.one_of([_values(branch, definitions) for branch in schema["anyOf"]])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    match schema.get("type"):
        case "object":
            return _objects(schema, definitions)
        case "array":
            longest = min(schema.get("maxItems", 3), 3)
            return st.lists(_values(schema["items"], definitions), min_size=schema.get("minItems", 0), max_size=longest)
    return _scalars(schema)


def _scalars(schema: Schema) -> st.SearchStrategy[Any]:
    match schema.get("type"):
        case "string" if pattern := schema.get("pattern"):
            return st.from_regex(pattern, fullmatch=True, alphabet=_PLAIN).filter(
                lambda text: schema.get("minLength", 0) <= len(text) <= schema.get("maxLength", 40)
            )
        case "string":
            return st.text(_PLAIN, min_size=schema.get("minLength", 0), max_size=min(schema.get("maxLength", 20), 20))
        case "integer":
            low = schema.get("minimum", schema.get("exclusiveMinimum", -(2**53) - 1) + 1)
            return st.integers(low, schema.get("maximum", schema.get("exclusiveMaximum", 2**53) - 1))
        case "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 0.5)
            return st.floats(low, schema.get("maximum", 1e9), allow_nan=False)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
    return _JSON


def _objects(schema: Schema, definitions: Schema) -> st.SearchStrategy[dict[str, Any]]:
    if "properties" not in schema:
        values = schema.get("additionalProperties", {})
        inner = _values(values if isinstance(values, dict) else {}, definitions)
        return st.dictionaries(st.text(_PLAIN, min_size=1, max_size=8), inner, max_size=3)
    fields = {name: _values(inner, definitions) for name, inner in schema["properties"].items()}
    needed = set(schema.get("required", []))
    return st.fixed_dictionaries(
        {name: value for name, value in fields.items() if name in needed},
        optional={name: value for name, value in fields.items() if name not in needed},
    )
