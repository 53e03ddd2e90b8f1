"""The agent in a pod: its key, who may call it, and how it makes itself known."""

import json
import ssl
import time
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_operator.kube.observe import context_for
from ebbtide_runtime.agent.cluster import SILENCE_S, Enroller, Identity, OperatorToken, Place, prepare

from tests.support.members import member_config

AUDIENCE, OPERATOR = "ebbtide:u1", "system:serviceaccount:system:ebbtide-operator"
ENVIRONMENT = {
    "EBBTIDE_AUDIENCE": AUDIENCE,
    "EBBTIDE_OPERATOR": OPERATOR,
    "EBBTIDE_GATEWAY": "https://gateway",
    "EBBTIDE_GATEWAY_CA": "/ca",
    "EBBTIDE_TOKENS": "/tokens",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
}
KEYS = {name: rsa.generate_private_key(public_exponent=65537, key_size=2048) for name in ("one", "two")}


def jwks(*names: str) -> dict[str, Any]:
    made = [json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEYS[name].public_key())) for name in names]
    return {"keys": [{**key, "kid": name, "alg": "RS256", "use": "sig"} for key, name in zip(made, names, strict=True)]}


def token(key: str = "one", kid: str | None = None, **changes: Any) -> str:
    claims = {"aud": [AUDIENCE], "sub": OPERATOR, "exp": time.time() + 60, "iat": time.time()}
    return jwt.encode({**claims, **changes}, KEYS[key], algorithm="RS256", headers={"kid": kid or key})


def callers(*names: str) -> OperatorToken:
    made = OperatorToken(AUDIENCE, OPERATOR)
    made.learn(jwks(*(names or ("one",))))
    made.unknown_key.clear()
    return made


def refuses(made: OperatorToken, header: str | None) -> str:
    with pytest.raises(EbbtideError) as caught:
        made.check(header)
    assert caught.value.code is ErrorCode.UNAUTHENTICATED
    assert made.heard == 0
    return caught.value.message


def test_the_operator_is_let_in() -> None:
    made = callers()
    made.check(f"Bearer {token()}")
    made.check(f"bearer {token()}")
    assert made.heard > 0
    assert not made.unknown_key.is_set()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aud": ["ebbtide:u2"]}, "Audience"),
        ({"aud": ["https://kubernetes.default.svc"]}, "Audience"),
        ({"sub": "system:serviceaccount:models:ebbtide-engine"}, "not the operator's"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "exp"),
        ({"nbf": time.time() + 3600}, "not yet valid"),
    ],
)
def test_a_token_for_somebody_else_or_another_time_is_refused(changes: dict[str, Any], why: str) -> None:
    assert why in refuses(callers(), f"Bearer {token(**changes)}")


@pytest.mark.parametrize("header", [None, "", "Basic x", "Bearer ", "Bearer a.b.c", "Bearer x"])
def test_what_is_no_token_is_refused(header: str | None) -> None:
    refuses(callers(), header)


def test_a_token_that_nobody_signed_is_refused() -> None:
    claims = {"aud": AUDIENCE, "sub": OPERATOR, "exp": time.time() + 60}
    unsigned = jwt.encode(claims, None, algorithm="none", headers={"kid": "one"})
    refuses(callers(), f"Bearer {unsigned}")
    refuses(callers(), f"Bearer {token('two', kid='one')}")
    by_secret = jwt.encode(claims, "x" * 64, algorithm="HS256", headers={"kid": "one"})
    refuses(callers(), f"Bearer {by_secret}")


def test_keys_that_rotate_are_fetched_again() -> None:
    made = callers("one")
    assert "not known yet" in refuses(made, f"Bearer {token('two')}")
    assert made.unknown_key.is_set()
    made.learn(jwks("two"))
    made.check(f"Bearer {token('two')}")
    made.heard = 0
    refuses(made, f"Bearer {token('one')}")


@pytest.mark.parametrize("broken", [{}, {"keys": []}, {"keys": [{"kty": "nonsense"}]}])
def test_keys_that_cannot_be_read_change_nothing(broken: Any) -> None:
    made = callers()
    with pytest.raises(ValueError, match="keys"):
        made.learn(broken)
    made.check(f"Bearer {token()}")


# identity


def test_a_pod_has_one_key_and_the_operator_can_trust_it(tmp_path: Path) -> None:
    config = member_config(tmp_path)
    Path(config.home).mkdir()
    identity = prepare(config)
    first = identity.pem
    assert prepare(config).pem == first
    assert oct(identity.key.stat().st_mode & 0o777) == oct(Path(config.secret_path).stat().st_mode & 0o777) == "0o600"
    assert len(Path(config.secret_path).read_text()) >= 32
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(identity.certificate, identity.key)
    assert _shake_hands(context_for(first), server)
    Path(config.memory, "tls", "tls.crt").unlink()
    with pytest.raises(ssl.SSLError):
        _shake_hands(context_for(prepare(config).pem), server)


def _shake_hands(client_context: ssl.SSLContext, server_context: ssl.SSLContext) -> bool:
    pipes = [(ssl.MemoryBIO(), ssl.MemoryBIO()) for _ in range(2)]
    (up, down), _ = pipes
    client = client_context.wrap_bio(down, up)
    server = server_context.wrap_bio(up, down, server_side=True)
    for _ in range(5):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.version() == "TLSv1.3"


def test_a_pod_that_is_told_too_little_says_what() -> None:
    assert Place.of(ENVIRONMENT).api_server == "https://10.96.0.1:443"
    assert Place.of(ENVIRONMENT | {"KUBERNETES_SERVICE_HOST": "fd00::1"}).api_server == "https://[fd00::1]:443"
    with pytest.raises(ValueError, match="EBBTIDE_GATEWAY, EBBTIDE_TOKENS"):
        Place.of(ENVIRONMENT | {"EBBTIDE_GATEWAY": "", "EBBTIDE_TOKENS": ""})


# enrolment


class Turns(Enroller):
    """Counts what would be asked of others."""

    def __init__(self, made: OperatorToken) -> None:
        super().__init__(Place.of(ENVIRONMENT), Identity(Path("k"), Path("c")), made)
        self.done: list[str] = []
        self.fails = False

    def fetch(self) -> None:
        self._note("fetch")
        self._callers.unknown_key.clear()

    def enrol(self) -> None:
        self._note("enrol")

    def _note(self, what: str) -> None:
        self.done.append(what)
        if self.fails:
            raise httpx2.ConnectError("nobody")


def test_an_agent_enrols_at_boot_and_again_when_nobody_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    made = OperatorToken(AUDIENCE, OPERATOR)
    turns = Turns(made)
    turns.turn()
    turns.turn()
    assert turns.done == ["fetch", "enrol"]
    now += SILENCE_S
    made.heard = now - 1
    turns.turn()
    assert turns.done == ["fetch", "enrol"]
    now += SILENCE_S
    turns.turn()
    assert turns.done == ["fetch", "enrol", "enrol"]


def test_what_fails_is_tried_again_and_keys_not_more_often_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    turns = Turns(OperatorToken(AUDIENCE, OPERATOR))
    turns.fails = True
    for _ in range(3):
        turns.turn()
    assert turns.done == ["fetch", "enrol", "enrol"]
    now += 6
    turns.fails = False
    turns.turn()
    assert turns.done[-2:] == ["fetch", "enrol"]
