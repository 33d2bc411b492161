"""Malformed and hostile requests: each gets an error in OpenAI's format, and the server keeps running."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.serve.server import Server, letters, running
from t2r_runtime.serve.models import MAX_BODY

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "a"}]


def refused(server: Server, path: str, body: Any, status: int = 400, headers: dict[str, str] | None = None) -> Any:
    found, answer = server.ask(path, body, headers=headers)
    assert found == status, (body, answer)
    assert answer.keys() == {"error"}
    error = answer["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"].startswith("expected ")
    assert "\n" not in error["message"]
    assert len(error["message"]) < 1000
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
    return error


NO_JSON = [
    b"",
    b"{",
    b"nothing",
    b"[1]",
    b"\xff\xfe",
    b'{"prompt": NaN}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}",
    b"[" * 200_000,
    b'{"a":' * 100_000,
    b"null",
    b'"text"',
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHATS, "/v1/translate", "/tokenize", "/detokenize"])
def test_malformed_body(path: str, server: Server) -> None:
    for body in NO_JSON:
        refused(server, path, body)
    message = refused(server, path, b"{")["message"]
    assert "; received a body that is no JSON (Expecting property name" in message
    assert message.endswith(" at character 2); correct the body")
    message = refused(server, path, b'{"prompt": NaN}')["message"]
    assert message == "expected a JSON object; received NaN, which JSON does not have; correct the body"
    assert server.good("/health") == {"status": "ok"}


WRONG = [[], {}, [[]], [{}], "", "x" * 3000, -1, 1.5, 1e300, 10**30, True, [1, "a"], {"a": [1]}, "\0"]
FIELDS: dict[str, list[Any]] = {  # values of WRONG that are valid
    "prompt": ["", "x" * 3000, "\0"],
    "model": [],
    "max_tokens": [],
    "n": [],
    "best_of": [],
    "temperature": [1.5, 1e300, 10**30],
    "top_p": [],
    "top_k": [],
    "min_p": [],
    "repetition_penalty": [1.5],
    "no_repeat_ngram": [],
    "seed": [],
    "logprobs": [],
    "stop": ["\0", []],
    "session_id": ["\0"],
    "stream": [True],
    "echo": [True],
    "ignore_eos": [True],
    "return_tokens": [True],
    "stream_options": [{}],
    "presence_penalty": [1.5, -1],
    "logit_bias": [{}],
    "suffix": [""],
    "tools": [[]],
    "response_format": [{}],
    "guided_regex": [],
    "guided_choice": [],
    "structured_outputs": [{}],
}


@pytest.mark.parametrize("name", FIELDS)
def test_wrong_type_of_a_field(name: str, server: Server) -> None:
    good = FIELDS[name]
    for value in WRONG:
        if any(type(value) is type(one) and value == one for one in good):
            continue
        status = 404 if name == "model" and isinstance(value, str) else 400
        error = refused(server, COMPLETIONS, {"prompt": "a", "max_tokens": 1, name: value}, status)
        assert (error["param"] or name).startswith(name)


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"promt": "a"}, "promt"),
        ({"prompt": [11]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [[1] * (1 << 17)] * 2 + [[1]]}, "prompt"),
        ({"prompt": [[1], "a", [2.5]]}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a", "b"], "n": 128}, "prompt"),
        ({"prompt": "z"}, None),
        ({"prompt": "a", "max_tokens": 4097}, "max_tokens"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "stop": ["a"] * 17}, "stop"),
        ({"prompt": "a", "session_id": "s" * 257}, "session_id"),
        ({"prompt": "a", "stream_options": {"include": True}}, "stream_options.include"),
        ({"prompt": "a", "frequency_penalty": 2.5}, "frequency_penalty"),
        ({"prompt": "a", "logit_bias": {"11": 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"-1": 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"1": 101}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"1": None}}, "logit_bias"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "x" * 5000: 1}, "x" * 99 + "…"),
    ],
)
def test_value_of_a_field(fields: dict[str, Any], param: str | None, server: Server) -> None:
    if fields["prompt" if "prompt" in fields else "promt"] == "z":  # the tokenizer lacks this letter
        fields = {"prompt": [], "max_tokens": 1}
        param = "prompt"
    assert refused(server, COMPLETIONS, fields)["param"] == param


@pytest.mark.parametrize(
    "messages, param",
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([*HI, {}], "messages[1]"),
        ([{"role": 1, "content": "a"}], "messages[0]"),
        ([{"role": "user"}], "messages[0]"),
        ([{"role": "user", "content": 5}], "messages[0]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0]"),
        ([{"role": "user", "content": "a", "tool_calls": [{}]}], "messages[0]"),
        ([{"role": "user", "content": "a"}] * 4097, "messages"),
    ],
)
def test_wrong_messages(messages: Any, param: str, server: Server) -> None:
    assert refused(server, CHATS, {"messages": messages})["param"] == param


def test_advice_about_max_tokens(server: Server) -> None:
    message = refused(server, COMPLETIONS, {"prompt": "a", "max_tokens": 4097})["message"]
    assert message == (
        "expected an integer from 0 to 4096 as max_tokens; received 4097; "
        "request fewer, or start the server with a larger --max-tokens"
    )


def test_no_such_path_or_method(server: Server) -> None:
    refused(server, "/v1/nothing", {}, 404)
    message = refused(server, COMPLETIONS, None, 405)["message"]
    assert message.startswith(f"expected a path and a method of this server; received GET {COMPLETIONS}; use POST ")
    refused(server, "/v1/models", {}, 405)
    refused(server, "/v1/models/..%2f..%2fetc%2fpasswd", None, 404)
    refused(server, COMPLETIONS, {"prompt": "a"}, 415, {"content-type": "text/plain"})
    refused(server, COMPLETIONS, b"prompt=a", 415, {"content-type": "application/x-www-form-urlencoded"})


def test_huge_body(server: Server) -> None:
    body = json.dumps({"prompt": "a" * MAX_BODY}).encode()
    assert b" 413 " in server.raw(b"POST %s HTTP/1.1\r\nhost: localhost\r\n" % COMPLETIONS.encode() + head(len(body)))
    for size in (b"-1", b"9" * 40, b"a"):
        found = server.raw(
            b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" % COMPLETIONS.encode()
            + b"content-length: %s\r\n\r\n" % size
        )
        assert found.startswith(b"HTTP/1.1 4")
    chunk = b"%x\r\n%s\r\n" % (1 << 16, b" " * (1 << 16))
    start = (
        b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    found = server.raw(start % COMPLETIONS.encode() + chunk * (MAX_BODY // (1 << 16) + 1) + b"0\r\n\r\n")
    assert b" 413 " in found
    assert server.good("/health") == {"status": "ok"}


def head(size: int) -> bytes:
    return b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % size


def test_bytes_that_are_no_http(server: Server) -> None:
    noise = random.Random(1)
    for data in (
        b"\r\n\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 100_000,
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 20_000,
        noise.randbytes(5000),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/completions HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    ):
        server.raw(data)
        assert server.good("/health") == {"status": "ok"}
    assert not server.said  # neither a traceback nor advice


def test_encoded_body(server: Server) -> None:
    status, answer = server.ask(
        COMPLETIONS, b"{}", headers={"content-type": "application/json", "content-encoding": "gzip"}
    )
    assert status == 415 and "a body without content-encoding; received gzip" in answer["error"]["message"]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


@settings(max_examples=100)
@given(
    fields=st.dictionaries(st.sampled_from([*FIELDS, "messages", "logprobs", "top_logprobs"]), ANYTHING, max_size=4),
    path=st.sampled_from([COMPLETIONS, CHATS, "/tokenize", "/detokenize", "/v1/translate"]),
)
def test_any_fields_are_answered_or_refused(fields: dict[str, Any], path: str, server: Server) -> None:
    status, _ = server.ask(path, json.dumps({"prompt": "a", "max_tokens": 2, **fields}).encode())
    assert status in (200, 400, 404)


def test_api_key(graph: Path) -> None:
    with running(graph, environment={"T2R_API_KEY": "s3cret"}) as server:
        assert server.good("/health") == {"status": "ok"}
        for given in (
            {},
            {"authorization": "Bearer s3cre"},
            {"authorization": "s3cret"},
            {"authorization": "Bearer ü"},
        ):
            for path, body in ((COMPLETIONS, {"prompt": "a"}), ("/v1/models", None), ("/metrics", None)):
                headers = {"content-type": "application/json", **{k: v.encode("latin-1") for k, v in given.items()}}
                assert refused(server, path, body, 401, headers)["code"] == "invalid_api_key"
        key = {"content-type": "application/json", "authorization": "Bearer s3cret"}
        assert server.ask(COMPLETIONS, {"prompt": "a"}, headers=key)[0] == 200


def test_session_names_are_no_paths(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    with running(letters(tmp_path), "--keep", keep) as server:
        for name in ("../../out", "/etc/passwd", "a\0b", "..", ".", "C:\\x", "ü" * 256, "%2e%2e/", "x\n"):
            server.complete("abc", session_id=name, max_tokens=2, ignore_eos=True)
            assert server.complete("abcd", session_id=name, max_tokens=1)["usage"]["prompt_tokens_details"] == {
                "cached_tokens": 2
            }
    assert {path.name for path in tmp_path.iterdir()} == {"letters.onnx", "keep"}
    files = [path for path in keep.rglob("*") if path.is_file()]
    assert len(files) == 36, "two of each request"
    assert all(len(path.parent.name) == 2 and path.name.startswith(path.parent.name) for path in files)
