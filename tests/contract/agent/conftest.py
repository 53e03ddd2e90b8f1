"""Fixtures of the contract suite.

The cases say nothing about which engine a member has, but for those that script lies. Today it is the scripted fake; a
real engine takes its place by another parameter of `engine`, with an object that has the attributes `Member` uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ebbtide_runtime.launcher.page import open_or_create

from tests.support.agents import SECRET_TEXT, Caller, make_member
from tests.support.checkpoints import make_model
from tests.support.fake_engine import FakeEngine
from tests.support.rig import Member, to_running

Make = Callable[..., Member]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make members, with changes to their configuration; the agent is not started."""
    made: list[Member] = []

    def new(**changes: Any) -> Member:
        root = tmp_path / str(len(made))
        model = make_model(root / "model")
        config = make_member(root, **{"model": str(model), **changes})
        page = open_or_create(config.page_path)
        made.append(Member(root, config, page, FakeEngine(config, SECRET_TEXT, page)))
        return made[-1]

    yield new
    for member in made:
        member.close()


@pytest.fixture(params=["fake"])
def engine(request: pytest.FixtureRequest) -> str:
    """Which engine the cases run against."""
    return str(request.param)


@pytest.fixture
def member(make: Make, engine: str) -> Member:
    """A member with the engine under test; the agent is not started."""
    assert engine == "fake"
    return make()


@pytest.fixture
def running(member: Member) -> tuple[Member, Caller]:
    """A member that serves."""
    caller = member.start()
    to_running(caller)
    return member, caller
