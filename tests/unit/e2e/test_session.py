"""A run always removes its cluster: after success, after a failure, and when it is interrupted."""

import argparse
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from e2e import __main__ as main
from e2e.images import Image, Images
from e2e.process import ROOT, CommandError, run, succeeds

IMAGES = Images(Image("b", Path("/b.tar")), Image("o", Path("/o.tar")), Image("e"))


@dataclass
class Recorder:
    """A provider that notes what is asked of it; `broken` names the step that fails."""

    broken: str = ""
    steps: list[str] = field(default_factory=list)

    def note(self, step: str) -> None:
        self.steps.append(step)
        if step == self.broken:
            raise CommandError(step)

    def up(self) -> Path:
        self.note("up")
        return Path("/kubeconfig")

    def env(self) -> dict[str, str]:
        return {"KUBECONFIG": "/kubeconfig"}

    def load(self, image: str, rootfs: Path | None) -> None:
        self.note(f"load {image}")

    def logs(self, folder: Path) -> None:
        self.note("logs")

    def down(self) -> None:
        self.note("down")


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> argparse.Namespace:
    monkeypatch.setattr(main, "make_images", lambda provider: IMAGES)
    monkeypatch.setattr(main, "CACHE", tmp_path)
    # No kubectl of ours is here: the logs of a failure are what there is.
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return argparse.Namespace(provider=None, name="lend", keep=False)


def test_a_run_loads_the_images_and_tests(options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, seen = Recorder(), {}

    def test(environ: dict[str, str], name: str, rest: list[str]) -> int:
        seen.update(environ, name=name)
        return 0

    monkeypatch.setattr(main, "test", test)
    assert main.session(provider, options, []) == 0
    assert provider.steps == ["up", "load b", "load o", "load e", "down"]
    assert (seen["KUBECONFIG"], seen["EBBTIDE_E2E_IMAGE"], seen["name"]) == ("/kubeconfig", "o", "lend")


def test_a_failure_keeps_logs_and_says_where(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    provider = Recorder()
    monkeypatch.setattr(main, "test", lambda *_: 1)
    assert main.session(provider, options, []) == 1
    assert provider.steps[-2:] == ["logs", "down"]
    assert f"logs are in {tmp_path}/logs/" in capsys.readouterr().out


@pytest.mark.parametrize("broken", ["up", "load o"])
def test_a_cluster_that_half_starts_is_removed(options: argparse.Namespace, broken: str) -> None:
    provider = Recorder(broken)
    with pytest.raises(CommandError):
        main.session(provider, options, [])
    assert provider.steps[-1] == "down"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_removes_the_cluster(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    provider = Recorder()

    def interrupted(*_: object) -> int:
        raise stop

    monkeypatch.setattr(main, "test", interrupted)
    with pytest.raises(stop):
        main.session(provider, options, [])
    assert provider.steps[-1] == "down"


def test_it_can_be_kept(options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Recorder()
    options.keep = True
    monkeypatch.setattr(main, "test", lambda *_: 0)
    main.session(provider, options, [])
    assert "down" not in provider.steps


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_whole_command_ends_with_down(tmp_path: Path, number: int, code: int) -> None:
    """The real command with a script that starts nothing: it is stopped while the cluster comes up."""
    script = tmp_path / "cluster"
    # Only the group's leader sees the signal, as with `kill`; the step in progress may end.
    script.write_text(
        f'#!/bin/sh\necho "$1" >> {tmp_path}/steps\nif [ "$1" = up ]; then kill -{int(number)} $PPID; sleep 1; fi\n'
    )
    script.chmod(0o755)
    code_text = "import sys; from e2e import __main__ as m, images as i; from pathlib import Path\n"
    code_text += "m.make_images = lambda p: i.Images(*[i.Image('x', Path('/x'))] * 3); sys.exit(m.main())"
    env = {**os.environ, "EBBTIDE_CLUSTER": str(script), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code_text], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "steps").read_text().split() == ["down", "up", "down"]


def test_a_command_that_fails_is_named_with_its_last_words() -> None:
    with pytest.raises(CommandError, match=r"sh -c .*exit 3\nwhy"):
        run("sh", "-c", "echo why >&2; exit 3")
    with pytest.raises(CommandError, match="no-such-program"):
        run("no-such-program")
    assert succeeds("true")
    assert not succeeds("false")
