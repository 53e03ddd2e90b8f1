"""An agent in a pod: a key of its own, which it enrols at the gateway, and callers known by the cluster's signatures.

    identity     a key and a self-signed certificate, made at boot, in the pod's memory
    enrolment    the gateway gets the certificate with a token that is bound to this pod
    callers      the operator alone: its ServiceAccount's token for this server's audience, checked against the
                 cluster's public keys, which are fetched again when a key is not known (rotation)

Tokens are checked here and not by a review, so nobody needs rights for it; a revoked one is good until it ends.
"""

from __future__ import annotations

import logging
import os
import random
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_urlsafe

import httpx2
import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.member import MemberConfig

log = logging.getLogger("ebbtide.cluster")
ALGORITHMS = ["RS256", "ES256", "RS384", "ES384", "RS512", "ES512"]
SILENCE_S = 30.0
"""Who was not called for this long enrols again: the operator may have restarted, and then knows no certificates."""
REFETCH_S = 5.0
"""At most every so often are the keys fetched: a forged key name must not make us ask for ever."""
_SCHEME = "bearer "
_VALID = timedelta(days=3650)


@dataclass(frozen=True)
class Place:
    """What the pod is told by its environment."""

    audience: str
    operator: str
    gateway: str
    gateway_ca: Path
    tokens: Path
    api_server: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Place:
        """Read the environment. Raises ValueError that names what is missing."""
        names = (
            "EBBTIDE_AUDIENCE",
            "EBBTIDE_OPERATOR",
            "EBBTIDE_GATEWAY",
            "EBBTIDE_GATEWAY_CA",
            "EBBTIDE_TOKENS",
            "KUBERNETES_SERVICE_HOST",
        )
        if missing := [name for name in names if not environment.get(name)]:
            raise ValueError(f"{', '.join(missing)} not set, though this is a pod")
        audience, operator, gateway, ca, tokens, host = (environment[name] for name in names)
        host = f"[{host}]" if ":" in host else host
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        return cls(audience, operator, gateway, Path(ca), Path(tokens), f"https://{host}:{port}")


@dataclass(frozen=True)
class Identity:
    """The files of the agent's key and certificate."""

    key: Path
    certificate: Path

    @property
    def pem(self) -> str:
        """The certificate."""
        return self.certificate.read_text(encoding="ascii")


def enter(config: MemberConfig, environment: Mapping[str, str]) -> tuple[OperatorToken, dict[str, str]]:
    """Return who may call, and what the server needs for TLS; from now on we enrol. Raises OSError, ValueError."""
    place, identity = Place.of(environment), prepare(config)
    callers = OperatorToken(place.audience, place.operator)
    Enroller(place, identity, callers).start()
    return callers, {"ssl_keyfile": str(identity.key), "ssl_certfile": str(identity.certificate)}


def prepare(config: MemberConfig) -> Identity:
    """Make the boot secret and the key; what is there is kept: a restarted agent is the same one. Raises OSError."""
    secret = Path(config.secret_path)
    if not secret.exists():
        _private(secret, token_urlsafe(32).encode())
    folder = Path(config.memory) / "tls"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    identity = Identity(folder / "tls.key", folder / "tls.crt")
    if not identity.certificate.exists():
        _make(identity, config.name)
    return identity


