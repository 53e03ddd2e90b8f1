"""Members for tests: a member.json, a secret, and folders to live in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ebbtide_api.member import MemberConfig

SECRET = "a secret for tests, long enough"


def member_config(folder: Path, **changes: Any) -> MemberConfig:
    """Return a member that lives under `folder`."""
    plain: dict[str, Any] = {
        "name": "chat-0",
        "uid": "uid-chat-0",
        "server": "chat",
        "group": "actor",
        "ordinal": 0,
        "home": str(folder / "home"),
        "memory": str(folder / "memory"),
        "handoff": str(folder / "handoff"),
        "data_port": 8000,
        "agent_port": 8001,
        "model": str(folder / "model"),
        "served_name": "tiny",
        "device_budget": 0,
    }
    return MemberConfig(**{**plain, **changes})


def write_member(folder: Path, secret: str = SECRET, **changes: Any) -> Path:
    """Write a member's file and secret, and return the file's path."""
    member = member_config(folder, **changes)
    home = Path(member.home)
    home.mkdir(parents=True, exist_ok=True)
    Path(member.memory).mkdir(parents=True, exist_ok=True)
    Path(member.secret_path).write_text(secret)
    path = home / "member.json"
    path.write_text(json.dumps(member.wire()))
    return path
