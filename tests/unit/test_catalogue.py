"""The table of other people's bugs in tests/README.md: complete, and every test that it names is there."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
# The list that the numbers come from has no bugs under these.
UNUSED = {14, 19, 27, 30, 44, 49, 70, 74, 81, 91, 96, 101}
NUMBERS = [number for number in range(1, 104) if number not in UNUSED]
_ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+) \|$", re.MULTILINE)
_NAMED = re.compile(r"`([\w/]+\.py)((?:::\w+)+)`")
_REPORT = re.compile(r"^[\w.-]+/[\w.-]+(#\d+|, [\w/]+\.py)$")


@dataclass(frozen=True)
class Row:
    """One bug. `here` names tests, or says why it cannot happen."""

    number: int
    reports: list[str]
    here: str

    @property
    def tests(self) -> list[tuple[str, str]]:
        return [(path, name.removeprefix("::")) for path, name in _NAMED.findall(self.here)]

    @property
    def others(self) -> list[int]:
        """The rows whose answer this one shares."""
        found = re.search(r"\b[Aa]s (\d+)(?: and (\d+))?", self.here)
        return [int(number) for number in found.groups() if number] if found else []


def rows(text: str) -> list[Row]:
    found = _ROW.findall(text)
    return [Row(int(number), re.split(r", (?=[\w.-]+/[\w.-]+#)", at), here) for number, at, _, here in found]


@cache
def names(path: str) -> frozenset[str]:
    """The tests of a file, those of classes as `Class::test`."""
    file = TESTS / path
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    inside = {f"{each.name}::{name}" for each in tree.body if isinstance(each, ast.ClassDef) for name in _tests(each)}
    return frozenset(inside | set(_tests(tree)))


def _tests(body: ast.Module | ast.ClassDef) -> list[str]:
    functions = [each.name for each in body.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [name for name in functions if name.startswith("test_")]


ROWS = rows((TESTS / "README.md").read_text())
BY_NUMBER = {row.number: row for row in ROWS}


def test_every_number_is_there_once_and_in_order() -> None:
    assert [row.number for row in ROWS] == NUMBERS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_a_row_says_where_it_was_reported(row: Row) -> None:
    assert all(_REPORT.match(report) for report in row.reports), row.reports


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_a_row_names_a_test_or_says_why_not(row: Row) -> None:
    shared = [BY_NUMBER[number] for number in row.others]
    assert row.tests or row.here.startswith("Cannot: ") or any(other.tests for other in shared)
    assert all(other.tests for other in shared), "a row is never explained by one that explains nothing itself"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_every_named_test_exists(row: Row) -> None:
    assert [f"{path}::{name}" for path, name in row.tests if name not in names(path)] == []
    assert row.here.count(".py") == len(row.tests), "a test that is named otherwise is not looked for"


def test_what_is_not_there_is_missed() -> None:
    (row,) = rows("| 1 | a/b#1, c/d#2 | x | `unit/test_catalogue.py::test_x`; `unit/no.py::C::test_y` |\n")
    assert row.reports == ["a/b#1", "c/d#2"]
    assert row.tests == [("unit/test_catalogue.py", "test_x"), ("unit/no.py", "C::test_y")]
    assert not any(name in names(path) for path, name in row.tests)
    assert "test_what_is_not_there_is_missed" in names("unit/test_catalogue.py")
    assert "TestVersion::test_every_other_is_refused_by_name" in names("unit/engine/test_small.py")
