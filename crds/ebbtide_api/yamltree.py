"""YAML as plain values with the place of each, from a file that anyone may have written.

Only what JSON can hold is taken: no tags, no merge keys, no duplicate keys, no numbers whose meaning depends on the
reader. Size, depth and the number of values (aliases counted each time) are bounded before anything is built.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml
from pydantic import JsonValue

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_VALUES = 10_000
MAX_DOCUMENTS = 64

Path = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")
_UNUSABLE = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, order=True)
class Place:
    """A line and a column, both from 1."""

    line: int
    column: int


class YamlError(Exception):
    """Text that is not YAML, or not the YAML we take: where, and why."""

    def __init__(self, place: Place, why: str, path: Path = ()) -> None:
        super().__init__(why)
        self.place = place
        self.why = why
        self.path = path


@dataclass(frozen=True)
class Document:
    """One document: its value, and for each path the place of the value and of its key."""

    value: JsonValue
    values: dict[Path, Place]
    keys: dict[Path, Place]

    def place(self, path: Path) -> Place:
        """Return where the value at `path` stands, or the nearest value around it."""
        while path not in self.values:
            path = path[:-1]
        return self.values[path]

    def key(self, path: Path) -> Place:
        """Return where the key at `path` stands, or the nearest place around it."""
        return self.keys.get(path) or self.place(path)


def read(raw: bytes) -> list[Document]:
    """Return the documents that are not empty. YamlError says where and why not."""
    if len(raw) > MAX_BYTES:
        raise YamlError(Place(1, 1), f"the file is larger than {MAX_BYTES // 1024} KiB")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise YamlError(_after(raw[: error.start].decode("utf-8", "replace")), "not UTF-8 text") from error
    return [document for node in _nodes(text) if (document := _document(node)).value is not None]


class _Composer(yaml.SafeLoader):
    """PyYAML's composer, which recurses once for each level, kept from recursing too deep."""

    level = 0

    def here(self) -> Place:
        """Return where the next event stands."""
        return _place(self.peek_event())  # type: ignore[no-untyped-call]

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        """Compose one node."""
        if self.level > MAX_DEPTH:
            raise YamlError(self.here(), f"nested deeper than {MAX_DEPTH} levels")
        self.level += 1
        try:
            return super().compose_node(parent, index)  # type: ignore[arg-type]
        finally:
            self.level -= 1


def _nodes(text: str) -> Iterator[yaml.Node]:
    try:
        loader = _Composer(text)
        count = 0
        while loader.check_node():
            if (count := count + 1) > MAX_DOCUMENTS:
                raise YamlError(loader.here(), f"more than {MAX_DOCUMENTS} documents")
            if (node := loader.get_node()) is not None:
                yield node
    except yaml.reader.ReaderError as error:
        why = f"the character U+{error.character:04X} is not allowed in YAML"
        raise YamlError(_after(text[: error.position]), why) from error
    except yaml.MarkedYAMLError as error:
        place = _marked(error.problem_mark or error.context_mark)
        raise YamlError(place, " ".join(filter(None, [error.context, error.problem]))) from error


def _document(root: yaml.Node) -> Document:
    builder = _Builder()
    return Document(builder.build(root, ()), builder.values, builder.keys)


class _Builder:
    """Builds one document's value from its nodes."""

    def __init__(self) -> None:
        self.values: dict[Path, Place] = {}
        self.keys: dict[Path, Place] = {}

    def build(self, node: yaml.Node, path: Path) -> JsonValue:
        self.values[path] = _place(node)
        if len(self.values) > MAX_VALUES:
            raise YamlError(_place(node), f"more than {MAX_VALUES} values, aliases counted each time", path)
        if len(path) > MAX_DEPTH:  # An alias can contain itself, which composing does not see.
            raise YamlError(_place(node), f"nested deeper than {MAX_DEPTH} levels", path)
        if node.tag == f"{_TAG}map" and isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if node.tag == f"{_TAG}seq" and isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node, path)
        raise _tag_error(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> JsonValue:
        made: dict[str, JsonValue] = {}
        for key_node, value_node in node.value:
            key = _key(key_node, path)
            if key in made:
                first = self.keys[(*path, key)].line
                raise YamlError(_place(key_node), f"the key {key!r} is there already, in line {first}", (*path, key))
            self.keys[(*path, key)] = _place(key_node)
            made[key] = self.build(value_node, (*path, key))
        return made


def _key(node: yaml.Node, path: Path) -> str:
    if node.tag == f"{_TAG}merge":
        raise YamlError(_place(node), "merge keys (<<) are not taken: write the fields out", path)
    if node.tag != f"{_TAG}str" or not isinstance(node, yaml.ScalarNode):
        shown = node.value if isinstance(node, yaml.ScalarNode) else "it"
        raise YamlError(_place(node), f"a key must be a string: put {shown} in quotes", path)
    return _text(node, path)


def _scalar(node: yaml.ScalarNode, path: Path) -> JsonValue:
    match node.tag.removeprefix(_TAG):
        case "str" | "timestamp" | "value":
            return _text(node, path)
        case "null":
            return None
        case "bool":
            return node.value.lower() in ("true", "yes", "on")
        case "int":
            return _integer(node, path)
        case "float":
            return _float(node, path)
    raise _tag_error(node, path)


def _text(node: yaml.ScalarNode, path: Path) -> str:
    text: str = node.value
    if not text.isascii():
        # JSON escapes a character beyond U+FFFF as two surrogates, and PyYAML leaves them apart.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    if unusable := _UNUSABLE.search(text):
        raise YamlError(_place(node), f"the character U+{ord(unusable[0]):04X} is not allowed", path)
    return text


def _integer(node: yaml.ScalarNode, path: Path) -> int:
    if not _INTEGER.fullmatch(node.value):
        why = f"{node.value[:40]!r} is not a plain number: write it in decimal, or quote it"
        raise YamlError(_place(node), why, path)
    return int(node.value)


def _float(node: yaml.ScalarNode, path: Path) -> float:
    try:
        value = float(node.value)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise YamlError(_place(node), f"{node.value[:40]!r} is not a plain number: quote it", path)
    return value


def _tag_error(node: yaml.Node, path: Path) -> YamlError:
    return YamlError(_place(node), f"the tag {node.tag.replace(_TAG, '!!')[:80]} is not taken", path)


def _place(at: yaml.Node | yaml.Event) -> Place:
    return _marked(at.start_mark)


def _marked(mark: object) -> Place:
    return Place(mark.line + 1, mark.column + 1) if isinstance(mark, yaml.Mark) else Place(1, 1)


def _after(text: str) -> Place:
    return Place(text.count("\n") + 1, len(text) - text.rfind("\n"))
