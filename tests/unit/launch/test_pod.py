"""The launcher in a pod: which member it is, what it leaves to others, its probes, and its drain."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ebbtide_api.member import MemberConfig
from ebbtide_api.state import PHASE_NUMBER, Phase
from ebbtide_runtime.launcher.page import Board, open_or_create
from ebbtide_runtime.launcher.pod import Told, settle
from ebbtide_runtime.native import Field

from tests.support.engines import free_port
from tests.support.launching import Launch, ask, until
from tests.support.members import member_config, write_member

ENGINE = "import os, time; print(os.environ['EBBTIDE_MEMBER'], flush=True); time.sleep(120)"


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    made: list[Launch] = []

    def begin(**environ: str) -> Launch:
        # As the ConfigMap has it: one file for all members, elsewhere than in anybody's home.
        shared = tmp_path / "shared.json"
        shared.write_text(write_member(tmp_path).read_text())
        names = {"EBBTIDE_POD_NAME": "chat-3", "EBBTIDE_POD_UID": "uid-3"}
        made.append(Launch(shared, [sys.executable, "-c", ENGINE], {**names, **environ}))
        return made[-1]

    yield begin
    for each in made:
        each.close()


def own(launch: Launch) -> MemberConfig:
    return MemberConfig.model_validate_json((Path(launch.member.home) / "member.json").read_bytes())


# What it is told


def test_the_environment_tells_it() -> None:
    told = Told.of({"EBBTIDE_POD_NAME": "chat-0", "EBBTIDE_DRAIN_S": "30", "EBBTIDE_PROBE_PORT": "7413"})
    assert told == Told(pod=True, drain_s=30, probe_port=7413)
    assert Told.of({}) == Told(pod=False, drain_s=0, probe_port=None)


@pytest.mark.parametrize("name", ["EBBTIDE_DRAIN_S", "EBBTIDE_PROBE_PORT"])
@pytest.mark.parametrize("text", ["soon", "-1", "1.5"])
def test_what_is_no_number_is_said(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"{name}='{text}' is no whole number"):
        Told.of({name: text})


# What it leaves


def test_the_engine_is_told_by_a_copy_that_does_not_change(launch: Callable[..., Launch]) -> None:
    begun = launch()
    begun.grant()
    begun.started()
    until(lambda: begun.last_line().endswith("member.json"), "the engine")
    assert begun.last_line() == str(Path(begun.member.home) / "member.json")
    found = own(begun)
    assert (found.name, found.uid, found.ordinal) == ("chat-3", "uid-3", 3)


def test_on_one_machine_the_file_is_the_members_own_already(tmp_path: Path) -> None:
    path = write_member(tmp_path)
    before = path.read_bytes()
    assert settle(member_config(tmp_path), str(path), Told()) == str(path)
    assert path.read_bytes() == before
    assert not Path(member_config(tmp_path).headers_dir).exists()


def test_the_agent_finds_the_headers_of_a_model_that_it_cannot_see(tmp_path: Path) -> None:
    member = member_config(tmp_path)
    write_member(tmp_path)
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    Path(member.model).mkdir()
    (Path(member.model) / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    settle(member, "anywhere", Told(pod=True))
    left = Path(member.headers_dir) / "model.safetensors"
    assert left.stat().st_size == 8 + len(header)


def test_a_model_that_cannot_be_read_is_left_to_the_engine(tmp_path: Path, capsys: Any) -> None:
    member = member_config(tmp_path)
    write_member(tmp_path)
    assert settle(member, "anywhere", Told(pod=True)).endswith("/home/member.json")
    assert "no headers for the agent" in capsys.readouterr().err


def test_a_pod_of_another_server_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ebbtide_runtime.launch", "--member", str(write_member(tmp_path))],
        capture_output=True,
        text=True,
        env={"EBBTIDE_POD_NAME": "other-0", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 64
    assert "is no pod of server 'chat'" in done.stderr


# Its probes


def test_a_member_is_ready_while_it_runs_and_alive_all_the_time(launch: Callable[..., Launch]) -> None:
    port = free_port()
    begun = launch(EBBTIDE_PROBE_PORT=str(port))
    until(lambda: ask(port, "/startup") == 200, "the start")
    # The phase of a launch before says nothing of this one.
    begun.page.set(Field.PHASE, PHASE_NUMBER[Phase.RUNNING])
    assert (ask(port, "/live"), ask(port, "/ready")) == (200, 503)
    begun.grant()
    assert ask(port, "/ready") == 200
    begun.page.set(Field.PHASE, PHASE_NUMBER[Phase.ASLEEP])
    assert (ask(port, "/live"), ask(port, "/ready")) == (200, 503)


def test_a_sleeper_that_a_request_wakes_stays_ready(launch: Callable[..., Launch]) -> None:
    port = free_port()
    begun = launch(EBBTIDE_PROBE_PORT=str(port))
    until(lambda: ask(port, "/startup") == 200, "the start")
    begun.grant()
    begun.page.set(Field.WAKES, 1)
    for phase, ready in [
        (Phase.DRAINING, 200),
        (Phase.ASLEEP, 200),
        (Phase.WAKING_KV, 200),
        (Phase.STARTING, 503),
        (Phase.PAUSED, 503),
        (Phase.FAULTED, 503),
    ]:
        begun.page.set(Field.PHASE, PHASE_NUMBER[phase])
        assert ask(port, "/ready") == ready, phase
    begun.page.set(Field.WAKES, 0)
    begun.page.set(Field.PHASE, PHASE_NUMBER[Phase.ASLEEP])
    assert ask(port, "/ready") == 503, "lent, or asleep by power"


def test_a_new_launch_wakes_for_nobody(tmp_path: Path) -> None:
    page = open_or_create(str(tmp_path / "page"))
    page.set(Field.WAKES, 1)
    page.set(Field.HOLD_MS, 5000)
    Board(page).announce(7)
    assert (page.get(Field.WAKES), page.get(Field.HOLD_MS)) == (0, 0)
    page.close()


# Its end


def test_requests_in_flight_are_waited_for_and_no_other_is_let_in(launch: Callable[..., Launch]) -> None:
    begun = launch(EBBTIDE_DRAIN_S="60")
    begun.grant()
    begun.started()
    begun.page.open_gate()
    gate = begun.page.register_gate()
    try:
        assert gate.enter()
        begun.process.terminate()
        until(lambda: not begun.page.admission, "the gate to close")
        assert not gate.enter()
        begun.page.open_gate()
        until(lambda: not begun.page.admission, "the gate to close again")
        assert begun.process.poll() is None
        gate.leave()
        assert begun.wait() == 0
    finally:
        gate.close()
    assert begun.last_line() == "ebbtide: the engine ended as asked"


def test_a_drain_ends_at_its_deadline(launch: Callable[..., Launch]) -> None:
    begun = launch(EBBTIDE_DRAIN_S="1")
    begun.grant()
    begun.started()
    begun.page.open_gate()
    gate = begun.page.register_gate()
    try:
        assert gate.enter()
        begun.process.terminate()
        assert begun.wait() == 0
        assert begun.page.inflight() == 1
    finally:
        gate.close()
