"""Group records as Leases: what is kept, who may write, and what happens to a Lease that somebody else touches."""

from typing import Any

import pytest
from ebbtide_api.verbs import LeaseStage
from ebbtide_operator.kube.kinds import LEASES, ApiError
from ebbtide_operator.kube.leases import LeaseMovedError, LeaseRecords
from ebbtide_operator.kube.leasing import (
    RECORD,
    Spoiled,
    first_record,
    lease_name,
    lease_of,
    micro_time,
    reconciled,
    record_of,
    recovered,
)
from ebbtide_operator.plan import ENGINE, GroupRecord, LeaseRecord, PodRef
from ebbtide_operator.plan.lease import HOLDS
from hypothesis import given
from hypothesis import strategies as st

from .fake_api import FakeApi

NS = "models"


def held(stage: LeaseStage = LeaseStage.LENT, epoch: int = 5, owner: str = "trainer") -> GroupRecord:
    pod = PodRef(namespace=NS, name="trainer-x1", uid="u1")
    lease = LeaseRecord(id="l1", holder="trainer", stage=stage, epoch=epoch, ttl_seconds=30.5, pod=pod)
    return GroupRecord(group="actor", epoch=epoch, owner=owner, lease=lease)


def records(api: FakeApi, known: tuple[int, str] = (0, "")) -> LeaseRecords:
    made = LeaseRecords(api, NS, lambda _group: known)
    made.open()
    return made


def stored(api: FakeApi, group: str = "actor") -> Any:
    return api.objects["leases", NS, lease_name(group)]


# the mapping

RECORDS = st.builds(
    lambda epoch, owner, stage: held(stage, epoch, owner) if stage else GroupRecord(group="actor", epoch=epoch),
    st.integers(1, 2**40),
    st.sampled_from([ENGINE, "trainer"]),
    st.sampled_from([None, *sorted(HOLDS)]),
)


@given(RECORDS)
def test_a_record_survives_its_lease(record: GroupRecord) -> None:
    assert record_of(lease_of(record, NS, micro_time())) == record


@given(RECORDS, st.sampled_from(["holderIdentity", "leaseTransitions", "record", "name"]))
def test_an_edit_by_hand_is_noticed(record: GroupRecord, what: str) -> None:
    lease: Any = lease_of(record, NS, micro_time())
    if what == "record":
        lease["metadata"]["annotations"][RECORD] = lease["metadata"]["annotations"][RECORD].replace("actor", "actress")
    elif what == "name":
        lease["metadata"]["name"] = "ebbtide-group-other"
    else:
        lease["spec"][what] = 3_000_000 if what == "leaseTransitions" else "somebody"
    assert isinstance(record_of(lease), Spoiled)


@pytest.mark.parametrize("broken", [{}, {"metadata": {"annotations": {RECORD: "{}"}}}, {"spec": 3}])
def test_nonsense_is_no_record(broken: Any) -> None:
    assert isinstance(record_of(broken), Spoiled)


def test_people_read_the_holder_and_the_epoch() -> None:
    spec: Any = lease_of(held(), NS, "2026-01-01T00:00:00.000000Z")["spec"]
    assert spec == {
        "leaseTransitions": 5,
        "holderIdentity": "trainer",
        "leaseDurationSeconds": 31,
        "renewTime": "2026-01-01T00:00:00.000000Z",
    }


# a lost or changed Lease never makes two owners


@given(RECORDS, st.integers(0, 2**40))
def test_recovery_refuses_every_epoch_seen_and_frees_nothing(record: GroupRecord, epoch: int) -> None:
    after = recovered(record, epoch)
    assert after.epoch > max(record.epoch, epoch)
    assert after.owner == record.owner
    if record.lease and record.owner != ENGINE:
        assert after.lease is not None
        assert after.lease.stage is LeaseStage.OWNER_LOST
    else:
        assert after.lease is None


def test_a_group_without_a_lease_starts_above_its_status() -> None:
    assert first_record("actor", 0, "").epoch == 1
    assert first_record("actor", 7, ENGINE) == GroupRecord(group="actor", epoch=8)
    lost = first_record("actor", 7, "trainer")
    assert (lost.epoch, lost.owner, lost.lease and lost.lease.stage) == (8, "unknown", LeaseStage.OWNER_LOST)


