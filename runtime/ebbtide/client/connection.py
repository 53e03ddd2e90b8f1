"""Finds the gateway: from arguments, the environment, or what `ebbtide up` wrote into its home."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ebbtide_api.errors import EbbtideError, ErrorCode

URL = "EBBTIDE_URL"
TOKEN = "EBBTIDE_TOKEN"  # noqa: S105 - a variable's name
TOKEN_FILE = "EBBTIDE_TOKEN_FILE"  # noqa: S105
CA_FILE = "EBBTIDE_CA_FILE"
HOME = "EBBTIDE_HOME"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
OPERATOR = "operator.json"


@dataclass(frozen=True)
class Connection:
    """Where the gateway is, and what opens it. `source` says who told us, for error messages.

    `token_path` is a file that may be replaced at any time, `ca` the root certificates of a gateway with TLS.
    """

    url: str
    token: str = ""
    source: str = "the arguments"
    token_path: str = ""
    ca: str = ""

    @property
    def local(self) -> bool:
        """Whether the gateway is on this machine: then no proxy is asked."""
        return urlsplit(self.url).hostname in {"127.0.0.1", "localhost", "::1"}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every call, with the token as it is now."""
        token = self._fresh() or self.token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _fresh(self) -> str:
        try:
            return Path(self.token_path).read_text(encoding="utf-8").strip() if self.token_path else ""
        except OSError:
            return ""  # between two versions of it: the last one known is good for a while


def home_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the home of the local operator: $EBBTIDE_HOME, else ./.ebbtide."""
    return Path(environ.get(HOME) or ".ebbtide").absolute()


def find(url: str | None = None, token: str | None = None, environ: Mapping[str, str] = os.environ) -> Connection:
    """Return the gateway to use. Raises UNREACHABLE, saying where it was looked for."""
    address = url or environ.get(URL)
    if address is None:
        return from_home(home_folder(environ), environ)
    secret, place = (token, "") if token else _secret(environ, address)
    source = "the arguments" if url else URL
    return Connection(address.rstrip("/"), secret, source, place, environ.get(CA_FILE, ""))


def _secret(environ: Mapping[str, str], address: str) -> tuple[str, str]:
    """Return the token and its file: as told, else that of the pod's ServiceAccount. Only TLS keeps that one secret."""
    named = environ.get(TOKEN_FILE, "") if not environ.get(TOKEN) else ""
    token = _token(environ)
    if token or named or not address.startswith("https:") or not SERVICE_ACCOUNT.is_file():
        return token, named
    return _token(environ, SERVICE_ACCOUNT), str(SERVICE_ACCOUNT)


def from_home(home: Path, environ: Mapping[str, str] = os.environ) -> Connection:
    """Return the gateway of the operator that runs in `home`. Raises UNREACHABLE if none does."""
    path = home / OPERATOR
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        url, pid = str(record["url"]), int(record["pid"])
        token_path = Path(record.get("tokenPath") or record.get("token_path") or home / "token")
    except FileNotFoundError:
        raise _nowhere(f"no gateway was found: {URL} is not set, and {path} does not exist.") from None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise _nowhere(f"{path} cannot be read ({problem}).") from problem
    if not Path("/proc", str(pid)).exists():
        raise _nowhere(f"the operator that wrote {path} (pid {pid}) is gone.")
    return Connection(url.rstrip("/"), _token(environ, token_path), str(path))


def _token(environ: Mapping[str, str], default: Path | None = None) -> str:
    if token := environ.get(TOKEN):
        return token
    named = environ.get(TOKEN_FILE)
    path = Path(named) if named else default
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as problem:
        message = f"the token file {path} cannot be read ({problem.strerror})."
        raise EbbtideError(ErrorCode.UNAUTHENTICATED, message) from problem


def _nowhere(message: str) -> EbbtideError:
    return EbbtideError(ErrorCode.UNREACHABLE, message, next_action=f"Run `ebbtide up -f server.yaml`, or set {URL}.")
