"""Merging a user's patch of a pod template with ours, as `kubectl` would: objects by key, named items by name.

A list's items are told apart by the first of these keys that all of them have; other lists are replaced whole.
A null removes what it names.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..names import Json

_KEYS = ("mountPath", "devicePath", "containerPort", "name")


def merge(base: Mapping[str, object], patch: Mapping[str, object]) -> Json:
    """Return `base` with `patch` over it; neither is changed."""
    merged = dict(base)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge_value(merged.get(name), value)
    return merged


def _merge_value(old: object, new: object) -> object:
    if isinstance(new, Mapping):
        return merge(old if isinstance(old, Mapping) else {}, new)
    if isinstance(old, list) and isinstance(new, list) and (key := _key(old + new)):
        return _merge_items(old, new, key)
    return new


def _key(items: list[object]) -> str | None:
    return next((key for key in _KEYS if all(_has(item, key) for item in items)), None)


def _has(item: object, key: str) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get(key), str | int)


def _merge_items(old: list[object], new: list[object], key: str) -> list[object]:
    """Old items keep their order, and so their place among init containers; new ones come after them."""
    merged: dict[object, object] = {}
    for item in old + new:
        if isinstance(item, Mapping):
            merged[item[key]] = _merge_value(merged.get(item[key]), item)
    return list(merged.values())
