"""The small parts: the member in the environment, the plugin, versions, the baseline, and cumem's words."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ebbtide_runtime.engine import baseline, compat, member, plugin
from ebbtide_runtime.engine.cumem_memory import CumemMemory
from ebbtide_runtime.native import Field, Measurement, Page

from tests.support.members import SECRET, write_member

MIB = 1 << 20


class TestMember:
    def test_only_our_launcher_makes_us_active(self) -> None:
        assert member.active({"EBBTIDE_MEMBER": "/x/member.json"})
        assert not member.active({})
        assert not member.active({"EBBTIDE_MEMBER": ""})

    def test_the_member_and_its_secret(self, tmp_path: Path) -> None:
        path = write_member(tmp_path)
        found = member.current({"EBBTIDE_MEMBER": str(path)})
        assert found.name == "chat-0"
        assert member.secret(found) == SECRET.encode()

    def test_a_newline_is_no_part_of_the_secret(self, tmp_path: Path) -> None:
        assert member.secret(member.read(write_member(tmp_path, secret=SECRET + "\n"))) == SECRET.encode()

    @pytest.mark.parametrize("secret", ["", "\n", "short"])
    def test_a_secret_that_is_none_is_refused(self, tmp_path: Path, secret: str) -> None:
        with pytest.raises(ValueError, match="holds no secret"):
            member.secret(member.read(write_member(tmp_path, secret=secret)))


class TestPlugin:
    def test_in_anybody_elses_vllm_it_does_not_even_import_vllm(self) -> None:
        code = (
            "import sys, os; os.environ.pop('EBBTIDE_MEMBER', None)\n"
            "from ebbtide_runtime.engine.plugin import register; register()\n"
            "assert not {'vllm', 'torch', 'pydantic_core._never'} & set(sys.modules), 'imported'"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_under_our_launcher_it_adapts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        called: list[bool] = []
        monkeypatch.setattr(compat, "adapt", lambda: called.append(True))
        monkeypatch.setenv("EBBTIDE_MEMBER", "/x")
        plugin.register()
        assert called == [True]


class TestVersion:
    @pytest.mark.parametrize("version", ["0.32.0", "0.32.7", "0.32.1rc1", "0.32.0+cpu", "0.32.dev1"])
    def test_the_supported_minor_version_passes(self, version: str) -> None:
        compat.check_version(version)

    @pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.32.0", "0.3", "0", "", "dev", "0.320.0", "x.32.0"])
    def test_every_other_is_refused_by_name(self, version: str) -> None:
        with pytest.raises(compat.UnsupportedEngineError, match=r"needs vLLM 0\.32\.x"):
            compat.check_version(version)


def config(folder: Path, kv: int | None, override: int | None = None) -> Any:
    cache = SimpleNamespace(kv_cache_memory_bytes=kv, num_gpu_blocks_override=override)
    return SimpleNamespace(model_config=SimpleNamespace(model=str(folder)), cache_config=cache)


class TestAddressSpace:
    GIB = 1 << 30

    def test_it_is_tight_where_sizes_are_known(self, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
        assert compat.arena_bytes(config(tmp_path, self.GIB)) == 2 * self.GIB
        assert compat.arena_bytes(config(tmp_path, 1)) == self.GIB + 4000

    @pytest.mark.parametrize(("kv", "override"), [(None, None), (0, None), (1 << 30, 40)])
    def test_it_is_the_machine_where_kv_is_not(self, tmp_path: Path, kv: int | None, override: int | None) -> None:
        (tmp_path / "model.safetensors").write_bytes(b"x")
        assert compat.arena_bytes(config(tmp_path, kv, override)) >= self.GIB

    def test_it_is_the_machine_where_the_model_is_no_folder(self, tmp_path: Path) -> None:
        assert compat.arena_bytes(config(tmp_path / "org/model", 1)) > self.GIB


@pytest.fixture
def page(tmp_path: Path) -> Any:
    made = Page.create(tmp_path / "page")
    yield made
    made.close()


class TestBaseline:
    def test_it_waits_for_a_measurement_made_after_it_asked(self, page: Page) -> None:
        page.publish(Measurement(0, 1, 111, 0, 1))
        stop = threading.Event()

        def answer() -> None:
            while not stop.wait(0.001):
                if (request := page.get(Field.MEASURE_REQUEST)) > 0:
                    page.publish(Measurement(request, 2, 222, 0, 1))
                    return

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            assert baseline.record(page) == 222
        finally:
            stop.set()
            thread.join()
        assert page.get(Field.BASELINE) == 222

    def test_an_old_measurement_is_no_answer(self, page: Page) -> None:
        page.publish(Measurement(0, 1, 111, 0, 1))
        page.set(Field.BASELINE, 5)
        assert baseline.record(page, answer_s=0.02) == 0
        assert page.get(Field.BASELINE) == 0


class FakeCumem:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def sleep(self, level: int) -> None:
        self.calls.append(("sleep", level))

    def wake_up(self, tags: Any) -> None:
        self.calls.append(("wake", list(tags)))

    def discard(self, tags: tuple[str, ...]) -> None:
        self.calls.append(("discard", tags))


@dataclass
class Allocation:
    tag: str
    handle: tuple[int, int]
    is_asleep: bool = False


class TestCumem:
    def make(self) -> tuple[CumemMemory, FakeCumem, list[Allocation]]:
        backend = FakeCumem()
        allocations = [
            Allocation("weights", (0, 6 * MIB)),
            Allocation("weights", (0, 2 * MIB)),
            Allocation("kv_cache", (0, 4 * MIB)),
            Allocation("runtime", (0, MIB)),
        ]
        return CumemMemory(backend, lambda: allocations), backend, allocations

    def test_level_1_keeps_vllms_copy(self) -> None:
        memory, backend, _ = self.make()
        assert memory.prepare(3) == 8 * MIB
        memory.release_kv()
        memory.release_weights(keep_copy=True)
        assert backend.calls == [("discard", ("kv_cache",)), ("sleep", 1)]
        copy, making, failure = memory.parked()
        assert copy is not None
        assert (copy.version, copy.mib, copy.valid, making, failure) == (3, 8, True, False, "")
        memory.restore_weights(from_copy=True)
        memory.restore_kv()
        assert backend.calls[2:] == [("wake", ["weights"]), ("wake", ["kv_cache"])]
        assert memory.parked() == (None, False, "")

    def test_level_2_keeps_none(self) -> None:
        memory, backend, _ = self.make()
        memory.release_weights(keep_copy=False)
        assert (backend.calls, memory.parked()) == ([("sleep", 2)], (None, False, ""))

    def test_sizes_are_cumems(self) -> None:
        memory, _, allocations = self.make()
        assert memory.sizes() == (8 * MIB, 4 * MIB, 13 * MIB)
        allocations[2].is_asleep = True
        assert memory.sizes() == (8 * MIB, 4 * MIB, 9 * MIB)

    def test_nothing_is_parked_ahead(self) -> None:
        memory, backend, _ = self.make()
        memory.start_parking(1)
        memory.forget_copy()
        assert (backend.calls, memory.parked()) == ([], (None, False, ""))


class FakeModel:
    def __init__(self, names: list[str], loads: set[str] | None) -> None:
        self.names = names
        self.loads = loads
        self.load_weights = self._load

    def named_parameters(self) -> list[tuple[str, None]]:
        return [(name, None) for name in self.names]

    def _load(self, weights: Any) -> set[str] | None:
        return self.loads


class TestCompleteLoads:
    def load(self, names: list[str], loads: set[str] | None) -> None:
        model = FakeModel(names, loads)
        with compat.loads_completely(model):
            model.load_weights([])

    def test_all_of_it_passes(self) -> None:
        self.load(["a", "b"], {"a", "b", "extra"})

    def test_what_is_missing_is_named(self) -> None:
        with pytest.raises(compat.IncompleteLoadError, match="not loaded: b, c"):
            self.load(["a", "b", "c"], {"a"})

    def test_a_model_that_does_not_say_is_believed(self) -> None:
        self.load(["a"], None)

    def test_lora_wrappers_are_seen_through(self) -> None:
        self.load(["q.base_layer.weight"], {"q.weight"})

    def test_the_models_own_loader_is_back_after_a_failure(self) -> None:
        model = FakeModel(["a"], {"a"})
        with pytest.raises(RuntimeError, match="torn"), compat.loads_completely(model):
            raise RuntimeError("torn")
        assert "load_weights" not in vars(model) or model.load_weights == model._load


class TestHeap:
    CODE = """
import pathlib
from ebbtide_runtime.measure import pss_anon
from ebbtide_runtime.native.heap import trim

def used():
    return pss_anon(pathlib.Path("/proc/self/smaps_rollup").read_text())

held = [bytearray(b"x") * 60_000 for _ in range(1000)]
top = bytearray(b"x") * 60_000  # what lies above keeps malloc from shrinking its heap
del held
kept = used()
trim()
print(kept - used())
"""

    def test_what_malloc_keeps_goes_back_to_the_kernel(self) -> None:
        done = subprocess.run([sys.executable, "-c", self.CODE], check=True, capture_output=True, text=True)
        assert int(done.stdout) > 40 * MIB
