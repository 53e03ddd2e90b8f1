"""What everything on a cluster is called: labels, ports, paths, and the names of an InferenceServer's children."""

from __future__ import annotations

from typing import Final

Json = dict[str, object]
"""A JSON object, as it is sent to the API server."""

ENGINE_APP: Final = "ebbtide-engine"
OPERATOR_APP: Final = "ebbtide"
ENGINE_ACCOUNT: Final = "ebbtide-engine"
OPERATOR_ACCOUNT: Final = "ebbtide-operator"
MANAGER: Final = "ebbtide"

SERVER: Final = "ebbtide.dev/server"
GROUP: Final = "ebbtide.dev/group"
BORROWS: Final = "ebbtide.dev/borrows"
"""A trainer's pod carries it, with its group's name: it may reach the agents, to hand weights over."""
DIGEST: Final = "ebbtide.dev/digest"
"""On every child: the digest of what we applied, so that the same is not applied again."""

AGENT_PORT: Final = 7412
PROBE_PORT: Final = 7413

MEMBER_DIR: Final = "/etc/ebbtide"
MEMBER_FILE: Final = "member.json"
MEMBER_PATH: Final = f"{MEMBER_DIR}/{MEMBER_FILE}"
GATEWAY_CA_FILE: Final = "gateway-ca.crt"
MEMORY_DIR: Final = "/run/ebbtide"
HOME_DIR: Final = "/var/lib/ebbtide"
PAYLOAD_DIR: Final = "/opt/ebbtide/payload"
CACHE_DIR: Final = "/var/cache/ebbtide"
TOKEN_DIR: Final = "/var/run/secrets/ebbtide"  # noqa: S105 - a folder
HANDOFF_DIR: Final = "/var/lib/ebbtide-handoff"
HANDOFF_VOLUME: Final = "ebbtide-handoff"
"""A volume of this name in spec.template is mounted into agent and engine: where a trainer publishes weights."""

GATEWAY_AUDIENCE: Final = "ebbtide-gateway"
UID: Final = 65532
"""The user and group of every container in an engine pod: agent and engine share files of mode 0600."""


def members_service(server: str) -> str:
    """Return the name of the headless Service that gives every pod its DNS name."""
    return f"{server}-members"


def member_config_map(server: str) -> str:
    """Return the name of the ConfigMap that holds member.json."""
    return f"{server}-member"


def audience(server_uid: str) -> str:
    """Return the audience of tokens for one server's agents: a token seen by one server is of no use to another."""
    return f"ebbtide:{server_uid}"


def ordinal_of(pod: str, server: str) -> int | None:
    """Return the ordinal in a pod's name; None when it is no name of that server's pods."""
    stem, dash, number = pod.rpartition("-")
    if stem != server or not dash or not number.isdigit() or (number != "0" and number.startswith("0")):
        return None
    return int(number)


def selector(server: str) -> dict[str, str]:
    """Return the labels that tell one server's pods from all others."""
    return {"app.kubernetes.io/name": ENGINE_APP, SERVER: server}
