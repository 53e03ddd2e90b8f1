"""The gateway's certificate: right for its names, checked strictly, and the same after an upgrade."""

import base64
import socket
import ssl
import threading
from pathlib import Path

import pytest

from .rendering import Object, objects, of_kind, one, upgraded

NAMES = [
    "ebbtide-gateway",
    "ebbtide-gateway.home",
    "ebbtide-gateway.home.svc",
    "ebbtide-gateway.home.svc.cluster.local",
]


def secret(found: list[Object]) -> Object:
    return one("Secret", "ebbtide-gateway-tls", found)


def served(found: list[Object]) -> Object:
    """Return the Secret as the API server has it after an install."""
    return {"apiVersion": "v1", **secret(found)}


def write(folder: Path, data: dict[str, str]) -> None:
    for name, text in data.items():
        (folder / name).write_bytes(base64.b64decode(text))


def handshake(folder: Path, name: str) -> None:
    """Shake hands as a client of Python 3.13 does, which is stricter than this one may be."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    client = ssl.create_default_context(cafile=folder / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def answer() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        client.wrap_socket(ours, server_hostname=name).close()
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("name", [*NAMES, "localhost", "127.0.0.1", "more.example", "10.1.2.3"])
def test_clients_accept_it_for_its_names(tmp_path: Path, name: str) -> None:
    tls = {"extraNames": ["more.example"], "extraAddresses": ["10.1.2.3"]}
    write(tmp_path, secret(objects({"gateway": {"tls": tls}}))["data"])
    handshake(tmp_path, name)


def test_clients_refuse_it_for_another_name(tmp_path: Path) -> None:
    write(tmp_path, secret(objects())["data"])
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        handshake(tmp_path, "other.home.svc")


def test_trainers_find_its_ca_and_address_in_every_watched_namespace() -> None:
    found = objects({"watchNamespaces": ["a", "b"]})
    authority = base64.b64decode(secret(found)["data"]["ca.crt"]).decode()
    theirs = [each for each in of_kind("ConfigMap", found) if each["metadata"]["name"] == "ebbtide-gateway"]
    maps = {each["metadata"]["namespace"]: each["data"] for each in theirs}
    assert set(maps) == {"home", "a", "b"}
    for data in maps.values():
        assert data == {"url": "https://ebbtide-gateway.home.svc", "ca.crt": authority}


def test_another_port_is_in_the_address() -> None:
    found = objects({"gateway": {"service": {"port": 8443}}})
    assert one("ConfigMap", "ebbtide-gateway", found)["data"]["url"] == "https://ebbtide-gateway.home.svc:8443"


def test_without_a_cluster_each_render_makes_another() -> None:
    same = objects({"gateway": {"tls": {"extraNames": []}}})
    assert secret(objects())["metadata"] == secret(same)["metadata"]
    assert secret(objects())["data"] != secret(same)["data"]


def test_an_upgrade_keeps_it() -> None:
    before = objects()
    after = upgraded([served(before)])
    assert secret(after)["data"] == secret(before)["data"]
    assert one("ConfigMap", "ebbtide-gateway", after) == one("ConfigMap", "ebbtide-gateway", before)


def test_an_upgrade_with_other_names_makes_another() -> None:
    before = objects()
    values = {"gateway": {"tls": {"extraNames": ["more.example"]}}}
    assert secret(upgraded([served(before)], values))["data"] != secret(before)["data"]


def test_an_upgrade_without_it_makes_one() -> None:
    assert secret(upgraded([]))["data"].keys() == {"tls.crt", "tls.key", "ca.crt"}


def test_a_half_secret_is_replaced() -> None:
    half = served(objects())
    half["data"] = {"tls.crt": half["data"]["tls.crt"]}
    assert secret(upgraded([half]))["data"].keys() == {"tls.crt", "tls.key", "ca.crt"}


def test_a_certificate_of_the_users_is_mounted_and_its_ca_handed_out() -> None:
    tls = {"existingSecret": "mine", "caBundle": "-----BEGIN CERTIFICATE-----\nabc\n"}
    found = objects({"gateway": {"tls": tls}})
    assert of_kind("Secret", found) == []
    volumes = one("Deployment", "ebbtide-operator", found)["spec"]["template"]["spec"]["volumes"]
    assert volumes[0]["secret"]["secretName"] == "mine"
    assert one("ConfigMap", "ebbtide-gateway", found)["data"]["ca.crt"] == tls["caBundle"]
