"""One operator at a time; and tokens for agents."""

import asyncio
from typing import Any

import pytest
from ebbtide_operator.kube.kinds import LEASES, ApiError
from ebbtide_operator.kube.lock import NAME, Leadership, LostError, Timing
from ebbtide_operator.kube.tokens import LIFE_S, Tokens

from .fake_api import FakeApi

FAST = Timing(duration=0.3, renew_deadline=0.2, retry=0.02)
LIMIT = 10


def claim(api: FakeApi, who: str) -> Leadership:
    return Leadership(api, "system", who, FAST)


def lease(api: FakeApi) -> Any:
    return api.objects["leases", "system", NAME]


def test_the_first_leads_and_says_so() -> None:
    api = FakeApi()
    assert asyncio.run(claim(api, "pod-a").acquire()) == 1
    assert lease(api)["spec"]["holderIdentity"] == "pod-a"
    assert lease(api)["metadata"]["labels"]["ebbtide.dev/lease"] == "leader"


def test_another_waits_while_the_lease_is_renewed_and_leads_when_it_is_not() -> None:
    api = FakeApi()

    async def both() -> int:
        first, second = claim(api, "pod-a"), claim(api, "pod-b")
        await first.acquire()
        keeping = asyncio.create_task(first.keep())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second.acquire(), 2 * FAST.duration)
        keeping.cancel()
        return await asyncio.wait_for(second.acquire(), LIMIT)

    assert asyncio.run(both()) == 2
    assert lease(api)["spec"]["holderIdentity"] == "pod-b"


def test_a_restarted_container_of_the_same_pod_leads_at_once_with_another_epoch() -> None:
    api = FakeApi()
    asyncio.run(claim(api, "pod-a").acquire())
    assert asyncio.run(asyncio.wait_for(claim(api, "pod-a").acquire(), LIMIT)) == 2


@pytest.mark.parametrize(
    ("heard", "ours", "epoch"), [(5, False, 6), (5, True, 6), (1, False, 2), (1, True, 1), (0, False, 1)]
)
def test_a_lease_that_began_anew_goes_above_what_agents_have_seen(heard: int, ours: bool, epoch: int) -> None:
    api = FakeApi()

    async def lead() -> Leadership:
        leader = claim(api, "pod-a")
        await leader.acquire()
        leader.hear_of(heard, ours)
        renewed: list[int] = []

        def enough() -> bool:
            renewed.append(leader.epoch)
            return len(renewed) > 2

        await leader.keep(enough)
        return leader

    leader = asyncio.run(lead())
    assert (leader.epoch, lease(api)["spec"]["leaseTransitions"]) == (epoch, epoch)


def test_who_leads_no_more_never_goes_above(caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApi()

    async def both() -> None:
        first, second = claim(api, "pod-a"), claim(api, "pod-b")
        await first.acquire()
        await first.release()
        stale = claim(api, "pod-a")
        stale.epoch, stale._version = 1, "1"
        assert await second.acquire() == 2
        stale.hear_of(2, False)
        with pytest.raises(LostError):
            await stale.keep()
        assert stale.epoch == 1

    asyncio.run(both())
    assert lease(api)["spec"]["leaseTransitions"] == 2


def test_a_lease_that_was_given_up_is_free_at_once() -> None:
    api = FakeApi()

    async def hand_over() -> int:
        first = claim(api, "pod-a")
        await first.acquire()
        await first.release()
        return await asyncio.wait_for(claim(api, "pod-b").acquire(), LIMIT)

    assert asyncio.run(hand_over()) == 2


@pytest.mark.parametrize("how", ["taken", "deleted", "silent"])
def test_who_may_not_lead_any_more_hears_of_it(how: str) -> None:
    api = FakeApi()

    async def lose() -> None:
        first = claim(api, "pod-a")
        await first.acquire()
        if how == "taken":
            api.put(LEASES, {**lease(api), "spec": {"holderIdentity": "pod-b"}})
        elif how == "deleted":
            api.objects.clear()
        else:
            api.fail["replace"] = [ApiError(0, "Timeout", "nobody")] * 1000
        await asyncio.wait_for(first.keep(), LIMIT)

    with pytest.raises(LostError):
        asyncio.run(lose())


def test_a_short_silence_is_borne() -> None:
    api = FakeApi()

    async def survive() -> bool:
        first = claim(api, "pod-a")
        await first.acquire()
        api.fail["replace"] = [ApiError(503, "Busy", "later")] * 2
        await asyncio.wait_for(first.keep(lambda: not api.fail["replace"]), LIMIT)
        return True

    assert asyncio.run(survive())


def test_the_lease_goes_with_its_owner_also_one_that_was_there_before() -> None:
    api, owner = FakeApi(), {"apiVersion": "v1", "kind": "ServiceAccount", "name": "operator", "uid": "u"}

    async def lead() -> None:
        before = claim(api, "pod-a")
        await before.acquire()
        await before.release()
        assert "ownerReferences" not in lease(api)["metadata"]
        owned = Leadership(api, "system", "pod-b", FAST, owner)  # type: ignore[arg-type]
        await owned.acquire()
        assert lease(api)["metadata"]["ownerReferences"] == [owner]
        await owned.release()

    asyncio.run(lead())
    assert (lease(api)["metadata"]["ownerReferences"], lease(api)["spec"]["leaseTransitions"]) == ([owner], 2)


def test_our_own_renewal_is_heard_through_the_watch() -> None:
    api = FakeApi()
    first = claim(api, "pod-a")
    asyncio.run(first.acquire())
    before = first.echo
    first.see({"metadata": {"name": "other"}})
    assert first.echo == before
    first.see(lease(api))
    assert first.echo > before


# tokens


def token_api() -> FakeApi:
    api = FakeApi()
    api.answers["token"] = lambda body: {"status": {"token": f"for {body['spec']['audiences'][0]}"}}  # type: ignore[index]
    return api


def test_a_token_is_for_one_server_and_made_once() -> None:
    api = token_api()
    tokens = Tokens(api, "system", "ebbtide-operator")
    assert tokens.fresh("u1") == ""
    assert {tokens.ask("u1"), tokens.ask("u1")} == {"for ebbtide:u1"}
    assert tokens.ask("u2") == "for ebbtide:u2"
    assert api.written() == [("create", "serviceaccounts", "ebbtide-operator")] * 2


def test_a_token_is_replaced_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    api = token_api()
    tokens = Tokens(api, "system", "ebbtide-operator")
    tokens.ask("u1")
    now = tokens._tokens["u1"].until
    monkeypatch.setattr("time.monotonic", lambda: now - 1)
    assert tokens.fresh("u1")
    monkeypatch.setattr("time.monotonic", lambda: now)
    assert not tokens.fresh("u1")
    tokens.ask("u1")
    assert len(api.written()) == 2
    assert tokens._tokens["u1"].until - now < LIFE_S


def test_a_forgotten_token_is_made_anew() -> None:
    api = token_api()
    tokens = Tokens(api, "system", "ebbtide-operator")
    tokens.ask("u1")
    tokens.forget("u1")
    assert tokens.fresh("u1") == ""
