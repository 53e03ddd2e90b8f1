"""The command line: what it prints, its exit codes, and that errors are one line."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide.cli import console, lend, logs, processes, tables
from ebbtide.cli.run import FAILED, INTERRUPTED, USAGE, run
from ebbtide_api.errors import EbbtideError, ErrorBody, ErrorCode
from ebbtide_api.verbs import DeviceRelease, LendResult
from rich.console import Console

from tests.support.fake_gateway import TOKEN, FakeGateway, serving
from tests.support.polling import eventually


@pytest.fixture
def home(gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home whose operator is the fake gateway."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "token").write_text(TOKEN)
    for name in ("EBBTIDE_URL", "EBBTIDE_TOKEN", "EBBTIDE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EBBTIDE_HOME", str(home))
    with serving(gateway) as url:
        record = {"url": url, "pid": os.getpid(), "tokenPath": str(home / "token")}
        (home / "operator.json").write_text(json.dumps(record))
        yield home


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tables have the room that they have on a screen."""
    monkeypatch.setenv("COLUMNS", "200")
    for name, stderr in (("out", False), ("err", True)):
        made = Console(stderr=stderr, highlight=False, width=200)
        for module in [each for key, each in sys.modules.items() if key.startswith("ebbtide.cli.")]:
            if hasattr(module, name):
                monkeypatch.setattr(module, name, made)


def typed(*arguments: str) -> int:
    return run(arguments)


# Errors


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("--help") == 0
    assert "lend" in capsys.readouterr().out
    assert typed("version") == 0
    assert capsys.readouterr().out == "ebbtide 0.1.0\n"


@pytest.mark.parametrize(
    "arguments",
    [("fly",), ("up",), ("lend",), ("lend", "actor", "--for", "soon"), ("status", "--colour"), ("down", "x")],
)
def test_wrong_usage_is_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(*arguments) == USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_an_error_is_one_line_with_the_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("status", "--home", str(tmp_path)) == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("UNREACHABLE no gateway was found")
    assert str(tmp_path / "operator.json") in line
    assert "Run `ebbtide up -f server.yaml`" in line


def test_debug_shows_where_an_error_comes_from(tmp_path: Path) -> None:
    with pytest.raises(EbbtideError):
        typed("--debug", "status", "--home", str(tmp_path))


