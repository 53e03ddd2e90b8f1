"""How an engine ends: last in its folder, for nothing runs afterwards."""

import shutil
from pathlib import Path

import pytest
from ebbtide_api.state import Weights
from ebbtide_runtime.native import Field

from tests.support.engines import RealEngine
from tests.support.models import medium

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def test_a_load_without_all_tensors_poisons_the_engine_by_name(engine: RealEngine, tmp_path: Path) -> None:
    """The agent checks the manifest first; this is what would happen if it did not."""
    torn = tmp_path / "torn"
    torn.mkdir()
    whole = medium() / "model.safetensors"
    shutil.copy(medium() / "config.json", torn)
    drop_last_tensor(whole, torn / "model.safetensors")
    answer = engine.post("reload", path=str(torn), version=500)
    assert (answer.status_code, answer.json()["code"]) == (500, "ENGINE_FAULTED")
    assert "not loaded" in answer.json()["message"]
    (rank,) = engine.state().ranks
    assert (rank.weights, rank.pending_version) == (Weights.PARTIAL, None)
    assert engine.post("resume").json()["code"] == "WEIGHTS_NOT_COMMITTED"
    assert "must restart" in engine.post("reload", path=str(medium()), version=501).json()["message"]


def drop_last_tensor(source: Path, target: Path) -> None:
    import json
    import struct

    raw = source.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    last = max((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"][0])
    end = header.pop(last)["data_offsets"][0]
    text = json.dumps(header).encode()
    target.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size : 8 + size + end])


def test_the_agents_kill_leaves_nobody(engine: RealEngine) -> None:
    assert engine.launch.family() >= 3
    engine.launch.kill()
    assert engine.launch.wait() == 70
    assert (engine.launch.family(), engine.page.get(Field.ENGINE_PID)) == (0, 0)
    measured = engine.page.measurement()
    assert measured is not None
    assert (measured.used_bytes, measured.processes) == (0, 0)
