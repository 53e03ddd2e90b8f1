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
HOME = "EBBTIDE_HOME"
OPERATOR = "operator.json"


@dataclass(frozen=True)
class Connection:
    """Where the gateway is, and what opens it. `source` says who told us, for error messages."""

    url: str
    token: str = ""
    source: str = "the arguments"

    @property
    def local(self) -> bool:
        """Whether the gateway is on this machine: then no proxy is asked."""
        return urlsplit(self.url).hostname in {"127.0.0.1", "localhost", "::1"}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every call."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def home_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the home of the local operator: $EBBTIDE_HOME, else ./.ebbtide."""
    return Path(environ.get(HOME) or ".ebbtide").absolute()


def find(url: str | None = None, token: str | None = None, environ: Mapping[str, str] = os.environ) -> Connection:
    """Return the gateway to use. Raises UNREACHABLE, saying where it was looked for."""
    address = url or environ.get(URL)
    if address is None:
        return from_home(home_folder(environ), environ)
    secret = token or _token(environ)
    return Connection(address.rstrip("/"), secret, "the arguments" if url else URL)


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