@pytest.mark.parametrize(
    ("problem", "code", "text"),
    [
        (KeyboardInterrupt(), INTERRUPTED, ""),
        (PermissionError(13, "Permission denied", "/home/x"), FAILED, "Permission denied"),
        (ValueError("odd [bracket]"), FAILED, "ValueError: odd [bracket]. A fault of Ebbtide"),
        (EbbtideError(ErrorCode.INVALID_REQUEST, "no."), USAGE, "INVALID_REQUEST no. Correct"),
    ],
)
def test_whatever_happens_is_told_in_a_line(
    problem: BaseException, code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(home: Path) -> int:
        raise problem

    monkeypatch.setattr("ebbtide.cli.doctor.doctor", broken)
    assert typed("doctor") == code
    assert text in capsys.readouterr().err


def test_an_error_of_many_lines_keeps_them(capsys: pytest.CaptureFixture[str]) -> None:
    console.complain(EbbtideError(ErrorCode.INVALID_REQUEST, "a.yaml: two faults:\n  a.yaml:1: [x]\n  a.yaml:2: y"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "INVALID_REQUEST a.yaml: two faults:"
    assert lines[1] == "  a.yaml:1: [x]"
    assert lines[2:] == ["  a.yaml:2: y", "Correct the request; details names the field."]


@pytest.mark.parametrize(("text", "seconds"), [("30", 30), ("1.5", 1.5), ("30s", 30), ("5m", 300), ("1h30m", 5400)])
def test_times(text: str, seconds: float) -> None:
    assert console.seconds_of(text) == seconds


# status


def test_status_shows_members_groups_and_owners(
    home: Path, gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("status") == 0
    shown = capsys.readouterr().out
    for word in ("chat-0", "Running", "actor", "engine"):
        assert word in shown
    gateway.occupy("trainer-7")
    assert typed("status", "--home", str(home)) == 0
    assert "trainer-7: Granted" in capsys.readouterr().out


def test_status_as_json(home: Path, gateway: FakeGateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("status", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["servers"][0]["members"][0]["phase"] == "Running"
    assert found["groups"][0]["name"] == "actor"


def test_watching_goes_on_until_ctrl_c_and_over_errors(
    home: Path, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps = iter([None, None])

    def sleep(seconds: float) -> None:
        if next(naps, KeyboardInterrupt) is KeyboardInterrupt:
            raise KeyboardInterrupt
        gateway.fault("GET", "/v1/groups", *_not_found())

    monkeypatch.setattr("ebbtide.cli.status.time.sleep", sleep)
    assert typed("status", "--watch") == 0
    assert len(gateway.seen("GET", "/v1/groups")) == 3


def _not_found():  # type: ignore[no-untyped-def]
    from tests.support.fake_gateway import Fault

    return [Fault.answer(404, "gone")]


# lend


def test_lend_runs_a_command_with_the_memory(
    home: Path, gateway: FakeGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "import json, os, sys; json.dump(sys.argv[1:], open(os.environ['SEEN'], 'w')); sys.exit(7)"
    os.environ["SEEN"] = str(tmp_path / "seen")
    assert typed("lend", "actor", "--", sys.executable, "-c", script, "--for", "x") == 7
    assert json.loads((tmp_path / "seen").read_text()) == ["--for", "x"]
    shown = capsys.readouterr().out
    assert "1,200 MiB" in shown
    assert "Draining 3 ms > Suspending 41 ms" in shown
    assert "Serving version 0 again; canary ok" in shown
    assert gateway.performed == ["lend", "reclaim"]


def test_a_command_that_cannot_run_puts_no_engine_to_sleep(
    home: Path, gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("lend", "actor", "--", "/no/such/command") == USAGE
    assert "/no/such/command cannot be run" in capsys.readouterr().err
    assert typed("lend", "actor", "--for", "1s", "--", "true") == USAGE
    assert "exclude each other" in capsys.readouterr().err
    assert gateway.performed == []


def test_a_command_ended_by_a_signal_has_its_code(home: Path) -> None:
    script = "import os; os.kill(os.getpid(), 15)"
    assert typed("lend", "actor", "--", sys.executable, "-c", script) == 143


@pytest.mark.parametrize(("free", "shown"), [(3000.0, "3,000 MiB"), (None, "not known"), (0.0, "0 MiB")])
def test_free_memory_of_a_device_whose_size_nobody_knows_is_not_shown_as_none(
    free: float | None, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    device = DeviceRelease(id="gpu:X", freed_mib=9, residual_mib=600, free_mib=free)
    result = LendResult(epoch=2, devices=[device], members=[])
    made = LendResult.model_validate(result.wire())
    Console(width=200).print(tables.lent(made))
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "gpu:X" in line]
    assert row.split("600 MiB")[1].strip() == shown


def test_lend_for_a_time(home: Path, gateway: FakeGateway) -> None:
    assert typed("lend", "actor", "--for", "10ms", "--need", "100") == 0
    assert gateway.performed == ["lend", "reclaim"]
    assert gateway.seen("POST", "/lease")[0].body["needMiB"] == 100


class Terminal(io.StringIO):
    """A terminal at which somebody presses Enter, or Ctrl-C."""

    interrupted = False

    def isatty(self) -> bool:
        return True

    def readline(self, size: int = -1) -> str:
        if self.interrupted:
            raise KeyboardInterrupt
        return "\n"


@pytest.mark.parametrize("interrupted", [False, True])
def test_lend_until_enter_or_ctrl_c(
    home: Path, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    terminal = Terminal()
    terminal.interrupted = interrupted
    monkeypatch.setattr(sys, "stdin", terminal)
    assert typed("lend", "actor") == 0
    assert gateway.performed == ["lend", "reclaim"]


def test_without_a_terminal_lend_asks_how_long(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("lend", "actor") == USAGE
    assert "--for 30s, or -- COMMAND" in capsys.readouterr().err


def test_a_command_whose_memory_was_taken_away_is_ended(
    home: Path, gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.ttl_counts = False
    timer = threading.Thread(target=lambda: (eventually(lambda: gateway.performed), gateway.take_away()))
    timer.start()
    code = typed("lend", "actor", "--ttl", "600ms", "--", sys.executable, "-c", "import time; time.sleep(30)")
    timer.join()
    assert code == FAILED
    assert "STALE_EPOCH" in capsys.readouterr().err


def test_the_lend_of_another_home(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("lend", "actor", "--for", "1ms", "--home", str(tmp_path / "other")) == FAILED
    assert "other/operator.json does not exist" in capsys.readouterr().err


def test_a_failed_lend_is_told(home: Path, gateway: FakeGateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.fail("lend", ErrorBody(code=ErrorCode.DRAIN_DEADLINE, message="3 requests remain."))
    assert typed("lend", "actor", "--for", "1ms") == FAILED
    assert "DRAIN_DEADLINE 3 requests remain." in capsys.readouterr().err


def test_a_holding_without_a_command_loses_nothing() -> None:
    holding = lend.Holding()
    holding.take_away(EbbtideError(ErrorCode.STALE_EPOCH, "over."))
    assert holding.lost is not None


# logs


@pytest.fixture
def members(tmp_path: Path) -> Path:
    for name, server in (("chat-0", "chat"), ("chat-1", "chat"), ("other-0", "other")):
        folder = tmp_path / "members" / name
        folder.mkdir(parents=True)
        (folder / "member.json").write_text(json.dumps({"server": server}))
        (folder / "engine.log").write_text("".join(f"{name} engine {line}\n" for line in range(5)))
        (folder / "agent.log").write_text(f"{name} agent\n")
    return tmp_path


def test_logs_of_a_server_are_those_of_its_members(members: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("logs", "chat", "-n", "2", "--home", str(members)) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["chat-0 engine 3", "chat-0 engine 4", "chat-1 engine 3", "chat-1 engine 4"]
    assert "chat-1" in captured.err


def test_logs_of_one_member_and_of_its_agent(members: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("logs", "chat-1", "--agent", "--home", str(members)) == 0
    assert capsys.readouterr().out == "chat-1 agent\n"


def test_logs_of_nobody_name_who_there_is(members: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("logs", "chess", "--home", str(members)) == FAILED
    assert "there are: chat, chat-0, chat-1, other, other-0" in capsys.readouterr().err


def test_a_member_without_a_log_is_silent(members: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (members / "members/other-0/engine.log").unlink()
    (members / "members/other-0/member.json").write_text("{")
    assert typed("logs", "other", "--home", str(members)) == 0
    assert capsys.readouterr().out == ""


def test_following_sees_lines_cuts_and_replacements(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    growing = logs.grown(path)
    assert next(growing) == ""
    path.write_text("one\n")
    assert next(growing) == "one\n"
    with path.open("a") as file:
        file.write("two\n")
    assert [next(growing), next(growing)] == ["two\n", ""]
    path.write_text("3\n")
    assert next(growing) == "3\n"
    path.rename(tmp_path / "engine.log.1")
    assert next(growing) == ""
    path.write_text("a new file\n")
    assert next(growing) == "a new file\n"


def test_following_ends_with_ctrl_c(members: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ebbtide.cli.logs.time.sleep", interrupt)
    assert typed("logs", "chat", "--follow", "--home", str(members)) == 0


# processes and down


def test_processes_of_members_are_found_by_arguments_and_environment(tmp_path: Path) -> None:
    mark = str(tmp_path / "members/chat-0/member.json")
    code = "import time; print(flush=True); time.sleep(60)"
    agent = [sys.executable, "-c", code, "--member", mark]
    engine = {**os.environ, "EBBTIDE_MEMBER": mark}
    with (
        subprocess.Popen(agent, stdout=subprocess.PIPE) as first,
        subprocess.Popen([sys.executable, "-c", code], env=engine, stdout=subprocess.PIPE) as second,
    ):
        for each in (first, second):
            assert each.stdout is not None
            each.stdout.readline()
        assert sorted(processes.of_members(tmp_path)) == sorted([first.pid, second.pid])
        assert processes.of_members(tmp_path / "members") == []
        assert typed("down", "--home", str(tmp_path)) == 0
        assert first.wait(5) == second.wait(5) == -signal.SIGTERM
    assert processes.of_members(tmp_path) == []


def test_down_frees_the_memory_of_an_operator_that_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = tmp_path / "ebbtide-abc"
    memory.mkdir()
    (tmp_path / "operator.json").write_text(json.dumps({"pid": 2**22 + 1, "memory": str(memory)}))
    assert typed("down", "--home", str(tmp_path)) == 0
    assert not memory.exists()
    assert "Nothing runs" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]", '{"pid": 1}'])
def test_down_never_ends_a_stranger(tmp_path: Path, text: str) -> None:
    (tmp_path / "operator.json").write_text(text)
    assert typed("down", "--home", str(tmp_path)) == 0
    assert processes.alive(1)
