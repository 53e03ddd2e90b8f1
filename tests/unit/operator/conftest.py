"""Servers, settings and folders for the operator's own tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide_api.server import InferenceServer
from ebbtide_operator.drive.layout import Layout
from ebbtide_operator.settings import Commands, Restarts, Settings

from .given import remove_tree

AGENT = (sys.executable, "-m", "tests.support.fake_agent")
LAUNCHER = (sys.executable, "-m", "tests.support.fake_launcher")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """Settings whose members are fake, and whose restarts are quick."""
    made = Settings(
        home=tmp_path / "home",
        port=0,
        shared_memory=tmp_path / "shm",
        commands=Commands(agent=AGENT, launcher=LAUNCHER),
        restarts=Restarts(first=0.05, longest=0.5, stable=5.0),
        stop_grace=5.0,
    )
    yield made
    remove_tree(made)


@pytest.fixture
def layout(settings: Settings) -> Layout:
    return Layout.of(settings.home, settings.shared_memory)


@pytest.fixture
def server(model: Path) -> InferenceServer:
    from .given import server_of

    return server_of(model)
