"""Requests to other names than the server's, of other sites' pages, or without its key are refused."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from cli_models import Output
from runtime.serve.server import JSON, letters, running
from t2r_runtime.cli import main
from t2r_runtime.serve.access import Access
from t2r_runtime.serve.errors import ApiError

OURS = ["localhost", "localhost:8080", "LocalHost.:9", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:8080", "box:1"]
ADDRESSES = ["192.168.1.7", "10.0.0.1:8080", "[2001:db8::7]:8080", "0.0.0.0:8080"]
FOREIGN = [
    "evil.example",
    "evil.example:8080",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil@localhost",
    "localhost:8080@evil.example",
    "localhost/",
    "[::1",
    "::1",
    "127.0.0.1:8080, localhost",
    "",
]
HERE = Access(frozenset({"box"}))
BEYOND = Access(frozenset({"box"}), frozenset({"models.example.com", "2001:db8::9"}), addresses=True)


def refused(access: Access, **headers: str) -> str | None:
    """The message of a refusal."""
    try:
        access.check(headers)
    except ApiError as error:
        return error.message if (error.status, error.code) == (403, "forbidden_host") else None
    return None


@pytest.mark.parametrize(
    "access, accepted, others",
    [
        (HERE, OURS, [*ADDRESSES, *FOREIGN, "models.example.com"]),
        (BEYOND, [*OURS, *ADDRESSES, "models.example.com:443", "[2001:DB8::9]"], FOREIGN),
        (Access(allowed=frozenset({"*"})), [*OURS, *ADDRESSES, *FOREIGN], []),
    ],
)
def test_host(access: Access, accepted: list[str], others: list[str]) -> None:
    assert [host for host in accepted if refused(access, host=host)] == []
    assert [host for host in others if not refused(access, host=host)] == []


@pytest.mark.parametrize(
    "host, origin, good",
    [
        ("localhost:8080", "http://localhost:8080", True),
        ("localhost:8080", "http://LOCALHOST:8080", True),
        ("localhost:8080", "http://localhost:3000", False),
        ("localhost:8080", "http://127.0.0.1:8080", False),
        ("localhost:8080", "https://evil.example", False),
        ("localhost:8080", "null", False),
        ("localhost:8080", "", False),
        ("192.168.1.7:8080", "http://192.168.1.7:8080", True),
        ("192.168.1.7:8080", "http://192.168.1.8:8080", False),
        ("models.example.com", "https://models.example.com", True),
        ("127.0.0.1:8080", "https://models.example.com", True),
        ("127.0.0.1:8080", "https://models.example.com:444", True),
        ("127.0.0.1:8080", "https://models.example.com.evil.example", False),
    ],
)
def test_origin(host: str, origin: str, good: bool) -> None:
    assert (refused(BEYOND, host=host, origin=origin) is None) == good
    assert refused(Access(allowed=frozenset({"*"})), host=host, origin=origin) is None


def test_what_a_refusal_says() -> None:
    assert refused(HERE, host="evil.example:8080") == (
        "expected a request to a name of this server; received Host: evil.example:8080; "
        "start the server with --allow-host evil.example to allow it"
    )
    assert refused(HERE, host="box", origin="http://a.example:3000") == (
        "expected no request of another page; received Origin: http://a.example:3000; "
        "start the server with --allow-host a.example to allow it"
    )
    assert refused(HERE) == "expected a request to a name of this server; received no Host; send another"


def test_served_names(graph: Path) -> None:
    """A probe may ask /health by any name."""
    with running(graph, "--allow-host", "Models.Example.com", "--api-key", "k") as server:
        for host, status in (("models.example.com", 200), ("localhost:1", 200), ("evil.example", 403)):
            headers = {**JSON, "host": host, "authorization": "Bearer k"}
            assert server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=headers)[0] == status
            assert server.ask("/metrics", headers=headers)[0] == status
            assert server.ask("/health", headers=headers)[0] == 200
        assert (
            server.ask("/v1/models", headers={"origin": "http://evil.example", "authorization": "Bearer k"})[0] == 403
        )


def test_server_of_other_machines(graph: Path) -> None:
    with running(graph, "--host", "0.0.0.0") as server:
        for host, status in (("192.168.1.7:8080", 200), ("evil.example", 403)):
            assert server.ask("/v1/models", headers={"host": host})[0] == status


@pytest.mark.parametrize("name", ["https://a.example", "a.example:80", "a/b", "", "[::1]", "a,b"])
def test_names_that_are_refused(name: str, tmp_path: Path, capsys: Output) -> None:
    assert main(["serve", str(letters(tmp_path)), "--allow-host", name]) == 2
    assert "expected a host name or * as --allow-host; received " in capsys.readouterr().err


def test_page_needs_no_key_and_loads_nothing_else(tmp_path: Path) -> None:
    """A browser cannot send the key before the page has asked for it."""
    with running(letters(tmp_path), "--api-key", "sesame") as server, closing(server.connection()) as connection:
        connection.request("GET", "/")
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200 and response.getheader("content-type") == "text/html; charset=utf-8"
        assert "default-src 'none'" in str(response.getheader("content-security-policy"))
        assert "sesame" not in text
    assert not re.search(r"(src|href)=\"(?!data:)|https?://|innerHTML", text)
