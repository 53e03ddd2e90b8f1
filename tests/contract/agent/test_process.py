"""The agent as a process: how it ends, what it says, and what stops its start."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ebbtide_api.state import Phase
from ebbtide_api.verbs import OperationStatus, Verb

from tests.support.agents import SECRET_TEXT, TOKEN, Caller
from tests.support.fake_engine import Lie, until
from tests.support.rig import Member, sleep, to_running, to_weights

Pair = tuple[Member, Caller]


def test_sigterm_ends_it_in_order_and_leaves_what_serves(member: Member) -> None:
    caller = member.start(process=True)
    to_running(caller)
    caller.close()
    agent: Any = member.agents.pop()
    assert agent.stop() == 0
    assert member.page.admission


def test_sigterm_in_an_operation_is_a_restart_like_any_other(running: Pair) -> None:
    member, caller = running
    to_weights(caller)
    member.engine.lie("wake", Lie.HANG)
    caller.post(Verb.WAKE_KV, key="op-1")
    until(lambda: member.engine.calls[-1] == "wake")
    member.agents.pop().stop()
    caller = member.start()
    assert caller.until(Phase.WEIGHTS_RESIDENT).boot == 1
    assert caller.wait("op-1").status is OperationStatus.FAILED


def test_a_restart_after_its_file_was_changed_goes_on_with_the_file_of_before(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a pod: a lent one is not replaced, and its ConfigMap is its server's newest."""
    path = Path(member.config.home) / "member.json"
    monkeypatch.setenv("EBBTIDE_MEMBER_DIGEST", hashlib.sha256(path.read_bytes()).hexdigest())
    caller = member.start(process=True)
    to_running(caller)
    sleep(caller)
    member.agents.pop().stop()
    path.write_text(json.dumps({**json.loads(path.read_text()), "uid": "newer", "agentPort": 1}))
    caller = member.start(process=True)
    state = caller.until(Phase.ASLEEP)
    assert (state.instance.uid, state.boot) == (member.config.uid, 1)


def test_nothing_secret_is_logged(member: Member) -> None:
    caller = member.start(process=True)
    to_running(caller)
    sleep(caller)
    stranger = Caller(member.config, token="wrong-token-in-a-header")
    stranger.http.get("/v1/state", params={"x": "y"})
    stranger.close()
    member.engine.lie("wake", Lie.ERROR)
    caller.fail(Verb.WAKE_WEIGHTS)
    agent: Any = member.agents.pop()
    agent.stop()
    text = agent.log.read_text()
    assert "phase Running" in text
    assert "fault: ENGINE_FAULTED" in text
    for secret in (TOKEN, SECRET_TEXT, "wrong-token-in-a-header"):
        assert secret not in text
    state = (Path(member.config.home) / "state.json").read_text()
    assert TOKEN not in state
    assert SECRET_TEXT not in state


def start_alone(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ebbtide_runtime.agent", "--member", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env={**os.environ}, check=False)


def test_a_damaged_memory_stops_the_start(member: Member) -> None:
    """The epoch would be forgotten, and a dead holder let in again."""
    (Path(member.config.home) / "state.json").write_text("{")
    ended = start_alone(Path(member.config.home) / "member.json")
    assert ended.returncode == 78
    assert "state.json is damaged" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_what_it_was_given_is_wrong(member: Member) -> None:
    path = Path(member.config.home) / "member.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "dataPort": 0}))
    ended = start_alone(path)
    assert (ended.returncode, "dataPort" in ended.stderr) == (64, True)


def test_without_its_secret_it_does_not_start(member: Member) -> None:
    Path(member.config.secret_path).unlink()
    ended = start_alone(Path(member.config.home) / "member.json")
    assert ended.returncode == 64
    assert "secret" in ended.stderr
