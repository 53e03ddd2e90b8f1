"""Read InferenceServers and KVCachePolicies from a YAML file that a person wrote.

    load_file(path)   the objects, or one EbbtideError (INVALID_REQUEST) that lists every problem
                      what `checks` refuse of right objects is said the same way, with their codes
    load_text(...)    the same as a value: objects and problems

Each problem says file, line, column, field, what is wrong, and what is allowed:

    server.yaml:9:12: spec.sleep.level: 'Parkd' is not one of Auto, Parked, Discarded. Did you mean Parked?
        9 |     level: Parkd
                   ^

A `model.source` that starts with ./ or ../ is made absolute, against the file's folder. `status` is read, not used.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

from pydantic import JsonValue, ValidationError

from .errors import EbbtideError, ErrorCode
from .explain import dotted, faults, nearest, parsed
from .policy import KVCachePolicy
from .resource import API_VERSION
from .server import InferenceServer
from .yamltree import MAX_BYTES, Document, Path, Place, YamlError, read

MAX_PROBLEMS = 20
Loadable = InferenceServer | KVCachePolicy
Check = Callable[[Loadable], Iterable[tuple[str, str]]]
"""What is refused of an object that is right in itself: (path, why)."""
_KINDS: dict[str, type[InferenceServer] | type[KVCachePolicy]] = {
    "InferenceServer": InferenceServer,
    "KVCachePolicy": KVCachePolicy,
}


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a document."""

    place: Place
    path: Path
    why: str


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a file. `excerpt` is its line, with a mark below the place."""

    file: str
    line: int
    column: int
    field: str
    why: str
    excerpt: str

    def __str__(self) -> str:
        field = f"{self.field}: " if self.field else ""
        return f"{self.file}:{self.line}:{self.column}: {field}{self.why}{self.excerpt}"

    def details(self) -> dict[str, str | int]:
        """Return the problem as an error's details carry it."""
        place: dict[str, str | int] = {"file": self.file, "line": self.line, "column": self.column}
        return {**place, "field": self.field, "message": self.why}


@dataclass(frozen=True)
class Loaded:
    """What a file holds. With problems, nothing of it should be used."""

    objects: tuple[Loadable, ...]
    problems: tuple[Problem, ...]


def load_file(path: str | FilePath, checks: Sequence[tuple[ErrorCode, Check]] = ()) -> list[Loadable]:
    """Return a file's objects. EbbtideError lists all that is wrong with it, or else all that a check refuses."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        why = f"{path}: {error.strerror or error}."
        raise EbbtideError(ErrorCode.INVALID_REQUEST, why, next_action="Name a file that can be read.") from error
    loaded = load_text(raw, str(path), FilePath(path).absolute().parent)
    if loaded.problems:
        raise _error(loaded.problems)
    for code, check in checks:
        if refused := _refused(raw, str(path), loaded.objects, check):
            raise _error(refused, code)
    return list(loaded.objects)


def _refused(raw: bytes, file: str, objects: tuple[Loadable, ...], check: Check) -> tuple[Problem, ...]:
    found = [
        Fault(document.place(parsed(path)), parsed(path), why)
        for document, made in zip(read(raw), objects, strict=True)
        for path, why in check(made)
    ]
    return _problems(raw, file, found)


def load_text(raw: bytes, file: str, folder: FilePath) -> Loaded:
    """Return what `raw` holds. `file` names it in problems; relative paths start from `folder`."""
    objects: list[Loadable] = []
    found: list[Fault] = []
    taken: dict[tuple[str, str, str], Place] = {}
    try:
        documents = read(raw)
    except YamlError as error:
        return Loaded((), _problems(raw, file, [Fault(error.place, error.path, error.why)]))
    for document in documents:
        made = _object(document, folder)
        if isinstance(made, list):
            found += made
        else:
            found += _twice(made, document, taken)
            objects.append(made)
    if not documents:
        found.append(Fault(Place(1, 1), (), "the file holds no object"))
    return Loaded(tuple(objects), _problems(raw, file, found))


def _object(document: Document, folder: FilePath) -> Loadable | list[Fault]:
    model = _model(document)
    if isinstance(model, Fault):
        return [model]
    value = json.dumps(_resolved(document.value, folder))
    try:
        return model.model_validate_json(value, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        return [
            Fault(document.key(path) if about_the_key else document.place(path), path, why)
            for path, about_the_key, why in faults(error, model)
        ]


def _model(document: Document) -> type[InferenceServer] | type[KVCachePolicy] | Fault:
    if not isinstance(document.value, dict):
        return Fault(document.place(()), (), "an object is a group of fields: apiVersion, kind, metadata, spec")
    for field, allowed in (("apiVersion", [API_VERSION]), ("kind", list(_KINDS))):
        given = document.value.get(field)
        if field not in document.value:
            return Fault(document.place(()), (field,), f"is missing: {' or '.join(allowed)}")
        if given not in allowed:
            why = f"{str(given)[:60]!r} is not {' or '.join(allowed)}{nearest(str(given), allowed)}"
            return Fault(document.place((field,)), (field,), why)
    return _KINDS[str(document.value["kind"])]


def _resolved(value: JsonValue, folder: FilePath) -> JsonValue:
    """Return the object with `spec.model.source` made absolute, if it starts with ./ or ../"""
    spec, model = _group(value, "spec"), _group(_group(value, "spec"), "model")
    source = model.get("source")
    if not isinstance(value, dict) or not isinstance(source, str) or not source.startswith(("./", "../")):
        return value
    absolute = os.path.normpath(folder / source)
    return {**value, "spec": {**spec, "model": {**model, "source": absolute}}}


def _group(value: JsonValue, field: str) -> dict[str, JsonValue]:
    inner = value.get(field) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _twice(made: Loadable, document: Document, taken: dict[tuple[str, str, str], Place]) -> list[Fault]:
    path: Path = ("metadata", "name")
    place = document.place(path)
    first = taken.setdefault((made.kind, made.metadata.namespace, made.name), place)
    return [] if first is place else [Fault(place, path, f"{made.name!r} is there already, in line {first.line}")]


def _problems(raw: bytes, file: str, found: list[Fault]) -> tuple[Problem, ...]:
    lines = raw.decode("utf-8-sig", "replace").split("\n") if found else []
    return tuple(_problem(fault, file, lines) for fault in sorted(found, key=lambda fault: fault.place))


def _problem(fault: Fault, file: str, lines: list[str]) -> Problem:
    place = fault.place
    line = lines[place.line - 1].rstrip("\r") if place.line <= len(lines) else ""
    shown = line.isprintable() and len(line) <= 160
    excerpt = f"\n{place.line:>5} | {line}\n{'^':>{place.column + 8}}" if shown else ""
    return Problem(file, place.line, place.column, dotted(fault.path), fault.why, excerpt)


def _error(problems: tuple[Problem, ...], code: ErrorCode = ErrorCode.INVALID_REQUEST) -> EbbtideError:
    shown = [str(problem) for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        shown.append(f"... and {len(problems) - MAX_PROBLEMS} more")
    return EbbtideError(
        code,
        f"{problems[0].file} cannot be used:\n" + "\n".join(shown) + "\n",
        next_action="Correct the file and run the command again.",
        problems=[problem.details() for problem in problems[:MAX_PROBLEMS]],
    )
