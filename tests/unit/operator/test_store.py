"""Lease records on disk: whole or not at all, whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ebbtide_api.errors import EbbtideError
from ebbtide_api.verbs import Canary, LeaseStage
from ebbtide_operator.drive.files import keep_secret, write_atomic
from ebbtide_operator.drive.store import GroupStore, ServerStore, decode, encode, lost_record
from ebbtide_operator.plan import GroupRecord, LeaseRecord, ReturnIntent, Serve
from hypothesis import given
from hypothesis import strategies as st

from .given import server_of

RECORD = GroupRecord(
    group="actor",
    epoch=7,
    owner="trainer",
    serve=Serve(version=3, source="/w/v3", canary=Canary(expect=[1, 2])),
    lease=LeaseRecord(
        id="l1",
        holder="trainer",
        stage=LeaseStage.RETURNING,
        epoch=7,
        ttl_seconds=30,
        pid=5,
        pid_start=99,
        back=ReturnIntent(operation="op", version=4, source="/w/v4", deadline=60),
    ),
    queue=(LeaseRecord(id="l2", holder="b", ttl_seconds=1.5),),
    manual=frozenset({"chat"}),
)


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    store = GroupStore(tmp_path / "groups")
    store.save(RECORD)
    assert store.load("actor") == RECORD
    assert stat.S_IMODE(store.path("actor").stat().st_mode) == 0o600


def test_a_group_without_a_record_is_the_engines(tmp_path: Path) -> None:
    assert GroupStore(tmp_path).load("actor") == GroupRecord(group="actor", epoch=1, owner="engine")


@given(st.data())
def test_every_damaged_byte_is_noticed(data: st.DataObject) -> None:
    good = encode(RECORD)
    place = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ValueError):
        assert decode(bytes(bad)) == RECORD


@pytest.mark.parametrize("keep", [0, 1, 10, -1])
def test_a_torn_record_is_put_aside_and_its_owner_is_lost(tmp_path: Path, keep: int) -> None:
    store = GroupStore(tmp_path)
    store.save(RECORD)
    whole = store.path("actor").read_bytes()
    store.path("actor").write_bytes(whole[:keep])
    record = store.load("actor")
    assert record.lease is not None
    assert (record.owner, record.lease.stage) == ("unknown", LeaseStage.OWNER_LOST)
    aside = [path for path in tmp_path.iterdir() if "corrupt" in path.name]
    assert [path.read_bytes() for path in aside] == [whole[:keep]]
    assert not store.path("actor").exists()


def test_a_lost_record_does_not_lend(tmp_path: Path) -> None:
    record = lost_record("actor")
    assert record.lease is not None
    assert record.lease.ttl_seconds == 60
    assert decode(encode(record)) == record


def test_a_write_that_fails_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = GroupStore(tmp_path)
    store.save(RECORD)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            store.save(RECORD.model_copy(update={"epoch": 8}))
    assert store.load("actor") == RECORD
    assert [path.name for path in tmp_path.iterdir()] == ["actor.json"]


WRITER = """
import sys
from pathlib import Path
from ebbtide_operator.drive.store import GroupStore
from ebbtide_operator.plan import GroupRecord
store, epoch = GroupStore(Path(sys.argv[1])), 1
while True:
    epoch += 1
    store.save(GroupRecord(group="actor", epoch=epoch))
    print(epoch, flush=True)
"""


def test_sigkill_at_any_point_leaves_the_last_record_or_the_next(tmp_path: Path) -> None:
    store = GroupStore(tmp_path)
    for round_ in range(4):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.02 + 0.013 * round_)
        writer.send_signal(signal.SIGKILL)
        told = [int(line) for line in writer.stdout.read().split()]
        writer.wait()
        writer.stdout.close()
        kept = store.load("actor")
        assert kept.lease is None, "the record was damaged"
        assert kept.epoch >= max(told, default=2)
        assert kept.epoch <= max(told, default=2) + 1


def test_a_secret_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made = keep_secret(path)
    assert len(made) >= 32
    path.chmod(0o644)
    assert keep_secret(path) == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_empty_secret_is_made_anew(tmp_path: Path) -> None:
    write_atomic(tmp_path / "token", b"\n")
    assert len(keep_secret(tmp_path / "token")) >= 32


def test_servers_come_back_as_they_were_applied(tmp_path: Path) -> None:
    store = ServerStore(tmp_path / "servers")
    servers = [
        server_of(tmp_path, "chat", replicas=2, sleep={"drain": {"timeout": "5s"}}),
        server_of(tmp_path, "other", engine={"port": 9000, "env": [{"name": "A", "value": "b: c"}]}),
    ]
    for server in servers:
        store.save(server)
    assert store.load() == servers
    store.remove("chat")
    store.remove("chat")
    assert store.load() == servers[1:]


def test_a_servers_file_that_somebody_broke_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text("kind: InferenceServer\n")
    with pytest.raises(EbbtideError, match=r"chat\.yaml"):
        ServerStore(tmp_path).load()


def test_the_envelope_is_readable_by_people(tmp_path: Path) -> None:
    envelope = json.loads(encode(RECORD))
    assert envelope["format"] == "ebbtide.dev/group.v1"
    assert json.loads(envelope["record"])["epoch"] == 7
