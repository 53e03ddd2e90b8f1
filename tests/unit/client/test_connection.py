"""How the gateway is found."""

import json
import os
import ssl
from pathlib import Path

import pytest
from ebbtide import EbbtideError, ErrorCode
from ebbtide.client import connection
from ebbtide.client.connection import Connection, find, from_home, home_folder
from ebbtide.client.runners import options


def write_home(home: Path, **changes: object) -> Path:
    home.mkdir(exist_ok=True)
    (home / "token").write_text("from-the-file\n")
    record = {"url": "http://127.0.0.1:7411/", "pid": os.getpid(), "tokenPath": str(home / "token"), **changes}
    (home / "operator.json").write_text(json.dumps(record))
    return home


def test_arguments_win() -> None:
    found = find("http://here:1/", "secret", {"EBBTIDE_URL": "http://there:2", "EBBTIDE_TOKEN": "other"})
    assert (found.url, found.token) == ("http://here:1", "secret")
    assert found.headers == {"Authorization": "Bearer secret"}


def test_the_environment_is_next(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("  filed \n")
    environ = {"EBBTIDE_URL": "http://there:2", "EBBTIDE_HOME": str(write_home(tmp_path / "home"))}
    assert find(environ=environ).headers == {}
    assert find(environ={**environ, "EBBTIDE_TOKEN_FILE": str(token)}).token == "filed"
    assert find(environ={**environ, "EBBTIDE_TOKEN": "plain", "EBBTIDE_TOKEN_FILE": str(token)}).token == "plain"
    assert find(environ=environ).source == "EBBTIDE_URL"


def test_a_token_file_is_read_anew_with_every_call(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    found = find("https://there", environ={"EBBTIDE_TOKEN_FILE": str(token), "EBBTIDE_CA_FILE": "/ca.crt"})
    assert (found.headers, found.ca) == ({"Authorization": "Bearer one"}, "/ca.crt")
    token.write_text("two\n")
    assert found.headers == {"Authorization": "Bearer two"}
    token.unlink()
    assert found.headers == {"Authorization": "Bearer one"}


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_roots_that_cannot_be_used_are_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "ca.crt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(EbbtideError) as caught:
        options(Connection("https://there", ca=str(path)))
    assert (str(path) in caught.value.message, "EBBTIDE_CA_FILE" in caught.value.next_action) == (True, True)


def test_certificates_are_loaded_for_https_alone() -> None:
    assert options(Connection("http://there"))["verify"].get_ca_certs() == []
    assert options(Connection("https://there"))["verify"].verify_mode is ssl.CERT_REQUIRED


def test_in_a_pod_the_service_accounts_token_is_taken_but_never_without_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = tmp_path / "token"
    monkeypatch.setattr(connection, "SERVICE_ACCOUNT", account)
    assert find("https://there", environ={}).headers == {}
    account.write_text("the pod's")
    assert find("https://there", environ={}).headers == {"Authorization": "Bearer the pod's"}
    assert find("http://there", environ={}).headers == {}
    assert find("https://there", environ={"EBBTIDE_TOKEN": "mine"}).headers == {"Authorization": "Bearer mine"}
    assert find("https://there", "given", {}).headers == {"Authorization": "Bearer given"}


def test_the_home_of_the_local_operator_is_last(tmp_path: Path) -> None:
    home = write_home(tmp_path / "home")
    found = find(environ={"EBBTIDE_HOME": str(home)})
    assert (found.url, found.token) == ("http://127.0.0.1:7411", "from-the-file")
    assert found.source == str(home / "operator.json")


def test_the_home_is_in_the_current_folder_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_home(tmp_path / ".ebbtide")
    assert home_folder({}) == tmp_path / ".ebbtide"
    assert find(environ={}).token == "from-the-file"


def test_both_spellings_of_the_token_path_are_read(tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.write_text("elsewhere")
    home = write_home(tmp_path / "home", tokenPath=None, token_path=str(other))
    assert from_home(home, {}).token == "elsewhere"


def test_nothing_found_says_where_it_looked_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EbbtideError) as caught:
        find(environ={"EBBTIDE_HOME": str(tmp_path)})
    assert caught.value.code is ErrorCode.UNREACHABLE
    assert str(tmp_path / "operator.json") in caught.value.message
    assert "ebbtide up" in caught.value.next_action


@pytest.mark.parametrize("text", ["{", "[]", '{"url": "x"}', '{"url": "x", "pid": "y"}', "\x00"])
def test_a_torn_record_is_told_by_its_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "operator.json").write_text(text)
    with pytest.raises(EbbtideError, match="cannot be read"):
        from_home(tmp_path, {})


def test_an_operator_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(EbbtideError, match="is gone"):
        from_home(write_home(tmp_path / "home", pid=2**22 + 1), {})


def test_an_unreadable_token_is_told(tmp_path: Path) -> None:
    home = write_home(tmp_path / "home", tokenPath=str(tmp_path / "missing"))
    with pytest.raises(EbbtideError) as caught:
        from_home(home, {})
    assert caught.value.code is ErrorCode.UNAUTHENTICATED
    assert str(tmp_path / "missing") in caught.value.message


@pytest.mark.parametrize(
    ("url", "local"),
    [("http://127.0.0.1:1", True), ("http://localhost:1", True), ("http://[::1]:1", True), ("http://gateway:1", False)],
)
def test_no_proxy_is_asked_for_this_machine(url: str, local: bool) -> None:
    assert find(url, environ={}).local is local
