"""Publishing: there whole or not at all, told honestly, cleaned up."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from ebbtide import EbbtideError, ErrorCode, Progress, Stage, weights
from ebbtide.crc32c import crc32c
from ebbtide.weights import Published, publish, publish_path, read_manifest
from ebbtide_api.manifest import Manifest
from safetensors.torch import load_file

STATE = {
    "model.embed_tokens.weight": torch.arange(12, dtype=torch.float32).reshape(4, 3),
    "model.norm.weight": torch.ones(3, dtype=torch.bfloat16),
    "model.layers.0.bias": torch.arange(5, dtype=torch.uint8),
}


def loaded(published: Published) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in published.path.glob("*.safetensors"):
        found |= load_file(file)
    return found


def test_a_version_is_what_was_given(tmp_path: Path) -> None:
    published = publish(STATE, tmp_path, 7)
    assert published.path == tmp_path / "v7"
    assert (published.version, published.tensors, published.bytes) == (7, 3, 48 + 6 + 5)
    assert published.seconds > 0
    found = loaded(published)
    assert found.keys() == STATE.keys()
    assert all(torch.equal(found[name], STATE[name]) for name in STATE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v7"]


def test_the_manifest_vouches_for_every_byte(tmp_path: Path) -> None:
    folder = publish(STATE, tmp_path, 7).path
    manifest = read_manifest(folder)
    assert isinstance(manifest, Manifest)
    assert manifest.version == 7
    for file in manifest.files:
        data = (folder / file.name).read_bytes()
        assert len(data) == file.length
        assert crc32c(data[: file.header_length]) == file.header_crc32c
        end = file.header_length
        for tensor in (tensor for tensor in manifest.tensors if tensor.file == file.name):
            assert tensor.offset == end
            end += tensor.length
            assert crc32c(data[tensor.offset : end]) == tensor.crc32c
        assert end == file.length
    shapes = {tensor.name: (tuple(tensor.shape), tensor.dtype) for tensor in manifest.tensors}
    assert shapes["model.embed_tokens.weight"] == ((4, 3), "F32")
    assert shapes["model.norm.weight"] == ((3,), "BF16")


def test_large_state_is_cut_into_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "SHARD", 50)
    published = publish(STATE, tmp_path, 1)
    names = sorted(path.name for path in published.path.glob("*.safetensors"))
    assert names == ["model-00001.safetensors", "model-00002.safetensors"]
    assert loaded(published).keys() == STATE.keys()


def test_a_cast_and_a_map_of_names(tmp_path: Path) -> None:
    published = publish(STATE, tmp_path, 1, dtype=torch.bfloat16, names={"model.norm.weight": "norm"})
    found = loaded(published)
    assert found["model.embed_tokens.weight"].dtype is torch.bfloat16
    assert found["model.layers.0.bias"].dtype is torch.uint8
    assert "norm" in found


def test_progress_is_in_bytes_and_ends_at_the_total(tmp_path: Path) -> None:
    reports: list[Progress] = []
    publish(STATE, tmp_path, 1, on_progress=reports.append)
    assert [report.done for report in reports] == sorted(report.done for report in reports)
    assert {report.total for report in reports} == {reports[-1].done} == {59}
    assert all(report.stage is Stage.PUBLISH for report in reports)


# Again


def test_the_same_version_with_the_same_content_is_there_already(tmp_path: Path) -> None:
    first = publish(STATE, tmp_path, 7)
    inode = first.path.stat().st_ino
    second = publish(STATE, tmp_path, 7)
    assert second.seconds == 0
    assert second.path.stat().st_ino == inode
    assert [path.name for path in tmp_path.iterdir()] == ["v7"]


def test_the_same_version_with_other_content_is_refused(tmp_path: Path) -> None:
    publish(STATE, tmp_path, 7)
    before = (tmp_path / "v7/manifest.json").read_text()
    with pytest.raises(EbbtideError) as caught:
        publish({"w": torch.ones(1)}, tmp_path, 7)
    assert caught.value.code is ErrorCode.VERSION_REGRESSION
    assert (tmp_path / "v7/manifest.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["v7"]


@pytest.mark.parametrize("damage", ["manifest.json", "*"])
def test_a_damaged_version_is_not_taken_for_ours(tmp_path: Path, damage: str) -> None:
    folder = publish(STATE, tmp_path, 7).path
    for path in folder.glob(damage):
        path.write_bytes(b"torn")
    with pytest.raises(EbbtideError, match="with other content"):
        publish(STATE, tmp_path, 7)


# Clean-up


def test_the_last_two_versions_stay(tmp_path: Path) -> None:
    for version in (1, 2, 3, 10):
        publish(STATE, tmp_path, version)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v10", "v3"]


def test_newer_versions_and_strangers_stay(tmp_path: Path) -> None:
    for name in ("v99", "values", "v1x"):
        (tmp_path / name).mkdir()
    publish(STATE, tmp_path, 7)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v1x", "v7", "v99", "values"]


def test_what_a_dead_publisher_left_is_swept_and_a_living_one_is_not(tmp_path: Path) -> None:
    for name in (f".tmp-{2**22 + 1}-aa", f".tmp-{os.getppid()}-bb"):
        (tmp_path / name).mkdir()
    publish(STATE, tmp_path, 7)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".tmp-{os.getppid()}-bb", "v7"]


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_publication_leaves_nothing(tmp_path: Path, problem: BaseException) -> None:
    def interrupt(report: Progress) -> None:
        raise problem

    with pytest.raises(type(problem)):
        publish(STATE, tmp_path, 7, on_progress=interrupt)
    assert list(tmp_path.iterdir()) == []


# Refused before a byte is written


@pytest.mark.parametrize("version", [0, -1])
def test_versions_start_at_one(tmp_path: Path, version: int) -> None:
    with pytest.raises(EbbtideError, match="no whole number from 1"):
        publish(STATE, tmp_path, version)


def test_nothing_cannot_be_published(tmp_path: Path) -> None:
    with pytest.raises(EbbtideError, match="no tensor"):
        publish({}, tmp_path, 1)


def test_a_full_folder_is_told_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(EbbtideError) as caught:
        publish({"w": torch.zeros(3 << 18)}, tmp_path, 1)
    assert caught.value.code is ErrorCode.HOST_MEMORY_INSUFFICIENT
    assert caught.value.details == {"needMiB": 3, "availMiB": 0}
    assert list(tmp_path.iterdir()) == []


def test_slow_checksums_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "backend", lambda: "python")
    monkeypatch.setattr(weights, "SLOW", 10)
    with pytest.warns(RuntimeWarning, match="plain Python"):
        publish(STATE, tmp_path, 1)


# Paths


def test_a_checkpoint_is_published_by_copy(tmp_path: Path) -> None:
    checkpoint = publish(STATE, tmp_path / "elsewhere", 1).path
    (checkpoint / "manifest.json").unlink()
    published = publish_path(checkpoint, tmp_path / "handoff", 5)
    assert published.path == tmp_path / "handoff/v5"
    found = loaded(published)
    assert all(torch.equal(found[name], STATE[name]) for name in STATE)


def test_a_folder_that_is_vouched_for_stays_where_it_is(tmp_path: Path) -> None:
    checkpoint = publish(STATE, tmp_path / "shared", 5)
    published = publish_path(checkpoint.path, tmp_path / "handoff", 5)
    assert (published.path, published.tensors, published.bytes) == (checkpoint.path, 3, 59)
    assert not (tmp_path / "handoff").exists()
    assert publish_path(checkpoint.path, tmp_path / "handoff", 6).path == tmp_path / "handoff/v6"


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(STATE, tmp_path / "shared", 5)
    monkeypatch.chdir(tmp_path / "shared")
    assert publish_path("v5", tmp_path / "handoff", 5).path == tmp_path / "shared/v5"


def test_both_ways_to_publish_agree(tmp_path: Path) -> None:
    direct = publish(STATE, tmp_path / "a", 5)
    copied = publish_path(direct.path, tmp_path / "b", 5, names=lambda name: name)
    left, right = (json.loads((each.path / "manifest.json").read_text()) for each in (direct, copied))
    assert left == right


def test_a_torn_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(b"torn")
    with pytest.raises(EbbtideError, match="torn"):
        publish_path(torn, tmp_path / "handoff", 1)
    assert not (tmp_path / "handoff").exists()
