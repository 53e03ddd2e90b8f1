"""The cache: whatever events and lists come in, in whatever order they may, it ends as the API server is."""

from dataclasses import dataclass
from typing import Any

import pytest
from ebbtide_operator.kube.cache import Cache, version_number
from hypothesis import given
from hypothesis import strategies as st


@dataclass(frozen=True)
class Thing:
    key: str
    version: int


def test_changes_are_told_with_what_was_before() -> None:
    told: list[Any] = []
    cache: Cache[Thing] = Cache(lambda old, new: told.append((old and old.version, new and new.version)))
    cache.see(Thing("a", 1))
    cache.see(Thing("a", 1))
    cache.see(Thing("a", 3))
    cache.see(Thing("a", 2))
    cache.lose(Thing("a", 4))
    cache.lose(Thing("a", 4))
    assert told == [(None, 1), (1, 3), (3, None)]


def test_a_list_purges_what_a_watch_forgot() -> None:
    cache: Cache[Thing] = Cache()
    cache.see(Thing("ghost", 1))
    cache.replace([Thing("a", 2)], 5)
    assert [thing.key for thing in cache] == ["a"]


def test_a_list_does_not_purge_what_is_younger() -> None:
    cache: Cache[Thing] = Cache()
    cache.see(Thing("new", 9))
    cache.replace([], 5)
    assert cache.get("new") == Thing("new", 9)


def test_a_list_does_not_bring_back_what_was_deleted_after_it() -> None:
    cache: Cache[Thing] = Cache()
    cache.see(Thing("a", 1))
    cache.lose(Thing("a", 7))
    cache.replace([Thing("a", 1)], 5)
    assert len(cache) == 0
    cache.replace([], 8)
    cache.see(Thing("a", 9))
    assert len(cache) == 1


@pytest.mark.parametrize(("text", "number"), [("12", 12), ("", 0), ("...", 0), (None, 0), ("-1", 0)])
def test_versions_are_numbers(text: object, number: int) -> None:
    assert version_number(text) == number


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=12)


@given(STEPS, st.data())
def test_it_ends_as_the_server_is_with_one_watch_and_late_lists(steps: Any, data: Any) -> None:
    """Events of one watch are in order and some get lost; lists are taken at any time, and come in later than that."""
    server: dict[str, Thing] = {}
    cache: Cache[Thing] = Cache()
    late: list[tuple[list[Thing], int]] = []
    version = 0
    for version, (key, keep) in enumerate(steps, start=1):
        if keep:
            server[key] = Thing(key, version)
        gone = None if keep else server.pop(key, None)
        if data.draw(st.booleans()):
            late.append((list(server.values()), version))
        if not data.draw(st.booleans()):
            continue  # a gap in the watch
        if keep:
            cache.see(server[key])
        elif gone:
            cache.lose(Thing(key, version))
        if late and data.draw(st.booleans()):
            cache.replace(*late.pop(0))
    for found in late:
        cache.replace(*found)
    cache.replace(list(server.values()), version)
    assert {thing.key: thing for thing in cache} == server
