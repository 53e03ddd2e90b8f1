"""Measuring from outside: real processes on the CPU, a fake driver for CUDA."""

# ruff: noqa: N802 - NVML names its calls so

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ebbtide_runtime.measure import AnonymousMemory, CudaMemory, folder, pss_anon

MIB = 1 << 20


def holder(mib: int) -> subprocess.Popen[bytes]:
    """Start a process that holds `mib` MiB of anonymous memory and says when it does."""
    code = f"import sys; held = bytearray(b'x') * ({mib} << 20); print('here', flush=True); sys.stdin.read()"
    made = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert made.stdout is not None
    assert made.stdout.readline() == b"here\n"
    return made


def end(process: subprocess.Popen[bytes]) -> None:
    process.communicate()
    process.wait()


class TestCpu:
    def test_it_sees_what_a_process_holds(self) -> None:
        small, large = holder(1), holder(65)
        try:
            held = [AnonymousMemory().used([each.pid]) for each in (small, large)]
            both = AnonymousMemory().used([small.pid, large.pid])
        finally:
            end(small)
            end(large)
        assert held[1] - held[0] == pytest.approx(64 * MIB, abs=MIB)
        assert both == pytest.approx(sum(held), abs=MIB)

    def test_who_ended_holds_nothing(self) -> None:
        gone = holder(1)
        end(gone)
        assert AnonymousMemory().used([gone.pid]) == 0
        assert AnonymousMemory().used([]) == 0

    def test_a_zombie_holds_nothing(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", ""])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert AnonymousMemory().used([child.pid]) == 0
        child.wait()

    def test_shared_pages_are_counted_once(self) -> None:
        """A forked child shares its parent's memory: by their shares, both together hold it once."""
        code = (
            "import os, sys; held = bytearray(b'x') * (64 << 20)\n"
            "child = os.fork()\n"
            "if child: print(child, flush=True); sys.stdin.read(); os.kill(child, 9)\n"
            "else: import time; time.sleep(60)"
        )
        parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert AnonymousMemory().used([parent.pid, child]) < 100 * MIB
            assert AnonymousMemory().used([child]) < 50 * MIB
        finally:
            end(parent)

    def test_the_figure_is_pss_anon(self) -> None:
        text = "00400000-7fff [rollup]\nRss:  900 kB\nPss:  500 kB\nPss_Anon:  123 kB\nPss_File:  7 kB\n"
        assert pss_anon(text) == 123 * 1024

    def test_a_kernel_without_it_is_named(self) -> None:
        with pytest.raises(ValueError, match=r"Linux 5\.9"):
            pss_anon("x [rollup]\nRss: 1 kB\n")


@dataclass
class Holder:
    pid: int
    usedGpuMemory: int | None  # noqa: N815 - NVML's name


@dataclass
class Info:
    used: int


class FakeNvml:
    """A driver with devices `GPU-0`, `GPU-1`, ..., each with its holders."""

    def __init__(self, *devices: list[Holder], used: int = 0) -> None:
        self.devices = devices
        self.used = used
        self.initialised = False

    def nvmlInit(self) -> None:
        self.initialised = True

    def nvmlDeviceGetCount(self) -> int:
        assert self.initialised
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[Holder]:
        return self.devices[device]

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Info:
        return Info(self.used)


class TestCuda:
    def test_the_members_processes_are_summed_over_devices(self) -> None:
        nvml = FakeNvml([Holder(1, 10), Holder(2, 20)], [Holder(2, 5), Holder(9, 100)])
        assert CudaMemory(nvml).used([1, 2]) == 35

    @pytest.mark.parametrize(("visible", "used"), [("0", 10), ("1", 5), ("GPU-1", 5), ("0, GPU-1", 15), ("", 0)])
    def test_only_visible_devices_count(self, visible: str, used: int) -> None:
        nvml = FakeNvml([Holder(1, 10)], [Holder(1, 5)])
        assert CudaMemory(nvml, visible).used([1]) == used

    def test_a_device_without_holders_holds_nothing(self) -> None:
        assert CudaMemory(FakeNvml([], used=300)).used([1]) == 0

    def test_where_the_driver_names_others_all_that_is_used_counts(self) -> None:
        """In a container NVML knows processes by the host's ids: too much is a refusal, too little would be a lie."""
        assert CudaMemory(FakeNvml([Holder(4711, 10)], used=300)).used([1]) == 300

    def test_where_the_driver_does_not_say_all_that_is_used_counts(self) -> None:
        assert CudaMemory(FakeNvml([Holder(1, None)], used=300)).used([1]) == 300

    def test_without_an_engine_nothing_is_used(self) -> None:
        assert CudaMemory(FakeNvml([Holder(4711, 10)], used=300)).used([]) == 0


class TestFolder:
    def test_it_sums_files_below(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "a/one").write_bytes(b"x" * 8192)
        (tmp_path / "two").write_bytes(b"x" * 4096)
        assert folder(tmp_path) == pytest.approx(12288, abs=8192)

    def test_holes_take_nothing(self, tmp_path: Path) -> None:
        with (tmp_path / "sparse").open("wb") as file:
            file.truncate(1 << 30)
        assert folder(tmp_path) < MIB

    def test_what_is_not_there_takes_nothing(self, tmp_path: Path) -> None:
        assert folder(tmp_path / "nothing") == 0
        (tmp_path / "file").touch()
        assert folder(tmp_path / "file") == 0

    def test_a_file_with_two_names_is_counted_once(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        (tmp_path / "a/one").write_bytes(b"x" * MIB)
        alone = folder(tmp_path / "a")
        (tmp_path / "b/two").hardlink_to(tmp_path / "a/one")
        assert folder(tmp_path / "a", tmp_path / "b") == folder(tmp_path) == alone
        (tmp_path / "b/three").write_bytes(b"x" * MIB)
        assert folder(tmp_path / "a", tmp_path / "b", tmp_path / "c") > 1.5 * alone

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "inside").mkdir()
        (tmp_path / "inside/loop").symlink_to("..")  # short: a long one takes a block of its own
        assert folder(tmp_path) == 0


def test_it_needs_neither_vllm_nor_torch() -> None:
    code = "import sys, ebbtide_runtime.launch; assert not {'vllm', 'torch', 'numpy', 'fastapi'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_bindings_that_vllm_brings_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without importing vLLM: the launcher stays small."""
    folder = tmp_path / "vllm/third_party"
    folder.mkdir(parents=True)
    (tmp_path / "vllm/__init__.py").write_text("raise AssertionError('vLLM was imported')")
    (folder / "pynvml.py").write_text("import sys\nme = sys.modules[__name__]\ndef nvmlInit(): return 'loaded'\n")
    code = "from ebbtide_runtime.measure import nvml; print(nvml().nvmlInit())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout == "loaded\n"


def test_vllms_real_bindings_have_every_call_we_make() -> None:
    from ebbtide_runtime.measure import Nvml, nvml

    if importlib.util.find_spec("vllm") is None and importlib.util.find_spec("pynvml") is None:
        pytest.skip("neither vLLM nor NVML's bindings are installed")
    found = nvml()
    assert all(callable(getattr(found, name)) for name in vars(Nvml) if name.startswith("nvml"))


def test_missing_bindings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from ebbtide_runtime import measure

    monkeypatch.setattr(measure.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="install nvidia-ml-py"):
        measure.nvml()


def test_the_fake_driver_is_the_real_ones_shape() -> None:
    from ebbtide_runtime.measure import Nvml

    def names(of: Any) -> set[str]:
        return {name for name in vars(of) if name.startswith("nvml")}

    assert names(FakeNvml) == names(Nvml)
