"""What the tests of the operator share besides fixtures."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ebbtide_api.server import InferenceServer
from ebbtide_operator.drive import proc
from ebbtide_operator.drive.layout import Layout
from ebbtide_operator.settings import Settings


def server_of(model: Path, name: str = "chat", **spec: Any) -> InferenceServer:
    return InferenceServer.model_validate(document_of(model, name, **spec))


def document_of(model: Path, name: str = "chat", **spec: Any) -> dict[str, Any]:
    devices = {"cpu": {"memory": "1000Mi"}}
    return {
        "apiVersion": "ebbtide.dev/v1alpha1",
        "kind": "InferenceServer",
        "metadata": {"name": name},
        "spec": {"model": {"source": str(model)}, "colocation": {"group": "actor", "devices": devices}, **spec},
    }


def members_of(settings: Settings) -> list[proc.Process]:
    """Every process that belongs to a member of a home."""
    homes = Layout.of(settings.home, settings.shared_memory).members
    folders = homes.iterdir() if homes.exists() else ()
    return [process for home in folders for process in proc.of_member(str(home / "member.json"))]


def remove_tree(settings: Settings) -> None:
    """End whatever a test left."""
    proc.send(members_of(settings), signal.SIGKILL)


def until(holds: Callable[[], object], seconds: float = 15.0) -> Any:
    """Wait until something is true, and return it."""
    due = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < due, f"not within {seconds} s"
        time.sleep(0.01)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
