"""Who may call."""

from pathlib import Path

import pytest
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_runtime.agent.auth import Bearer

BEARER = Bearer("token-1")


@pytest.mark.parametrize("header", ["Bearer token-1", "bearer token-1", "BEARER token-1"])
def test_the_token_opens(header: str) -> None:
    BEARER.check(header)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "token-1",
        "Bearer",
        "Bearer ",
        "Bearer token-",
        "Bearer token-11",
        "Bearer  token-1",
        "Basic token-1",
        "é",
    ],
)
def test_nothing_else_opens(header: str | None) -> None:
    with pytest.raises(EbbtideError) as caught:
        BEARER.check(header)
    assert caught.value.code is ErrorCode.UNAUTHENTICATED
    assert "token-1" not in str(caught.value)


def test_the_token_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    Bearer.from_file(str(tmp_path / "token")).check("Bearer abc")


def test_an_empty_token_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ValueError, match="everybody"):
        Bearer.from_file(str(tmp_path / "token"))


def test_the_token_is_not_shown() -> None:
    assert "token-1" not in repr(BEARER)
