"""A member before it runs: its folders, its secrets, its configuration, its free port."""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

from ebbtide_api.member import MemberConfig
from ebbtide_api.server import InferenceServer

from ebbtide_operator.specs import member_config

from .files import keep_secret, private_folder, read_or_none, write_atomic
from .layout import Layout
from .processes import mark_of, recorded

log = logging.getLogger("ebbtide.birth")


@dataclass(frozen=True)
class Birth:
    """What a member runs with. `digest` names the configuration: another digest is another member process."""

    config: MemberConfig
    path: Path
    token: str

    @property
    def digest(self) -> str:
        """A digest of the configuration."""
        return hashlib.sha256(json.dumps(self.config.wire(), sort_keys=True).encode()).hexdigest()[:16]


def prepare(server: InferenceServer, ordinal: int, layout: Layout, ports: tuple[int, int]) -> Birth:
    """Make a member's folders and files, and keep what was made before: uid, port, secrets. Raises OSError."""
    name = f"{server.name}-{ordinal}"
    home = private_folder(layout.member(name))
    fresh = not layout.member_memory(name).exists()
    private_folder(layout.member_memory(name))
    private_folder(layout.handoff(server.group))
    if fresh:
        forget_weights(home)
    before = known_config(home)
    port = before.agent_port if before and _usable(before.agent_port, home) else free_port(name, ports)
    config = member_config(server, ordinal, layout, uid=before.uid if before else uuid.uuid4().hex, agent_port=port)
    keep_secret(home / "secret")
    token = keep_secret(home / "token")
    path = home / "member.json"
    write_atomic(path, json.dumps(config.wire(), indent=1).encode())
    return Birth(config, path, token)


def wanted(server: InferenceServer, ordinal: int, layout: Layout, born: Birth) -> bool:
    """Say whether a member runs as its server asks now."""
    config = member_config(server, ordinal, layout, uid=born.config.uid, agent_port=born.config.agent_port)
    return config == born.config


def known_config(home: Path) -> MemberConfig | None:
    """Return the configuration that a member was given before, if it can be read."""
    data = read_or_none(home / "member.json")
    try:
        return MemberConfig.model_validate_json(data) if data else None
    except ValueError:
        log.warning("%s cannot be used and is written anew", home / "member.json")
        return None


def forget_weights(home: Path) -> None:
    """Start a member from its model's source: published weights went with the memory folder.

    What the agent remembers names copies that are gone. The epoch it remembers is in the group's record too.
    """
    state = home / "state.json"
    if lost := _committed(state):
        log.warning("version %d went with the memory folder: %s starts from its model's source", lost, home.name)
    state.unlink(missing_ok=True)


def _committed(state: Path) -> int:
    try:
        return int(json.loads(read_or_none(state) or b"{}")["committed"]["version"])
    except (ValueError, KeyError, TypeError):
        return 0


def free_port(name: str, ports: tuple[int, int]) -> int:
    """Return a port that nobody listens on, the same one for a name whenever it is free. Raises OSError."""
    low, high = ports
    first = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % (high - low)
    for step in range(high - low):
        port = low + (first + step) % (high - low)
        if _is_free(port):
            return port
    raise OSError(f"no free port between {low} and {high}")


def _usable(port: int, home: Path) -> bool:
    # A port that is taken is ours while our agent of before lives: it is about to be adopted, or ended.
    return _is_free(port) or recorded(mark_of(home, "agent")) is not None


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
