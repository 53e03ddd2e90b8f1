"""Weights from a folder, before a fake gateway: what is the same version, and which number a version gets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ebbtide.client.borrowing import Terms
from ebbtide.client.connection import Connection
from ebbtide.proxy.holder import Holder
from ebbtide.proxy.mover import Mover
from ebbtide.proxy.updates import Folder, Updates, _number
from ebbtide.weights import publish
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import Phase
from ebbtide_api.verbs import Lease, LeaseStage

from tests.support.fake_gateway import TOKEN
from tests.unit.proxy.test_sight import member, sight


def weights(folder: Path, value: float = 1.0) -> Path:
    """Write a checkpoint; the publisher's own folder is one too."""
    return publish({"w": np.full(8, value, dtype=np.float32)}, folder, 1).path


def error(path: str) -> EbbtideError:
    with pytest.raises(EbbtideError) as caught:
        Folder.at(path, "model_path")
    return caught.value


def test_a_folder_is_named_by_where_the_proxy_finds_it(tmp_path: Path) -> None:
    for wrong in ("", "relative/path", str(tmp_path / "nowhere")):
        refusal = error(wrong)
        assert (refusal.code, refusal.details["field"]) == (ErrorCode.INVALID_REQUEST, "model_path")
        assert "where the proxy runs" in refusal.next_action
    (tmp_path / "empty").mkdir()
    assert error(str(tmp_path / "empty")).code is ErrorCode.INVALID_REQUEST


def test_the_same_files_are_the_same_folder_and_others_are_not(tmp_path: Path) -> None:
    folder = weights(tmp_path)
    first = Folder.at(str(folder), "f")
    assert Folder.at(str(folder), "f") == first
    assert Folder.at(str(folder / "model-00001.safetensors"), "f") != first
    os.utime(folder / "model-00001.safetensors", ns=(1, 1))
    assert Folder.at(str(folder), "f") != first


@pytest.mark.parametrize(
    ("label", "number"), [("", 8), ("9", 9), ("7", 8), ("1", 8), ("step-9", 8), ("-9", 8), ("9" * 30, 8), ("8.5", 8)]
)
def test_a_version_is_above_all_that_members_know(label: str, number: int) -> None:
    seen = sight(member(committed_version=6), member("chat-1", Phase.UPDATING, committed_version=6, pending_version=7))
    assert _number(label, seen) == number


@pytest.fixture
def updates(tmp_path: Path) -> Any:
    holder = Holder(Connection("http://127.0.0.1:9", TOKEN), Terms("actor"))
    yield Updates(Mover(holder))
    holder.close()


def lease(handoff: Path) -> Lease:
    told: dict[str, Any] = {"holder": "h", "epoch": 1, "stage": LeaseStage.LENT, "ttl_seconds": 9}
    return Lease(id="l", group="actor", handoff=str(handoff), **told)


def test_a_number_that_other_files_have_is_not_taken_again(updates: Updates, tmp_path: Path) -> None:
    """A version that was refused, or that a loan left behind, lies in the hand-off folder still."""
    handoff = tmp_path / "handoff"
    for number in (3, 4):
        publish({"w": np.full(8, 50.0 + number, dtype=np.float32)}, handoff, number)
    published = updates._publish_anew(weights(tmp_path / "source"), 3, lease(handoff))
    assert (published.version, published.path) == (5, handoff / "v5")
    again = updates._publish_anew(weights(tmp_path / "source"), 5, lease(handoff))
    assert again.version == 5, "the same content has its name already"


def test_it_gives_up_after_some_numbers(updates: Updates, tmp_path: Path) -> None:
    handoff = tmp_path / "handoff"
    for number in range(3, 8):
        (handoff / f"v{number}").mkdir(parents=True)
        (handoff / f"v{number}" / "something").touch()
    with pytest.raises(EbbtideError) as caught:
        updates._publish_anew(weights(tmp_path / "source"), 3, lease(handoff))
    assert caught.value.code is ErrorCode.VERSION_REGRESSION


def test_a_hand_off_folder_that_is_elsewhere_is_named(updates: Updates, tmp_path: Path) -> None:
    with pytest.raises(EbbtideError) as caught:
        updates._publish_anew(weights(tmp_path / "source"), 3, lease(tmp_path / "nowhere"))
    assert caught.value.code is ErrorCode.TRANSPORT_IMPOSSIBLE


def test_a_version_without_a_name_is_called_by_its_number(updates: Updates) -> None:
    assert updates.label(7) == "7"
