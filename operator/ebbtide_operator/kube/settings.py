"""What the operator on a cluster is told, by its environment."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .children import Site
from .names import ENGINE_ACCOUNT, GATEWAY_AUDIENCE, OPERATOR_ACCOUNT, Json

ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class KubeSettings:
    """One installation. Times are in seconds."""

    pod: str
    """The operator's pod."""
    pod_uid: str
    """Which one of that name."""
    namespace: str
    """Its namespace."""
    image: str
    """Our own image, for agents and for the payload."""
    watched: tuple[str, ...] = ()
    """The namespaces whose servers are ours; none: all of the cluster's."""
    pull_policy: str = ""
    """imagePullPolicy of our image in engine pods; empty lets Kubernetes choose."""
    pull_secrets: tuple[str, ...] = ()
    """imagePullSecrets of engine pods."""
    account: str = OPERATOR_ACCOUNT
    """Our ServiceAccount, whose tokens agents accept."""
    account_uid: str = ""
    """Which one of that name; empty where we do not run as one."""
    engine_account: str = ENGINE_ACCOUNT
    """The ServiceAccount of engine pods, in their namespaces."""
    audiences: tuple[str, ...] = (GATEWAY_AUDIENCE,)
    """Audiences of the tokens that the gateway accepts."""
    gateway_url: str = ""
    """Where agents find the gateway."""
    tls: Path = Path("/etc/ebbtide/tls")
    """The folder of tls.crt, tls.key and ca.crt."""
    gateway_port: int = 8443
    """The gateway's port (HTTPS)."""
    health_port: int = 8080
    """The port of /health and /metrics (HTTP)."""
    scratch: Path = Path("/tmp/ebbtide")  # noqa: S108 - a folder of the pod's own, mode 0700
    """A folder for files that need not survive."""
    resync: float = 300.0
    """Between two lists of everything, which purge what watches forgot."""
    silence: float = 120.0
    """How long our own renewals may go unheard before the watch is taken for dead."""

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> KubeSettings:
        """Read the environment. Raises ValueError that names what is missing or wrong."""
        namespace = _required(environment, "POD_NAMESPACE")
        everywhere = _flag(environment, "EBBTIDE_CLUSTER_WIDE")
        named = _list(environment, "EBBTIDE_WATCH_NAMESPACES")
        default_url = f"https://ebbtide.{namespace}.svc:8443"
        return cls(
            pod=_required(environment, "POD_NAME"),
            pod_uid=environment.get("POD_UID", ""),
            namespace=namespace,
            image=_required(environment, "EBBTIDE_IMAGE"),
            watched=() if everywhere else named or (namespace,),
            pull_policy=environment.get("EBBTIDE_IMAGE_PULL_POLICY", ""),
            pull_secrets=_list(environment, "EBBTIDE_IMAGE_PULL_SECRETS"),
            account=environment.get("EBBTIDE_SERVICE_ACCOUNT") or OPERATOR_ACCOUNT,
            account_uid=_account_uid(Path(environment.get("EBBTIDE_ACCOUNT_DIR") or ACCOUNT_DIR) / "token"),
            engine_account=environment.get("EBBTIDE_ENGINE_SERVICE_ACCOUNT") or ENGINE_ACCOUNT,
            audiences=_list(environment, "EBBTIDE_GATEWAY_AUDIENCES") or (GATEWAY_AUDIENCE,),
            gateway_url=environment.get("EBBTIDE_GATEWAY_URL") or default_url,
            tls=Path(environment.get("EBBTIDE_TLS_DIR") or cls.tls),
            gateway_port=_port(environment, "EBBTIDE_GATEWAY_PORT", cls.gateway_port),
            health_port=_port(environment, "EBBTIDE_HEALTH_PORT", cls.health_port),
            scratch=Path(environment.get("EBBTIDE_SCRATCH") or cls.scratch),
        )

    @property
    def identity(self) -> str:
        """What holds the operator's Lease: a recreated pod of that name is another one."""
        return f"{self.pod}_{self.pod_uid}" if self.pod_uid else self.pod

    @property
    def owner(self) -> Json | None:
        """The reference by which an object goes when our ServiceAccount does: with the release."""
        if not self.account_uid:
            return None
        return {"apiVersion": "v1", "kind": "ServiceAccount", "name": self.account, "uid": self.account_uid}

    def site(self) -> Site:
        """Return what children must know. Raises OSError when the gateway's root certificate cannot be read."""
        return Site(
            namespace=self.namespace,
            image=self.image,
            pull_policy=self.pull_policy,
            pull_secrets=self.pull_secrets,
            account=self.account,
            engine_account=self.engine_account,
            gateway_url=self.gateway_url,
            gateway_ca=(self.tls / "ca.crt").read_text(encoding="utf-8"),
        )


def _account_uid(token: Path) -> str:
    """Return the UID of our ServiceAccount, as our own token tells it: no right is needed for that."""
    try:
        claims = token.read_text(encoding="ascii").split(".")[1]
        told = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        return str(told["kubernetes.io"]["serviceaccount"]["uid"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise ValueError(f"{name} is not set: the chart sets it")
    return value


def _list(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in environment.get(name, "").split(",") if part.strip())


def _flag(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "").strip().lower()
    if value not in ("", "0", "1", "false", "true"):
        raise ValueError(f"{name}={value!r} is neither true nor false")
    return value in ("1", "true")


def _port(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise ValueError(f"{name}={text!r} is no port")
    return int(text)
