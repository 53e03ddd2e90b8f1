"""What cannot run is refused before anything starts, in words that say where and why."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ebbtide_api.errors import ErrorCode

from tests.support.engines import free_port
from tests.support.launching import until
from tests.support.models import tiny
from tests.support.stack import START_S, Stack, command, document
from tests.support.stack_processes import of_home

MODEL = Path("/a/model")


def without(**spec: Any) -> str:
    """Return a server's text with parts of its spec replaced."""
    return yaml.safe_dump(document(MODEL, 8000, **spec))


def engine(**changes: Any) -> dict[str, Any]:
    return {"engine": {"port": 8000, **changes}}


FILES: dict[str, tuple[str, list[str]]] = {
    "no YAML": ("kind: [InferenceServer\n", ["server.yaml:2:"]),
    "empty": ("", ["server.yaml:1:", "no object"]),
    "another kind": (
        without().replace("InferenceServer", "InferenceServr"),
        ["server.yaml:2:", "InferenceServer", "KVCachePolicy"],
    ),
    "unknown field": (
        without(sleep={"dran": {"mode": "Wait"}}),
        ["server.yaml:", "spec.sleep.dran", "drain"],
    ),
    "wrong value": (
        without(sleep={"drain": {"mode": "Later"}}),
        ["server.yaml:", "spec.sleep.drain.mode", "Wait", "Abort"],
    ),
    "not honoured yet": (without(weights={"handoff": "Disk"}), ["spec.weights.handoff", "SharedMemory"]),
    "our flag": (without(**engine(extraArgs=["--port=1"])), ["spec.engine.extraArgs", "--port", "spec.engine.port"]),
    "our flag, vLLM's other spelling": (without(**engine(extraArgs=["--worker_cls=x"])), ["--worker-cls"]),
    "our variable": (
        without(**engine(env=[{"name": "VLLM_PLUGINS", "value": ""}])),
        ["spec.engine.env", "VLLM_PLUGINS", "Ebbtide"],
    ),
    "no model": (without(), ["spec.model.source", str(MODEL), "config.json"]),
}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home that nobody has used yet."""
    yield tmp_path / "home"
    assert of_home(tmp_path / "home") == []


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_run_starts_nothing(home: Path, tmp_path: Path, case: str) -> None:
    text, words = FILES[case]
    file = tmp_path / "server.yaml"
    file.write_text(text)
    done = subprocess.run(
        command(home, "-f", file, "--port", 0), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    for word in words:
        assert word in done.stderr
    assert_nothing_started(home)


def test_a_file_that_is_not_there_starts_nothing(home: Path, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.yaml"
    done = subprocess.run(command(home, "-f", missing), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, str(missing) in done.stderr, "Traceback" in done.stderr) == (2, True, False)
    assert_nothing_started(home)


def assert_nothing_started(home: Path) -> None:
    assert of_home(home) == []
    assert not (home / "operator.json").exists()
    assert not list(home.glob("members/*"))
    assert not list(home.glob("servers/*"))


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--no-such-flag", ["--no-such-flag"]),
        ("--middlew=builtins.print", ["--middleware", "the gate must be the only middleware"]),
    ],
)
def test_arguments_that_only_vllm_can_judge_stop_the_engine_and_are_told(
    tmp_path: Path, argument: str, words: list[str]
) -> None:
    """They are read by vLLM's own parser, in the engine's process: no weights are loaded, no port is opened."""
    stack = Stack(tmp_path, tiny(), engine={"port": free_port(), "extraArgs": [argument]})
    try:
        stack.start()
        log = stack.home / "members" / "tiny-0" / "engine.log"
        until(lambda: log.exists() and all(word in log.read_text() for word in words), "the refusal", START_S)
        until(lambda: bool(told(stack)), "the state to tell it", START_S)
        assert not stack.server().serving
        assert stack.stop() == 0
        assert stack.processes() == []
    finally:
        stack.destroy()


def told(stack: Stack) -> str:
    """Return what the state says of it: that the engine ended, and with which status."""
    members = stack.server().members
    error = members[0].last_error if members else None
    return error.message if error and error.code is ErrorCode.ENGINE_FAULTED and "64" in error.message else ""