def _make(identity: Identity, name: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _VALID)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    _private(identity.key, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    # Last: who finds the certificate finds its key.
    _private(identity.certificate, certificate.public_bytes(serialization.Encoding.PEM))


def _private(path: Path, data: bytes) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    fresh.replace(path)


class OperatorToken:
    """Who may call: see auth.Bearer. `keys` are the cluster's, by their names."""

    def __init__(self, audience: str, operator: str) -> None:
        self._audience, self._operator = audience, operator
        self._keys: dict[str, jwt.PyJWK] = {}
        self.heard = 0.0
        self.unknown_key = threading.Event()
        self.unknown_key.set()

    def learn(self, keys: Mapping[str, object]) -> None:
        """Take the cluster's keys as they are now. Raises ValueError."""
        try:
            self._keys = {key.key_id: key for key in jwt.PyJWKSet.from_dict(dict(keys)).keys if key.key_id}
        except jwt.PyJWTError as error:
            raise ValueError(f"the cluster's keys cannot be read: {error}") from error

    def check(self, authorization: str | None) -> None:
        """Raise UNAUTHENTICATED unless the header carries the operator's token for this server."""
        given = authorization or ""
        if given[: len(_SCHEME)].lower() != _SCHEME:
            raise _refused("there is none")
        token = given[len(_SCHEME) :].strip()
        try:
            claims = jwt.decode(
                token,
                self._key(token),
                algorithms=ALGORITHMS,
                audience=self._audience,
                options={"require": ["exp", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise _refused(str(error)) from None
        if claims["sub"] != self._operator:
            raise _refused("it is not the operator's")
        self.heard = time.monotonic()

    def _key(self, token: str) -> jwt.PyJWK:
        name = jwt.get_unverified_header(token).get("kid", "")
        if name not in self._keys:
            self.unknown_key.set()  # fetched beside us; the caller comes again
            raise jwt.InvalidTokenError("its key is not known yet")
        return self._keys[name]


def _refused(why: str) -> EbbtideError:
    return EbbtideError(ErrorCode.UNAUTHENTICATED, f"The agent wants the operator's token for this server: {why}.")


class Enroller(threading.Thread):
    """Keeps the cluster's keys and our enrolment fresh. A thread: nothing of it may hold up the agent."""

    def __init__(self, place: Place, identity: Identity, callers: OperatorToken) -> None:
        super().__init__(name="enrol", daemon=True)
        self._place, self._identity, self._callers = place, identity, callers
        self._fetched = -REFETCH_S
        self._enrolled = -SILENCE_S

    def run(self) -> None:
        """Work for ever."""
        while True:
            self.turn()
            time.sleep(random.uniform(0.5, 1.5))  # noqa: S311 - so that agents do not move in step

    def turn(self) -> None:
        """Do what is due. What fails is tried again at the next turn."""
        now = time.monotonic()
        try:
            if self._callers.unknown_key.is_set() and now - self._fetched >= REFETCH_S:
                self._fetched = now
                self.fetch()
            if now - max(self._callers.heard, self._enrolled) >= SILENCE_S:
                self.enrol()
                self._enrolled = now
        except (httpx2.HTTPError, OSError, ValueError) as error:
            log.warning("not enrolled yet: %s", error)

    def fetch(self) -> None:
        """Read the cluster's keys from its API server, where every ServiceAccount may. Raises HTTPError, ValueError."""
        headers = {"Authorization": f"Bearer {self._token('api')}"}
        roots = ssl.create_default_context(cafile=str(self._place.tokens / "ca.crt"))
        answer = httpx2.get(
            f"{self._place.api_server}/openid/v1/jwks", headers=headers, verify=roots, timeout=10, trust_env=False
        )
        answer.raise_for_status()
        self._callers.learn(answer.json())
        self._callers.unknown_key.clear()

    def enrol(self) -> None:
        """Give the gateway our certificate. Raises HTTPError."""
        headers = {"Authorization": f"Bearer {self._token('gateway')}"}
        roots = ssl.create_default_context(cafile=str(self._place.gateway_ca))
        body = {"certificate": self._identity.pem}
        answer = httpx2.post(
            f"{self._place.gateway}/v1/enrol", json=body, headers=headers, verify=roots, timeout=10, trust_env=False
        )
        answer.raise_for_status()
        log.info("enrolled at %s", self._place.gateway)

    def _token(self, name: str) -> str:
        # Read every time: the kubelet replaces it.
        return (self._place.tokens / name).read_text(encoding="ascii").strip()
