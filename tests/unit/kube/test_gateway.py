"""What a path means to a caller; whom agents' certificates let in; what the environment tells."""

import asyncio
import base64
import json
import ssl
import subprocess
from pathlib import Path

import httpx2
import pytest
from ebbtide_api.errors import EbbtideError
from ebbtide_operator.kube.auth import Caller
from ebbtide_operator.kube.gateway import Target, target_of
from ebbtide_operator.kube.observe import AgentTransport, Enrolled, agent_url, context_for, fingerprint
from ebbtide_operator.kube.settings import KubeSettings
from ebbtide_operator.kube.tokens import Tokens

from .fake_api import FakeApi
from .test_driver import pod

TRAINER = Caller("system:serviceaccount:models:trainer")
PERSON = Caller("someone@example.org")


@pytest.mark.parametrize(
    ("path", "caller", "target"),
    [
        ("/v1/groups", TRAINER, Target("models", "/v1/groups")),
        ("/v1/groups/a:lend", TRAINER, Target("models", "/v1/groups/a:lend")),
        ("/namespaces/other/v1/groups/a", TRAINER, Target("other", "/v1/groups/a")),
        ("/namespaces/other/v1/groups/a", PERSON, Target("other", "/v1/groups/a")),
    ],
)
def test_a_path_is_about_the_callers_namespace_unless_it_names_one(path: str, caller: Caller, target: Target) -> None:
    assert target_of(path, caller) == target


def test_who_has_no_namespace_must_name_one() -> None:
    with pytest.raises(EbbtideError, match="/namespaces/NAMESPACE/v1/groups"):
        target_of("/v1/groups", PERSON)


@pytest.mark.parametrize(
    "path", ["/namespaces/../v1/x", "/namespaces//v1/x", "/namespaces/UPPER/v1/x", "/namespaces/a/v2/x"]
)
def test_a_path_that_is_none_of_ours_names_no_namespace(path: str) -> None:
    assert target_of(path, TRAINER) == Target("models", path)


# certificates


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("certificate")
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=tiny-0"]
    files = ["-keyout", str(folder / "k"), "-out", str(folder / "c")]
    subprocess.run(["openssl", "req", "-x509", *kind, *files], check=True, capture_output=True)
    return (folder / "c").read_text()


def test_one_certificate_is_trusted_and_nothing_else(pem: str) -> None:
    context = context_for(pem)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert len(context.get_ca_certs()) <= 1
    assert len(fingerprint(pem)) == 64


@pytest.mark.parametrize("broken", ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_is_not_taken(broken: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Enrolled().add("pod", broken)


def test_a_certificate_is_a_pods_and_news_only_once(pem: str) -> None:
    told: list[str] = []
    enrolled = Enrolled(told.append)
    assert enrolled.add("pod", pem) == enrolled.add("pod", pem) == fingerprint(pem)
    assert told == ["pod"]
    assert enrolled.get("pod") == pem
    assert enrolled.get("other") is None
    enrolled.forget("pod")
    assert enrolled.get("pod") is None


def test_an_agent_is_where_its_pod_is() -> None:
    assert agent_url(pod(ip="10.0.0.7")) == "https://10.0.0.7:7412"
    assert agent_url(pod(ip="fd00::7")) == "https://[fd00::7]:7412"


def test_every_request_carries_our_token_and_epoch_and_a_refused_token_is_dropped() -> None:
    api = FakeApi(answers={"token": lambda _body: {"status": {"token": f"t{len(api.calls)}"}}})
    tokens = Tokens(api, "system", "ebbtide-operator")
    seen: list[httpx2.Headers] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers)
        return httpx2.Response(401 if len(seen) == 1 else 200)

    async def ask() -> None:
        transport = AgentTransport(httpx2.MockTransport(answer), tokens, "u1", lambda: 6 + len(seen))
        async with httpx2.AsyncClient(transport=transport, trust_env=False) as client:
            for _ in range(3):
                await client.get("http://agent/v1/state", headers={"Authorization": "Bearer "})

    asyncio.run(ask())
    assert [headers["authorization"] for headers in seen] == ["Bearer t1", "Bearer t2", "Bearer t2"]
    assert [headers["ebbtide-leader"] for headers in seen] == ["6", "7", "8"]


# settings

ENVIRONMENT = {"POD_NAME": "op-0", "POD_NAMESPACE": "system", "EBBTIDE_IMAGE": "image"}


def test_the_least_that_is_told_is_enough() -> None:
    settings = KubeSettings.of(ENVIRONMENT)
    assert settings.watched == ("system",)
    assert settings.gateway_url == "https://ebbtide.system.svc:8443"
    assert settings.identity == "op-0"


def test_everything_else_is_taken_as_told(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("root")
    told = {
        "POD_UID": "u",
        "EBBTIDE_WATCH_NAMESPACES": "a, b,",
        "EBBTIDE_TLS_DIR": str(tmp_path),
        "EBBTIDE_IMAGE_PULL_SECRETS": "s",
        "EBBTIDE_GATEWAY_PORT": "1",
    }
    settings = KubeSettings.of(ENVIRONMENT | told)
    assert (settings.watched, settings.gateway_port, settings.identity) == (("a", "b"), 1, "op-0_u")
    site = settings.site()
    assert (site.gateway_ca, site.pull_secrets) == ("root", ("s",))
    assert site.operator == "system:serviceaccount:system:ebbtide-operator"
    assert KubeSettings.of(ENVIRONMENT | told | {"EBBTIDE_CLUSTER_WIDE": "true"}).watched == ()


def token_of(claims: object) -> str:
    head, body = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims))
    return f"{head}.{body}.signature"


@pytest.mark.parametrize(
    ("token", "uid"),
    [
        (
            token_of({"sub": "op", "kubernetes.io": {"serviceaccount": {"uid": "u1"}}}),
            "u1",
        ),
        (token_of({"kubernetes.io/serviceaccount/service-account.uid": "legacy"}), ""),
        (token_of({"kubernetes.io": None}), ""),
        (token_of([]), ""),
        ("a.b.c", ""),
        ("nonsense", ""),
        (None, ""),
    ],
)
def test_our_account_is_known_by_our_own_token(tmp_path: Path, token: str | None, uid: str) -> None:
    file = tmp_path / "token"
    if token is not None:
        file.write_text(token)
    told = {"EBBTIDE_ACCOUNT_DIR": str(tmp_path), "EBBTIDE_SERVICE_ACCOUNT": "op"}
    owner = {"apiVersion": "v1", "kind": "ServiceAccount", "name": "op", "uid": uid}
    assert KubeSettings.of(ENVIRONMENT | told).owner == (owner if uid else None)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"EBBTIDE_IMAGE": ""}, "EBBTIDE_IMAGE"),
        ({"POD_NAMESPACE": ""}, "POD_NAMESPACE"),
        ({"EBBTIDE_CLUSTER_WIDE": "maybe"}, "EBBTIDE_CLUSTER_WIDE"),
        ({"EBBTIDE_HEALTH_PORT": "http"}, "EBBTIDE_HEALTH_PORT"),
        ({"EBBTIDE_HEALTH_PORT": "70000"}, "EBBTIDE_HEALTH_PORT"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, str], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        KubeSettings.of(ENVIRONMENT | change)
