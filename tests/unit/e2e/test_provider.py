"""A provider is chosen by what the machine has, and does what its script or kind understands."""

import os
from pathlib import Path

import pytest

from e2e.process import CommandError
from e2e.provider import Kind, Lab, Provider, choose


def program(folder: Path, name: str, body: str) -> Path:
    """Write a program that notes how it was called and then does `body`."""
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "{name} $*" >> {folder}/calls\n{body}\n')
    path.chmod(0o755)
    return path


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first on PATH; no cluster script is named."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("EBBTIDE_CLUSTER", "KUBE_LAB_DIR", "KUBE_LAB_PORT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def lab(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Provider:
    body = """case "$1" in
  up) echo "$KUBE_LAB_PORT $KUBE_LAB_DIR" > "$(dirname "$0")/place"; echo starting; echo /lab/admin.kubeconfig ;;
  env) echo 'export KUBECONFIG=/lab/admin.kubeconfig'; echo 'export PATH=/lab/bin:$PATH' ;;
esac"""
    monkeypatch.setenv("EBBTIDE_CLUSTER", str(program(machine, "cluster", body)))
    return choose(None)


def test_the_named_script_is_the_default(lab: Provider) -> None:
    assert isinstance(lab, Lab)


def test_lab_starts_from_nothing_in_a_place_of_its_own(lab: Provider, machine: Path) -> None:
    assert lab.up() == Path("/lab/admin.kubeconfig")
    assert calls(machine) == ["cluster down", "cluster up"]
    port, folder = (machine / "place").read_text().split()
    assert port != "6443"
    assert len(folder) < 40


def test_lab_reads_the_scripts_environment(lab: Provider, machine: Path) -> None:
    env = lab.env()
    assert env["KUBECONFIG"] == "/lab/admin.kubeconfig"
    assert env["PATH"] == f"/lab/bin:{os.environ['PATH']}"
    assert env["KUBE_LAB_DIR"]


def test_lab_imports_a_root_file_system(lab: Provider, machine: Path) -> None:
    lab.load("localhost/a:1", Path("/a.tar"))
    assert calls(machine) == ["cluster image localhost/a:1 /a.tar"]
    with pytest.raises(CommandError, match="root file system"):
        lab.load("localhost/a:1", None)


def test_lab_keeps_logs(lab: Provider, machine: Path, tmp_path: Path) -> None:
    assert isinstance(lab, Lab)
    place = tmp_path / "lab"
    (place / "log").mkdir(parents=True)
    (place / "log" / "kubelet").write_text("hello")
    Lab(lab.script, {**lab.place, "KUBE_LAB_DIR": str(place)}).logs(tmp_path / "kept")
    assert (tmp_path / "kept/log/kubelet").read_text() == "hello"


def test_a_script_that_fails_says_why(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_CLUSTER", str(program(machine, "cluster", "echo no containerd >&2; exit 1")))
    with pytest.raises(CommandError, match="exit 1\nno containerd"):
        choose("lab").down()


def test_kind_is_taken_where_a_docker_engine_runs(machine: Path) -> None:
    program(machine, "docker", "")
    program(machine, "kind", "")
    kind = choose(None)
    assert isinstance(kind, Kind)
    kind.up()
    kind.load("localhost/a:1", None)
    kind.load("localhost/b:1", Path("/b.tar"))
    kind.down()
    verbs = [" ".join(line.split()[:3]) for line in calls(machine)[1:]]
    assert verbs == [
        "kind delete cluster",
        "kind create cluster",
        "kind load docker-image",
        "docker import /b.tar",
        "kind load docker-image",
        "kind delete cluster",
    ]


def test_a_docker_client_without_an_engine_is_no_engine(machine: Path) -> None:
    program(machine, "docker", "exit 1")
    program(machine, "kind", "")
    with pytest.raises(CommandError, match="Docker engine that runs"):
        choose(None)


def test_a_machine_with_nothing_says_what_is_missing(machine: Path) -> None:
    with pytest.raises(CommandError, match="EBBTIDE_CLUSTER"):
        choose("lab")
    with pytest.raises(CommandError, match="kind and lab"):
        choose("minikube")
