"""Where the operator runs, as far as children must know it."""

from __future__ import annotations

from dataclasses import dataclass

from ..names import ENGINE_ACCOUNT, OPERATOR_ACCOUNT


@dataclass(frozen=True)
class Site:
    """One installation. `image` is our own; `gateway_ca` is the PEM of whoever signed the gateway's certificate."""

    namespace: str
    image: str
    pull_policy: str = ""
    pull_secrets: tuple[str, ...] = ()
    account: str = OPERATOR_ACCOUNT
    engine_account: str = ENGINE_ACCOUNT
    gateway_url: str = ""
    gateway_ca: str = ""

    @property
    def operator(self) -> str:
        """The operator's name as the API server knows it, which agents expect in a token."""
        return f"system:serviceaccount:{self.namespace}:{self.account}"
