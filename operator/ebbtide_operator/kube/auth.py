"""Who calls the gateway, and whether they may: TokenReview, then LocalSubjectAccessReview. Answers are kept a while.

lend, reclaim, leases, steps   verb create on inferenceservers/lend, for every server that is concerned
reading                        verb get on inferenceservers
an agent's enrolment           the engine pods' ServiceAccount, with a token that is bound to the pod
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from ebbtide_api.errors import EbbtideError, ErrorCode

from .kinds import ACCESS_REVIEWS, SERVERS, TOKEN_REVIEWS, Api, ApiError
from .names import GATEWAY_AUDIENCE, Json
from .objects import dig, text

P = ParamSpec("P")
T = TypeVar("T")
KEPT_S = 30.0
"""Seconds that an answer is kept: a right that was taken away is felt that late."""
KEPT = 4096
_SCHEME = "bearer "
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"


@dataclass(frozen=True)
class Caller:
    """Somebody whom the API server knows."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        """The namespace of a ServiceAccount; empty for others."""
        parts = self.name.split(":")
        return parts[2] if len(parts) == 4 and parts[:2] == ["system", "serviceaccount"] else ""

    @property
    def pod(self) -> tuple[str, str]:
        """The name and the UID of the pod that the token is bound to; empty if it is bound to none."""
        return _first(self.extra.get(_POD_NAME)), _first(self.extra.get(_POD_UID))

    def is_engine(self, account: str) -> bool:
        """Say whether it is an engine's pod that speaks, by its ServiceAccount and a token that is bound to the pod."""
        return self.name == f"system:serviceaccount:{self.namespace}:{account}" and all(self.pod)


def _first(values: Sequence[str] | None) -> str:
    return values[0] if values else ""


class Authenticator:
    """Asks the API server. Raises EbbtideError: UNAUTHENTICATED, FORBIDDEN, or UNREACHABLE when it does not answer."""

    def __init__(self, api: Api, audiences: Sequence[str] = (GATEWAY_AUDIENCE,)) -> None:
        self._api, self._audiences = api, tuple(audiences)
        self._callers: dict[str, tuple[Caller, float]] = {}
        self._allowed: dict[tuple[str, ...], float] = {}

    async def caller(self, authorization: str | None) -> Caller:
        """Return who sends an Authorization header."""
        given = authorization or ""
        if given[: len(_SCHEME)].lower() != _SCHEME or not (token := given[len(_SCHEME) :].strip()):
            raise _unknown("the gateway wants `Authorization: Bearer` with a ServiceAccount's token")
        # The token itself is kept nowhere.
        digest = hashlib.sha256(token.encode()).hexdigest()
        known = self._callers.get(digest)
        if known and time.monotonic() < known[1]:
            return known[0]
        caller = await _ask(self._review, token)
        self._callers[digest] = (caller, time.monotonic() + KEPT_S)
        _trim(self._callers)
        return caller

    def _review(self, token: str) -> Caller:
        spec: Json = {"token": token, "audiences": list(self._audiences)}
        body: Json = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": TOKEN_REVIEWS.kind, "spec": spec}
        status = dig(self._api.create(TOKEN_REVIEWS, "", body), "status")
        accepted = dig(status, "audiences")
        # An API server that knows no audiences accepts any token: its answer names none of ours then.
        if dig(status, "authenticated") is not True or not set(_strings(accepted)) & set(self._audiences):
            why = text(status, "error") or f"it is not for the audience {' or '.join(self._audiences)}"
            raise _unknown(f"the token is not accepted: {why}")
        return _caller(dig(status, "user"))

    async def require(self, caller: Caller, namespace: str, verb: str, names: Sequence[str], subresource: str) -> None:
        """Raise FORBIDDEN unless the caller may do `verb` to every named server of a namespace."""
        for name in names or ("",):
            key = (caller.name, caller.uid, namespace, verb, name, subresource)
            if time.monotonic() < self._allowed.get(key, 0.0):
                continue
            if not await _ask(self._may, caller, namespace, verb, name, subresource):
                raise _forbidden(caller, namespace, verb, name, subresource)
            self._allowed[key] = time.monotonic() + KEPT_S
            _trim(self._allowed)

    def _may(self, caller: Caller, namespace: str, verb: str, name: str, subresource: str) -> bool:
        wanted: Json = {
            "namespace": namespace,
            "verb": verb,
            "group": SERVERS.group,
            "version": SERVERS.version,
            "resource": SERVERS.plural,
            "subresource": subresource,
            "name": name,
        }
        spec: Json = {
            "resourceAttributes": {key: value for key, value in wanted.items() if value},
            "user": caller.name,
            "uid": caller.uid,
            "groups": list(caller.groups),
            "extra": {key: list(values) for key, values in caller.extra.items()},
        }
        body: Json = {"apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind, "spec": spec}
        body["metadata"] = {"namespace": namespace}
        status = dig(self._api.create(ACCESS_REVIEWS, namespace, body), "status")
        return dig(status, "allowed") is True and dig(status, "denied") is not True


async def _ask(question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return await asyncio.to_thread(question, *args, **kwargs)
    except ApiError as error:
        raise EbbtideError(ErrorCode.UNREACHABLE, f"the API server could not be asked who calls: {error}") from error


def _caller(user: object) -> Caller:
    extra = dig(user, "extra")
    found = {str(key): tuple(_strings(values)) for key, values in extra.items()} if isinstance(extra, dict) else {}
    return Caller(text(user, "username"), text(user, "uid"), tuple(_strings(dig(user, "groups"))), found)


def _strings(values: object) -> list[str]:
    return [value for value in values if isinstance(value, str)] if isinstance(values, list | tuple) else []


def _unknown(message: str) -> EbbtideError:
    return EbbtideError(
        ErrorCode.UNAUTHENTICATED,
        message,
        next_action=f"Mount a projected ServiceAccount token with audience {GATEWAY_AUDIENCE} and send it.",
    )


def _forbidden(caller: Caller, namespace: str, verb: str, name: str, subresource: str) -> EbbtideError:
    what = f"{SERVERS.plural}/{subresource}" if subresource else SERVERS.plural
    which = f" {name}" if name else ""
    message = f"{caller.name} may not {verb} {what}{which} in namespace {namespace}"
    return EbbtideError(
        ErrorCode.FORBIDDEN, message, verb=verb, resource=what, apiGroup=SERVERS.group, namespace=namespace, name=name
    )


def _trim(kept: dict[Any, Any]) -> None:
    while len(kept) > KEPT:
        kept.pop(next(iter(kept)))
