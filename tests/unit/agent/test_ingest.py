"""Published weights are refused by name, whatever their publisher did; what is taken in is bytes of our own."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ebbtide_runtime.agent.checkpoint import Expected, TensorShape
from ebbtide_runtime.agent.ingest import Ingest, Ingested, run
from ebbtide_runtime.agent.lifecycle import MIB
from ebbtide_runtime.agent.manifest_check import Bad, Reason
from ebbtide_runtime.native import crc32c

from tests.support.checkpoints import SHAPES, describe, publish, safetensors

FILE = "model-00001.safetensors"
EXPECTED = Expected({name: TensorShape(tuple(shape), dtype) for name, (shape, dtype) in SHAPES.items()})
TIED = Expected(EXPECTED.tensors, frozenset({"lm_head.weight"}))


def job(tmp_path: Path, source: Path, version: int = 7, **changes: Any) -> Ingest:
    fields: dict[str, Any] = {
        "source": source,
        "weights_dir": tmp_path / "weights",
        "version": version,
        "expected": EXPECTED,
        "room": 64 * MIB,
        "cancel": threading.Event(),
    }
    return Ingest(**{**fields, **changes})


def left(tmp_path: Path) -> list[str]:
    folder = tmp_path / "weights"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_a_good_version_is_copied_whole(tmp_path: Path) -> None:
    source = publish(tmp_path, 7)
    outcome = run(job(tmp_path, source))
    assert isinstance(outcome, Ingested)
    assert outcome.path == tmp_path / "weights" / "v7"
    assert (outcome.path / FILE).read_bytes() == (source / FILE).read_bytes()
    assert outcome.size == (source / FILE).stat().st_size
    assert left(tmp_path) == ["v7"]


def test_the_copy_is_ours_alone(tmp_path: Path) -> None:
    outcome = run(job(tmp_path, publish(tmp_path, 7)))
    assert isinstance(outcome, Ingested)
    assert outcome.path.stat().st_mode & 0o777 == 0o700
    assert (outcome.path / FILE).stat().st_mode & 0o777 == 0o600


def test_what_only_we_write_gets_another_name_instead_of_a_copy(tmp_path: Path) -> None:
    source = publish(tmp_path / "handoff", 7)
    outcome = run(job(tmp_path, source, received=tmp_path / "handoff", room=0))
    assert isinstance(outcome, Ingested)
    assert (outcome.path / FILE).samefile(source / FILE)
    assert (outcome.path / FILE).stat().st_nlink == 2
    assert outcome.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("place", [0, -1])
def test_what_only_we_write_is_checked_like_a_copy(tmp_path: Path, place: int) -> None:
    source = publish(tmp_path / "handoff", 7)
    data = bytearray((source / FILE).read_bytes())
    data[place] ^= 1
    (source / FILE).write_bytes(data)
    outcome = run(job(tmp_path, source, received=tmp_path / "handoff"))
    assert isinstance(outcome, Bad)
    assert outcome.reason is Reason.CHECKSUM_MISMATCH
    assert left(tmp_path) == []


def test_what_lies_elsewhere_is_copied(tmp_path: Path) -> None:
    source = publish(tmp_path / "published", 7)
    outcome = run(job(tmp_path, source, received=tmp_path / "handoff"))
    assert isinstance(outcome, Ingested)
    assert not (outcome.path / FILE).samefile(source / FILE)


def test_a_copy_that_was_never_committed_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "weights" / "v7").mkdir(parents=True)
    (tmp_path / "weights" / "v7" / "old").write_text("old")
    outcome = run(job(tmp_path, publish(tmp_path, 7)))
    assert isinstance(outcome, Ingested)
    assert [path.name for path in outcome.path.iterdir()] == [FILE]


def test_a_tied_tensor_may_be_absent(tmp_path: Path) -> None:
    tensors = {name: kind for name, kind in SHAPES.items() if name != "lm_head.weight"}
    assert isinstance(run(job(tmp_path, publish(tmp_path, 7, tensors=tensors), expected=TIED)), Ingested)


Spoil = Callable[[Path, dict[str, Any]], None]


def tensor(manifest: dict[str, Any], name: str = "model.norm.weight") -> dict[str, Any]:
    return next(entry for entry in manifest["tensors"] if entry["name"] == name)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def flip_tensor(path: Path, manifest: dict[str, Any]) -> None:
    flip(path / FILE, tensor(manifest)["offset"])


def flip_header(path: Path, _manifest: dict[str, Any]) -> None:
    flip(path / FILE, 20)


def truncate(path: Path, _manifest: dict[str, Any]) -> None:
    os.truncate(path / FILE, (path / FILE).stat().st_size - 1)


def grow(path: Path, _manifest: dict[str, Any]) -> None:
    (path / FILE).write_bytes((path / FILE).read_bytes() + b"\0")


def vouch_for_less(_path: Path, manifest: dict[str, Any]) -> None:
    manifest["files"][0]["length"] += 8


def drop(_path: Path, manifest: dict[str, Any]) -> None:
    manifest["tensors"].remove(tensor(manifest))


def rename(_path: Path, manifest: dict[str, Any]) -> None:
    tensor(manifest)["name"] = "model.extra"


def reshape(_path: Path, manifest: dict[str, Any]) -> None:
    tensor(manifest)["shape"] = [4, 2]


def retype(_path: Path, manifest: dict[str, Any]) -> None:
    tensor(manifest)["dtype"] = "I32"


def twice(_path: Path, manifest: dict[str, Any]) -> None:
    manifest["tensors"].append(tensor(manifest))


def file_twice(_path: Path, manifest: dict[str, Any]) -> None:
    manifest["files"].append(manifest["files"][0])


def overlap(_path: Path, manifest: dict[str, Any]) -> None:
    tensor(manifest)["offset"] -= 8


def hole(_path: Path, manifest: dict[str, Any]) -> None:
    tensor(manifest)["offset"] += 8


def shorter(_path: Path, manifest: dict[str, Any]) -> None:
    tensor(manifest)["length"] -= 4


def older(_path: Path, manifest: dict[str, Any]) -> None:
    manifest["version"] = 6


def foreign(_path: Path, manifest: dict[str, Any]) -> None:
    manifest["format"] = "other"


def unlisted(_path: Path, manifest: dict[str, Any]) -> None:
    tensor(manifest)["file"] = "other.safetensors"


def traverse(_path: Path, manifest: dict[str, Any]) -> None:
    manifest["files"][0]["name"] = "../secret"


def absolute(_path: Path, manifest: dict[str, Any]) -> None:
    manifest["files"][0]["name"] = "/etc/passwd"


def gone(path: Path, _manifest: dict[str, Any]) -> None:
    (path / FILE).unlink()


def link(path: Path, _manifest: dict[str, Any]) -> None:
    (path / FILE).rename(path.parent / "elsewhere")
    (path / FILE).symlink_to(path.parent / "elsewhere")


def pipe(path: Path, _manifest: dict[str, Any]) -> None:
    (path / FILE).unlink()
    os.mkfifo(path / FILE)


def folder(path: Path, _manifest: dict[str, Any]) -> None:
    (path / FILE).unlink()
    (path / FILE).mkdir()


def negative(_path: Path, manifest: dict[str, Any]) -> None:
    tensor(manifest)["offset"] = -8


def empty(_path: Path, manifest: dict[str, Any]) -> None:
    manifest["tensors"] = []


def many_files(_path: Path, manifest: dict[str, Any]) -> None:
    manifest["files"] = [{**manifest["files"][0], "name": f"f{number}"} for number in range(5000)]


def many_dimensions(_path: Path, manifest: dict[str, Any]) -> None:
    tensor(manifest)["shape"] = [1] * 17


def huge_header(_path: Path, manifest: dict[str, Any]) -> None:
    manifest["files"][0]["headerLength"] = 1 << 40


def huge_shape(_path: Path, manifest: dict[str, Any]) -> None:
    tensor(manifest)["shape"] = [1 << 62, 1 << 62]


@pytest.mark.parametrize(
    ("spoil", "reason", "about"),
    [
        (flip_tensor, Reason.CHECKSUM_MISMATCH, "model.norm.weight"),
        (flip_header, Reason.CHECKSUM_MISMATCH, FILE),
        (truncate, Reason.TORN, FILE),
        (grow, Reason.TORN, FILE),
        (vouch_for_less, Reason.TORN, FILE),
        (overlap, Reason.TORN, "model.norm.weight"),
        (hole, Reason.TORN, "model.norm.weight"),
        (shorter, Reason.TORN, "model.norm.weight"),
        (drop, Reason.TENSOR_MISSING, "model.norm.weight"),
        (rename, Reason.TENSOR_UNKNOWN, "model.extra"),
        (reshape, Reason.SHAPE_MISMATCH, "model.norm.weight"),
        (huge_shape, Reason.SHAPE_MISMATCH, "model.norm.weight"),
        (retype, Reason.DTYPE_MISMATCH, "model.norm.weight"),
        (older, Reason.VERSION_MISMATCH, None),
        (twice, Reason.UNREADABLE, "model.norm.weight"),
        (file_twice, Reason.UNREADABLE, FILE),
        (foreign, Reason.UNREADABLE, None),
        (unlisted, Reason.UNREADABLE, "model.norm.weight"),
        (traverse, Reason.UNREADABLE, None),
        (absolute, Reason.UNREADABLE, None),
        (gone, Reason.UNREADABLE, FILE),
        (link, Reason.UNREADABLE, FILE),
        (pipe, Reason.UNREADABLE, FILE),
        (folder, Reason.UNREADABLE, FILE),
        (negative, Reason.UNREADABLE, None),
        (empty, Reason.UNREADABLE, None),
        (many_files, Reason.UNREADABLE, None),
        (many_dimensions, Reason.UNREADABLE, None),
        (huge_header, Reason.UNREADABLE, FILE),
    ],
)
def test_what_is_spoiled_is_refused_by_name(tmp_path: Path, spoil: Spoil, reason: Reason, about: str | None) -> None:
    outcome = run(job(tmp_path, publish(tmp_path, 7, spoil=spoil)))
    assert isinstance(outcome, Bad)
    assert (outcome.reason, outcome.tensor) == (reason, about)
    assert outcome.message
    assert left(tmp_path) == []


def rewrite_header(change: Callable[[dict[str, Any]], None]) -> Spoil:
    """Change a file's own header and vouch for it, while the manifest's tensors still look right."""

    def spoil(path: Path, manifest: dict[str, Any]) -> None:
        data, entries = safetensors(SHAPES, seed=7)
        start = 8 + int.from_bytes(data[:8], "little")
        change(entries)
        text = json.dumps(entries).encode()
        assert len(text) <= start - 8
        text += b" " * (start - 8 - len(text))
        (path / FILE).write_bytes(data[:8] + text + data[start:])
        manifest["files"][0]["headerCrc32c"] = crc32c(data[:8] + text)

    return spoil


def swap_names(entries: dict[str, Any]) -> None:
    a, b = "model.embed_tokens.weight", "lm_head.weight"
    entries[a], entries[b] = entries[b], entries[a]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda entries: entries.pop("model.norm.weight"), Reason.TENSOR_MISSING),
        (lambda entries: entries["model.norm.weight"].update(shape=[2, 4]), Reason.SHAPE_MISMATCH),
        (lambda entries: entries["model.norm.weight"].update(dtype="I32"), Reason.DTYPE_MISMATCH),
        (swap_names, Reason.TORN),
        (lambda entries: entries["model.norm.weight"].update(shape="x"), Reason.UNREADABLE),
    ],
)
def test_a_file_that_says_something_else_than_its_manifest(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], reason: Reason
) -> None:
    """The engine believes the file's header, so that is compared too."""
    outcome = run(job(tmp_path, publish(tmp_path, 7, spoil=rewrite_header(change))))
    assert isinstance(outcome, Bad)
    assert outcome.reason is reason
    assert left(tmp_path) == []


def test_a_file_with_more_than_its_manifest(tmp_path: Path) -> None:
    def more(entries: dict[str, Any]) -> None:
        # The padding and the metadata's room are enough for one short name.
        entries["x"] = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}

    def spoil(path: Path, manifest: dict[str, Any]) -> None:
        data, entries = safetensors(SHAPES, seed=7)
        more(entries)
        text = json.dumps(entries).encode()
        full = len(text).to_bytes(8, "little") + text + data[8 + int.from_bytes(data[:8], "little") :]
        (path / FILE).write_bytes(full)
        del entries["x"]
        manifest.update(describe(full, entries, FILE, 7))

    outcome = run(job(tmp_path, publish(tmp_path, 7, spoil=spoil)))
    assert isinstance(outcome, Bad)
    assert (outcome.reason, outcome.tensor) == (Reason.TENSOR_UNKNOWN, "x")
