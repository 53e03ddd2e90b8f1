"""Sources that are no weights, sources that change under the copy, and what an ingest leaves behind."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from ebbtide_api.errors import ErrorCode
from ebbtide_api.manifest import MANIFEST
from ebbtide_runtime.agent import ingest as module
from ebbtide_runtime.agent.checkpoint import Expected, TensorShape, read_header
from ebbtide_runtime.agent.ingest import Ingest, Ingested, discard, run
from ebbtide_runtime.agent.lifecycle import MIB, Refusal
from ebbtide_runtime.agent.manifest_check import Bad, Reason
from ebbtide_runtime.native import NativeError, Range, Status

from tests.support.checkpoints import SHAPES, publish

FILE = "model-00001.safetensors"
EXPECTED = Expected({name: TensorShape(tuple(shape), dtype) for name, (shape, dtype) in SHAPES.items()})


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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", Reason.TORN),
        (b'{"format": ', Reason.TORN),
        (b"\xff\xfe", Reason.TORN),
        (b"[" * 100_000, Reason.TORN),
        (b"[]", Reason.UNREADABLE),
        (b"{}", Reason.UNREADABLE),
        (b'{"format": "ebbtide.dev/weights.v1", "version": 0, "files": [], "tensors": []}', Reason.UNREADABLE),
    ],
)
def test_a_manifest_that_is_none(tmp_path: Path, text: bytes, reason: Reason) -> None:
    source = publish(tmp_path, 7)
    (source / MANIFEST).write_bytes(text)
    outcome = run(job(tmp_path, source))
    assert isinstance(outcome, Bad)
    assert outcome.reason is reason


def test_a_manifest_that_is_too_large_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MANIFEST", 100)
    outcome = run(job(tmp_path, publish(tmp_path, 7)))
    assert isinstance(outcome, Bad)
    assert "larger than 100 bytes" in outcome.message


@pytest.mark.parametrize("kind", ["missing", "link", "file", "manifest link", "no manifest"])
def test_a_source_that_is_no_folder_of_weights(tmp_path: Path, kind: str) -> None:
    source = publish(tmp_path, 7)
    named = tmp_path / "named"
    if kind == "link":
        named.symlink_to(source)
    if kind == "file":
        named.write_text("x")
    if kind == "manifest link":
        source.rename(named)
        (named / MANIFEST).rename(tmp_path / "m")
        (named / MANIFEST).symlink_to(tmp_path / "m")
    if kind == "no manifest":
        named.mkdir()
    outcome = run(job(tmp_path, named))
    assert isinstance(outcome, Bad)
    assert outcome.reason is Reason.UNREADABLE


def test_without_room_nothing_is_written(tmp_path: Path) -> None:
    outcome = run(job(tmp_path, publish(tmp_path, 7), room=10))
    assert isinstance(outcome, Refusal)
    assert outcome.code is ErrorCode.HOST_MEMORY_INSUFFICIENT
    assert outcome.details["needMiB"] >= 0
    assert left(tmp_path) == []


def test_a_source_that_shrinks_while_it_is_copied_is_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy never touches a mapping of the publisher's file, so this is no SIGBUS."""
    source, real = publish(tmp_path, 7), module.ingest

    def shrink(src: int, dst: int, ranges: list[Range], threads: int = 2) -> list[int]:
        os.truncate(source / FILE, 100)
        return real(src, dst, ranges, threads=threads)

    monkeypatch.setattr(module, "ingest", shrink)
    outcome = run(job(tmp_path, source))
    assert isinstance(outcome, Bad)
    assert outcome.reason is Reason.TORN
    assert left(tmp_path) == []


def test_bytes_that_change_after_they_were_copied_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, real = publish(tmp_path, 7), module.ingest
    before = (source / FILE).read_bytes()

    def scribble(src: int, dst: int, ranges: list[Range], threads: int = 2) -> list[int]:
        crcs = real(src, dst, ranges, threads=threads)
        (source / FILE).write_bytes(b"\0" * len(before))
        return crcs

    monkeypatch.setattr(module, "ingest", scribble)
    outcome = run(job(tmp_path, source))
    assert isinstance(outcome, Ingested)
    assert (outcome.path / FILE).read_bytes() == before


def test_a_cancelled_ingest_leaves_nothing(tmp_path: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    outcome = run(job(tmp_path, publish(tmp_path, 7), cancel=cancel))
    assert isinstance(outcome, Bad)
    assert "cancelled" in outcome.message
    assert left(tmp_path) == []


def test_batches_are_bounded_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH", 10)
    parts = [(str(size), Range(0, size), 0) for size in (4, 4, 4, 30, 1)]
    assert [[part[1].length for part in batch] for batch in module._batches(parts)] == [[4, 4, 4], [30], [1]]


def test_old_copies_and_leftovers_are_discarded(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    for name in ("v5", "v6", "v7", ".v8.1a2b"):
        (weights / name).mkdir(parents=True)
        (weights / name / FILE).write_text("x")
    discard(weights, frozenset({6, 7}))
    assert left(tmp_path) == ["v6", "v7"]
    discard(tmp_path / "nowhere", frozenset())


def test_the_copied_file_has_the_header_that_was_checked(tmp_path: Path) -> None:
    outcome = run(job(tmp_path, publish(tmp_path, 7)))
    assert isinstance(outcome, Ingested)
    assert {name: placed.kind for name, placed in read_header(outcome.path / FILE).items()} == dict(EXPECTED.tensors)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.TRUNCATED, Reason.TORN),
        (Status.IO, Reason.UNREADABLE),
        (Status.NO_MEMORY, ErrorCode.HOST_MEMORY_INSUFFICIENT),
    ],
)
def test_a_copy_that_fails_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Status, kind: Reason | ErrorCode
) -> None:
    def fail(src: int, dst: int, ranges: list[Range], threads: int = 2) -> list[int]:
        raise NativeError(status, "scripted")

    monkeypatch.setattr(module, "ingest", fail)
    outcome = run(job(tmp_path, publish(tmp_path, 7)))
    assert not isinstance(outcome, Ingested)
    assert kind in (outcome.code if isinstance(outcome, Refusal) else outcome.reason,)
    assert left(tmp_path) == []
