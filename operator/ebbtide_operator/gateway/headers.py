"""What a caller says beside the body. Raises INVALID_REQUEST that names the header or the parameter."""

from __future__ import annotations

import re
from typing import Annotated

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import DEADLINE, EPOCH, IDEMPOTENCY_KEY
from fastapi import Depends, Request

from ebbtide_operator.commands import Asked
from ebbtide_operator.plan import PodRef

POD = "ebbtide.pod"
"""Where the scope of a request has the pod of its caller: not a header, which anybody could send."""
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_EPOCH = re.compile(r"[0-9]{1,18}")
_SECONDS = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)s?")


def asked(request: Request) -> Asked:
    """Return the headers of a mutating call."""
    epoch = _header(request, EPOCH, _EPOCH, "a number")
    deadline = _header(request, DEADLINE, _SECONDS, "a time in seconds")
    pod = request.scope.get(POD)
    return Asked(
        key=_header(request, IDEMPOTENCY_KEY, _KEY, "1 to 128 characters of A-Z, a-z, 0-9 and ._:-"),
        epoch=int(epoch) if epoch else None,
        deadline=float(deadline.rstrip("s")) or None if deadline else None,
        pod=pod if isinstance(pod, PodRef) else None,
    )


def _header(request: Request, name: str, pattern: re.Pattern[str], what: str) -> str | None:
    value = request.headers.get(name)
    if value is not None and not pattern.fullmatch(value.strip()):
        raise EbbtideError(ErrorCode.INVALID_REQUEST, f"the header {name} must be {what}", field=name)
    return value.strip() if value is not None else None


def waited(request: Request) -> float:
    """Return how long a caller is willing to wait for a change (?wait=30 or 30s), in seconds."""
    text = request.query_params.get("wait", "0")
    match = _SECONDS.fullmatch(text)
    if match is None:
        raise EbbtideError(ErrorCode.INVALID_REQUEST, "wait must be a time in seconds, such as 30s", field="wait")
    longest: float = request.app.state.operator.settings.longest_wait
    return min(float(match[1]), longest)


AskedHeaders = Annotated[Asked, Depends(asked)]
Waited = Annotated[float, Depends(waited)]
