"""The log has one line per request."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from runtime.serve.server import letters, within

COMPLETIONS = "/v1/completions"


def test_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whole answers, streams, refused requests, unknown paths and clients that go away; not /health."""
    with within(letters(tmp_path), log="json") as client:
        answer = client.complete([1, 2, 3], max_tokens=2, ignore_eos=True)
        with client.stream(prompt=[1, 2, 3], max_tokens=2, ignore_eos=True) as events:
            list(events)
        client.ask(COMPLETIONS, {"prompt": "a", "n": 0})
        client.ask("/health")
        client.ask("/v1/none")
        with client.stream(prompt=[1], max_tokens=4000, ignore_eos=True) as events:
            next(events)
        client.until("t2r_cancelled_total", 1)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    lines = [line for line in lines if line["path"] != "/metrics"]
    assert [line["status"] for line in lines] == [200, 200, 400, 404, 499]
    assert [line["path"] for line in lines] == [COMPLETIONS] * 3 + ["/v1/none", COMPLETIONS]
    whole, streamed, refused, _, gone = lines
    assert whole["id"] == answer["id"]
    counts = ("model", "prompt_tokens", "completion_tokens", "cached_tokens")
    assert [whole[name] for name in counts] == ["letters", 3, 2, 0]
    assert [streamed[name] for name in counts] == ["letters", 3, 2, 2]
    assert 0 < gone["completion_tokens"] < 4000
    assert refused.keys() == {"time", "method", "path", "status", "milliseconds"}
    assert all(line["milliseconds"] >= 0 and line["time"].endswith("Z") for line in lines)


def test_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with within(letters(tmp_path), log="text") as client:
        client.complete([1, 2, 3], max_tokens=2, ignore_eos=True)
        client.ask("/v1/%1b%0a")
    form = r"(\S+Z) POST /v1/completions 200 id=cmpl-\w+ model=letters prompt_tokens=3 completion_tokens=2 "
    form += r"cached_tokens=0 milliseconds=\d+\.\d\n\S+Z GET /v1/\S+ 404 milliseconds=\d+\.\d\n"
    assert re.fullmatch(form, capfd.readouterr().err)
