"""`ebbtide up` and `down`, as processes, with a fake operator: what is told, what is left, how it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ebbtide.cli import extras
from ebbtide.cli.processes import alive
from ebbtide.cli.run import FAILED, INTERRUPTED, USAGE, run

from tests.support.polling import eventually

ROOT = Path(__file__).resolve().parents[3]
SERVER = """
apiVersion: ebbtide.dev/v1alpha1
kind: InferenceServer
metadata: {name: chat}
spec:
  model: {source: ./model, servedName: tiny}
  colocation: {group: actor, devices: {cpu: {memory: 8Gi}}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    path = tmp_path / "server.yaml"
    path.write_text(SERVER)
    return path


def environment(mode: str = "") -> dict[str, str]:
    fakes = f"{ROOT}/tests/support/fake_operator:{ROOT}"
    return {**os.environ, "PYTHONPATH": fakes, "FAKE_OPERATOR": mode, "COLUMNS": "200"}


@contextmanager
def ebbtide(*arguments: str, mode: str = "") -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", "from ebbtide.cli import main; main()", *arguments]
    with subprocess.Popen(
        command, env=environment(mode), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def serving_line(process: subprocess.Popen[str]) -> str:
    """Read until the curl line, which comes when all serve."""
    assert process.stdout is not None
    return next(line for line in process.stdout if line.startswith("curl"))


def operator_of(home: Path) -> int:
    return int(json.loads((home / "operator.json").read_text())["pid"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_up_serves_until_it_is_interrupted(tmp_path: Path, file: Path, number: signal.Signals) -> None:
    home = tmp_path / "home"
    with ebbtide("up", "-f", str(file), "--home", str(home), "--port", "0") as process:
        line = serving_line(process)
        assert line.startswith("curl http://127.0.0.1:8000/v1/completions")
        assert '"model": "tiny"' in line
        operator = operator_of(home)
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == INTERRUPTED
    assert "chat-0: Running" in errors
    assert "Ended." in errors
    assert not alive(operator)
    assert "ended in order" in (home / "operator.log").read_text()
    assert home.stat().st_mode & 0o077 == 0


def test_detached_it_stays_until_down(tmp_path: Path, file: Path) -> None:
    home = tmp_path / "home"
    with ebbtide("up", "-f", str(file), "--home", str(home), "--port", "0", "--detach") as process:
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "ebbtide lend actor" in output
    assert "`ebbtide down` ends it" in errors
    operator = operator_of(home)
    assert alive(operator)
    with ebbtide("up", "-f", str(file), "--home", str(home)) as second:
        _, errors = second.communicate(timeout=30)
    assert second.returncode == FAILED
    assert "an operator runs in" in errors
    with ebbtide("down", "--home", str(home)) as down:
        _, errors = down.communicate(timeout=30)
    assert (down.returncode, errors) == (0, "Ended.\n")
    assert not alive(operator)


def test_an_operator_ended_by_somebody_else_is_told(tmp_path: Path, file: Path) -> None:
    home = tmp_path / "home"
    with ebbtide("up", "-f", str(file), "--home", str(home), "--port", "0") as process:
        serving_line(process)
        os.kill(operator_of(home), signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "The operator was ended." in errors


@pytest.mark.parametrize(("mode", "code"), [("refuse", USAGE), ("crash", FAILED)])
def test_an_operator_that_does_not_start_is_quoted(tmp_path: Path, file: Path, mode: str, code: int) -> None:
    with ebbtide("up", "-f", str(file), "--home", str(tmp_path / "home"), mode=mode) as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == code
    (line,) = errors.splitlines()
    assert "port 7411 is taken" in line
    assert "operator.log" in line


def test_an_operator_that_dies_later_is_quoted(tmp_path: Path, file: Path) -> None:
    home = str(tmp_path / "home")
    with ebbtide("up", "-f", str(file), "--home", home, "--port", "0", mode="crash-later") as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == FAILED
    assert "ended with exit code 3: out of luck" in errors


def test_servers_that_never_serve_are_named_and_ended(tmp_path: Path, file: Path) -> None:
    home = tmp_path / "home"
    arguments = ("up", "-f", str(file), "--home", str(home), "--port", "0", "--timeout", "1s")
    with ebbtide(*arguments, mode="never-ready") as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == FAILED
    assert "not all serve after 1 s; chat: Starting: the engine loads." in errors
    assert "ebbtide logs chat" in errors
    assert not (home / "operator.json").exists()


def test_down_does_not_wait_forever(tmp_path: Path, file: Path) -> None:
    home = tmp_path / "home"
    with ebbtide("up", "-f", str(file), "--home", str(home), "--port", "0", "--detach", mode="stubborn") as process:
        process.communicate(timeout=30)
    operator = operator_of(home)
    with ebbtide("down", "--home", str(home), "--timeout", "300ms") as down:
        _, errors = down.communicate(timeout=30)
    os.kill(operator, signal.SIGKILL)
    eventually(lambda: not alive(operator))
    assert down.returncode == FAILED
    assert f"(pid {operator}) did not end within 0.3 s" in errors


# Before anything is started


def test_a_wrong_file_is_told_by_line_and_field(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(SERVER.replace("model:", "modle:"))
    assert run(["up", "-f", str(file), "--home", str(tmp_path / "home")]) == USAGE
    errors = capsys.readouterr().err
    assert "server.yaml:6" in errors
    assert "Did you mean" in errors
    assert not (tmp_path / "home").exists()


def test_a_missing_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "-f", str(tmp_path / "gone.yaml"), "--home", str(tmp_path)]) == USAGE
    assert "gone.yaml" in capsys.readouterr().err


def test_without_the_extras_it_says_what_to_install(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "fastapi" else name)
    assert run(["up", "-f", str(file), "--home", str(tmp_path / "home")]) == USAGE
    errors = capsys.readouterr().err
    assert "fastapi cannot be imported" in errors
    assert "pip install 'ebbtide[operator,runtime,cpu]'" in errors
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (("./model", "/models/absent"), "INVALID_REQUEST", ":6:19: spec.model.source: /models/absent holds no model"),
        (("spec:", "spec:\n  role: Prefill"), "NOT_YET_SUPPORTED", ":6:9: spec.role: "),
    ],
)
def test_what_the_operator_would_refuse_is_told_with_its_line(
    tmp_path: Path, file: Path, change: tuple[str, str], code: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(SERVER.replace(*change))
    assert run(["up", "-f", str(file), "--home", str(tmp_path / "home")]) == USAGE
    errors = "".join(capsys.readouterr().err.split("\n"))
    assert code in errors
    assert says in errors
    assert not (tmp_path / "home").exists()
