"""Who may call the gateway, as the API server says."""

import asyncio
from typing import Any

import pytest
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_operator.kube.auth import KEPT_S, Authenticator, Caller
from ebbtide_operator.kube.kinds import ApiError

from .fake_api import FakeApi

TRAINER = "system:serviceaccount:models:trainer"
ENGINE = "system:serviceaccount:models:ebbtide-engine"
POD = {
    "authentication.kubernetes.io/pod-name": ["tiny-0"],
    "authentication.kubernetes.io/pod-uid": ["pod-uid"],
}
USERS = {
    "good": {"username": TRAINER, "uid": "u1", "groups": ["system:serviceaccounts"]},
    "engine": {"username": ENGINE, "extra": POD},
    "loose": {"username": ENGINE},
}


def review(body: Any) -> Any:
    user = USERS.get(body["spec"]["token"])
    status = {"authenticated": user is not None, "user": user, "audiences": body["spec"]["audiences"], "error": "bad"}
    return {"status": status}


def allow(*names: str) -> Any:
    return lambda body: {"status": {"allowed": body["spec"]["resourceAttributes"].get("name") in names}}


def api(*allowed: str) -> FakeApi:
    return FakeApi(answers={"tokenreviews": review, "localsubjectaccessreviews": allow(*allowed)})


def who(server: FakeApi, header: str | None) -> Caller:
    return asyncio.run(Authenticator(server).caller(header))


@pytest.mark.parametrize("header", [None, "", "Basic x", "Bearer", "Bearer ", "Bearer stolen"])
def test_who_is_not_known_is_told_what_to_send(header: str | None) -> None:
    with pytest.raises(EbbtideError) as caught:
        who(api(), header)
    assert caught.value.code is ErrorCode.UNAUTHENTICATED
    assert "ebbtide-gateway" in caught.value.next_action


def test_a_known_caller_has_a_namespace() -> None:
    caller = who(api(), "bearer good")
    assert (caller.name, caller.namespace, caller.uid) == (TRAINER, "models", "u1")
    assert not caller.is_engine("trainer")


def test_a_token_for_somebody_else_is_not_taken() -> None:
    server = api()
    # What an API server answers that knows no audiences: authenticated, for its own audience.
    server.answers["tokenreviews"] = lambda body: {"status": {"authenticated": True, "user": USERS["good"]}}
    with pytest.raises(EbbtideError, match="audience"):
        who(server, "Bearer good")


def test_only_a_token_bound_to_a_pod_is_an_engine() -> None:
    engine = who(api(), "Bearer engine")
    assert engine.is_engine("ebbtide-engine")
    assert not engine.is_engine("other")
    assert engine.pod == ("tiny-0", "pod-uid")
    assert not who(api(), "Bearer loose").is_engine("ebbtide-engine")


def test_a_review_is_asked_for_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    server = api()
    authenticator = Authenticator(server)

    async def calls() -> list[int]:
        counts = []
        for _ in range(2):
            await authenticator.caller("Bearer good")
            counts.append(len(server.calls))
        now = asyncio.get_running_loop().time()
        monkeypatch.setattr("time.monotonic", lambda: now + 10 * KEPT_S)
        await authenticator.caller("Bearer good")
        return [*counts, len(server.calls)]

    assert asyncio.run(calls()) == [1, 1, 2]
    assert "good" not in repr(vars(authenticator)).replace("'good'", "")


def test_every_server_of_a_group_must_be_allowed() -> None:
    authenticator = Authenticator(api("chat"))
    caller = Caller(TRAINER)
    asyncio.run(authenticator.require(caller, "models", "create", ["chat"], "lend"))
    with pytest.raises(EbbtideError) as caught:
        asyncio.run(authenticator.require(caller, "models", "create", ["chat", "secret"], "lend"))
    assert caught.value.code is ErrorCode.FORBIDDEN
    assert caught.value.status == 403
    assert "create inferenceservers/lend secret in namespace models" in caught.value.message


def test_a_refusal_is_not_kept() -> None:
    server = api()
    authenticator = Authenticator(server)
    caller = Caller(TRAINER)
    with pytest.raises(EbbtideError):
        asyncio.run(authenticator.require(caller, "models", "create", ["chat"], "lend"))
    server.answers["localsubjectaccessreviews"] = allow("chat")
    asyncio.run(authenticator.require(caller, "models", "create", ["chat"], "lend"))
    asked = len(server.calls)
    asyncio.run(authenticator.require(caller, "models", "create", ["chat"], "lend"))
    assert len(server.calls) == asked


def test_what_is_asked_names_the_caller_and_the_right() -> None:
    asked: list[Any] = []
    server = api()
    server.answers["localsubjectaccessreviews"] = lambda body: asked.append(body) or {"status": {"allowed": True}}  # type: ignore[func-returns-value]
    asyncio.run(Authenticator(server).require(who(api(), "Bearer good"), "models", "get", (), ""))
    (body,) = asked
    assert body["metadata"] == {"namespace": "models"}
    assert body["spec"]["user"] == TRAINER
    assert body["spec"]["groups"] == ["system:serviceaccounts"]
    assert body["spec"]["resourceAttributes"] == {
        "namespace": "models",
        "verb": "get",
        "group": "ebbtide.dev",
        "version": "v1alpha1",
        "resource": "inferenceservers",
    }


def test_an_api_server_that_is_silent_lets_nobody_in() -> None:
    server = api("chat")
    server.fail["create"] = [ApiError(0, "Timeout", "nobody")]
    with pytest.raises(EbbtideError) as caught:
        who(server, "Bearer good")
    assert caught.value.code is ErrorCode.UNREACHABLE