def test_a_record_of_a_later_operator_is_taken_and_an_older_one_is_not() -> None:
    known, later, older = held(epoch=5), held(epoch=9), held(epoch=3)
    assert reconciled(known, lease_of(later, NS, "")) == later
    assert reconciled(known, lease_of(older, NS, "")) == recovered(known, 5)
    assert reconciled(known, None) == recovered(known, 5)


# keeping them


def test_a_record_is_there_after_a_restart() -> None:
    api = FakeApi()
    first = records(api)
    assert first.load("actor") == GroupRecord(group="actor")
    first.save(held(epoch=1))
    first.save(held(epoch=2))
    assert records(api).load("actor") == held(epoch=2)
    assert first.is_kept(held(epoch=2))
    assert not first.is_kept(held(epoch=1))


def test_two_writers_never_both_succeed() -> None:
    api = FakeApi()
    records(api).save(held(epoch=1))
    one, other = records(api), records(api)
    one.save(held(epoch=2))
    with pytest.raises(LeaseMovedError):
        other.save(held(LeaseStage.GRANTED, epoch=2, owner=ENGINE))
    assert record_of(stored(api)) == held(epoch=2)
    assert other.renounce(held(epoch=1)) == held(epoch=2)
    other.save(held(epoch=3))


def test_two_that_make_the_lease_never_both_succeed() -> None:
    api = FakeApi()
    one, other = records(api), records(api)
    one.save(held(epoch=1))
    with pytest.raises(LeaseMovedError):
        other.save(held(epoch=1))


def test_a_lease_that_was_deleted_is_made_anew_above_all_epochs() -> None:
    api = FakeApi()
    kept = records(api)
    kept.save(held(epoch=4))
    del api.objects["leases", NS, lease_name("actor")]
    with pytest.raises(LeaseMovedError):
        kept.save(held(epoch=5))
    after = kept.renounce(held(epoch=4))
    assert (after.epoch, after.lease and after.lease.stage) == (5, LeaseStage.OWNER_LOST)
    kept.save(after)
    assert record_of(stored(api)) == after


def test_a_failure_of_the_server_leaves_everything_as_it_was() -> None:
    api = FakeApi()
    kept = records(api)
    kept.save(held(epoch=1))
    api.fail["replace"] = [ApiError(500, "InternalError", "x")]
    with pytest.raises(ApiError, match="500"):
        kept.save(held(epoch=2))
    assert kept.is_kept(held(epoch=1))
    kept.save(held(epoch=2))


def test_a_spoiled_lease_loses_its_owner_at_the_next_start() -> None:
    api = FakeApi()
    records(api).save(held(epoch=4))
    stored(api)["spec"]["leaseTransitions"] = 12
    record = records(api, known=(6, "trainer")).load("actor")
    assert (record.epoch, record.owner, record.lease and record.lease.stage) == (13, "unknown", LeaseStage.OWNER_LOST)


# hearing of them


def test_our_own_writes_are_no_news() -> None:
    api = FakeApi()
    kept = records(api)
    kept.save(held(epoch=1))
    assert kept.see(stored(api)) is None
    old = dict(stored(api))
    kept.save(held(epoch=2))
    assert kept.see(old) is None


def test_a_deletion_and_an_edit_are_news_and_a_label_is_not() -> None:
    api = FakeApi()
    kept = records(api)
    kept.save(held(epoch=1))
    lease = stored(api)
    labelled = api.put(
        LEASES, {**lease, "metadata": {**lease["metadata"], "labels": lease["metadata"]["labels"] | {"x": "y"}}}
    )
    assert kept.see(labelled) is None
    kept.save(held(epoch=2))
    edited = api.put(LEASES, {**stored(api), "spec": {**stored(api)["spec"], "holderIdentity": "me"}})
    assert kept.see(edited) == "actor"
    gone = {**edited, "metadata": {**edited["metadata"], "resourceVersion": "9999"}}
    assert kept.see(gone, deleted=True) == "actor"


def test_a_lease_that_somebody_made_for_a_group_of_ours_is_news() -> None:
    api = FakeApi()
    assert records(api).see(lease_of(held(), NS, "", "7")) == "actor"
