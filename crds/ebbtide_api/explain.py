"""What is wrong with an object, said for people: the field, the fault, what is allowed, what was perhaps meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError

from .schema import Schema, structural

Path = tuple[str | int, ...]

_SHOWN = 60
_TYPES = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "model_type": "a group of fields",
    "dict_type": "a group of fields",
    "tuple_type": "a list",
    "list_type": "a list",
}
_OURS = ("rule", "amount", "amount_type", "between")
_ABOUT_THE_KEY = ("extra_forbidden",)


def faults(error: ValidationError, model: type[BaseModel]) -> Iterator[tuple[Path, bool, str]]:
    """Yield each fault of an object: its path, whether it is about the key, and a sentence without its full stop."""
    schema = _schema(model)
    for details in error.errors(include_url=False):
        path = details["loc"]
        if field := details.get("ctx", {}).get("field"):
            path = (*path, *str(field).split("."))
        about_the_key = details["type"] in _ABOUT_THE_KEY
        yield path, about_the_key, _sentence(details, _at(schema, path), _at(schema, path[:-1]))


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return ` Did you mean X?`, or nothing if no allowed word is near."""
    by_lower = {one.lower(): one for one in allowed}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f". Did you mean {by_lower[found[0]]}?" if found else ""


def dotted(path: Path) -> str:
    """Return a path as people write it: `spec.engine.env[0].name`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def parsed(text: str) -> Path:
    """Return the path that `dotted` wrote."""
    return tuple(int(index) if index else name for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", text))


@cache
def _schema(model: type[BaseModel]) -> Schema:
    return structural(model)


def _at(schema: Schema, path: Path) -> Schema:
    for step in path:
        if isinstance(step, int):
            schema = schema.get("items", {})
        else:
            schema = schema.get("properties", {}).get(step) or schema.get("additionalProperties") or {}
    return schema


def _sentence(details: Mapping[str, Any], field: Schema, parent: Schema) -> str:
    kind, given, last = details["type"], details["input"], str(details["loc"][-1:] and details["loc"][-1])
    match kind:
        case "extra_forbidden":
            known = list(parent.get("properties", {}))
            return f"there is no field {last!r} here, only {', '.join(known)}{nearest(last, known)}"
        case "missing":
            return f"is missing: {field.get('description', 'it must be given').rstrip('.')}"
        case "enum" | "literal_error":
            allowed = [str(one) for one in field.get("enum", [])]
            return f"{_show(given)} is not one of {', '.join(allowed)}{nearest(str(given), allowed)}"
        case _ if kind in _TYPES:
            return _wrong_type(given, _TYPES[kind], quoted=kind == "string_type")
        case "greater_than_equal" | "less_than_equal" | "greater_than" | "less_than":
            return f"{_show(given)} is not between {field.get('minimum')} and {field.get('maximum')}"
        case "string_pattern_mismatch":
            return f"{_show(given)} is not of the form {field.get('pattern')}"
    message = str(details["msg"])
    return message if kind in _OURS else message[:1].lower() + message[1:]


def _wrong_type(given: object, wanted: str, *, quoted: bool) -> str:
    if given is None:
        return f"has no value: it must be {wanted}, or the line must go"
    hint = f': write "{_bare(given)}" with the quotes' if quoted and not isinstance(given, dict | list) else ""
    return f"must be {wanted}, not {_show(given)}{hint}"


def _bare(given: object) -> str:
    return str(given).lower() if isinstance(given, bool) else str(given)


def _show(given: object) -> str:
    if isinstance(given, dict | list):
        return "a group of fields" if isinstance(given, dict) else "a list"
    text = repr(given) if isinstance(given, str) else _bare(given)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
