"""Published weights that are not what they should be: refused by name, and the old weights serve on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ebbtide import EbbtideError, ErrorCode, Loan
from ebbtide_api.manifest import MANIFEST

from tests.support.models import medium
from tests.support.stack import Stack

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
Spoil = Callable[[Path], None]
FILE = "model-00001.safetensors"
TENSOR = "model.layers.0.mlp.down_proj.weight"


def edited(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Spoil:
    """Return what rewrites the manifest; `change` gets all of it and the entry of one tensor."""

    def spoil(folder: Path) -> None:
        path = folder / MANIFEST
        manifest = json.loads(path.read_text())
        change(manifest, next(entry for entry in manifest["tensors"] if entry["name"] == TENSOR))
        path.write_text(json.dumps(manifest))

    return spoil


def torn_weights(folder: Path) -> None:
    with (folder / FILE).open("r+b") as file:
        file.truncate((folder / FILE).stat().st_size // 2)


def torn_manifest(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text[: len(text) // 2])


def flipped_bit(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    entry = next(entry for entry in manifest["tensors"] if entry["name"] == TENSOR)
    with (folder / entry["file"]).open("r+b") as file:
        file.seek(entry["offset"] + entry["length"] // 2)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0x10]))


def no_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


CASES: dict[str, tuple[Spoil, str, bool]] = {
    "torn weights": (torn_weights, "TORN", False),
    "torn manifest": (torn_manifest, "TORN", False),
    "no manifest": (no_manifest, "UNREADABLE", False),
    "tensor missing": (edited(lambda whole, entry: whole["tensors"].remove(entry)), "TENSOR_MISSING", True),
    "wrong shape": (edited(lambda _, entry: entry["shape"].reverse()), "SHAPE_MISMATCH", True),
    "wrong dtype": (edited(lambda _, entry: entry.update(dtype="F16")), "DTYPE_MISMATCH", True),
    "bit flipped": (flipped_bit, "CHECKSUM_MISMATCH", True),
    "another version": (edited(lambda whole, _: whole.update(version=9999)), "VERSION_MISMATCH", False),
}


def publish_spoiled(stack: Stack, loan: Loan, spoil: Spoil) -> None:
    stack.publish(loan, 1 - stack.seed)
    assert loan.published is not None
    spoil(loan.published.path)


@pytest.mark.parametrize("case", CASES)
def test_a_bad_version_is_refused_by_name_and_the_old_weights_serve_on(stack: Stack, case: str) -> None:
    spoil, reason, names_tensor = CASES[case]
    before = stack.state()
    with pytest.raises(EbbtideError) as caught, stack.trainer.borrow() as loan:
        publish_spoiled(stack, loan, spoil)
    refusal = caught.value
    assert (refusal.code, refusal.status, refusal.details["reason"]) == (ErrorCode.MANIFEST_INVALID, 422, reason)
    assert refusal.details["member"] == before.name
    if names_tensor:
        assert refusal.details["tensor"] == TENSOR
    assert stack.right()
    after = stack.state()
    assert (after.committed_version, after.instance) == (before.committed_version, before.instance)


def test_a_version_that_is_not_newer_is_refused_by_name_and_the_old_weights_serve_on(stack: Stack) -> None:
    before = stack.teach(1 - stack.seed)
    with pytest.raises(EbbtideError) as caught, stack.trainer.borrow() as loan:
        loan.publish_path(medium(1 - stack.seed), version=before)
    assert (caught.value.code, caught.value.status) == (ErrorCode.VERSION_REGRESSION, 409)
    assert (caught.value.details["version"], caught.value.details["committed"]) == (before, before)
    # The lease went with the loan: nobody has to end it.
    stack.wait_until_serving()
    assert stack.right()
    assert stack.state().committed_version == before
