"""Which launch may be granted the device."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import GrantRequest
from ebbtide_runtime.agent.probe import Identity
from ebbtide_runtime.agent.steps.simple import Grant


def grant(asked: int, *, present: int, noticed: int) -> Grant:
    member: Any = SimpleNamespace(page={6: present}, identity=Identity(noticed, 0, 0))
    return Grant(member, GrantRequest(boot=asked))


def test_the_present_launch_is_granted_once_it_was_noticed() -> None:
    asyncio.run(grant(2, present=2, noticed=2).prepare())


@pytest.mark.parametrize(("asked", "present", "noticed"), [(1, 2, 2), (3, 2, 2), (2, 2, 1)])
def test_any_other_launch_is_refused(asked: int, present: int, noticed: int) -> None:
    """One that was not noticed yet would be Starting for a moment, then PendingDevice while its engine runs."""
    with pytest.raises(EbbtideError) as refused:
        asyncio.run(grant(asked, present=present, noticed=noticed).prepare())
    assert refused.value.code is ErrorCode.INSTANCE_REPLACED
