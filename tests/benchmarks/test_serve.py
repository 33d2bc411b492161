"""benchmarks/comparison/serve.py and soak.py, with tiny models, real servers, and a stand-in for llama.cpp's."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import small
from comparison import servers
from comparison.engines import Files
from comparison.serve import ServePlan, bench_serve
from comparison.servers import LlamaServer, Place
from comparison.soak import SoakPlan, bench_soak
from comparison.streams import rate, streams
from comparison.tables import tables
from t2r_export.checkpoints import checkpoint
from t2r_export.errors import CheckFailed
from t2r_runtime.errors import UserError

pytestmark = pytest.mark.slow

# answers like llama-server and logs requests to a file
LLAMA = """#!{python}
import http.server, json, sys

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with open(options["--slot-save-path"] + "/asked", "a") as file:
            print(json.dumps([self.path, body]), file=file)
        self.send_response(200)
        self.end_headers()
        for token in range(body.get("n_predict", 0)):
            self.wfile.write(b'data: {{"content": "a"}}\\n\\n')

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"main: listening on http://127.0.0.1:{{server.server_port}}", flush=True)
server.serve_forever()
"""


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake `llama-server` on the PATH."""
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text(LLAMA.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    fake = dataclasses.replace(servers.LLAMA, modules=(), make=lambda candidate, size, folder: Files(folder / "m", 1))
    monkeypatch.setitem(servers.ENGINES, "llama-server", fake)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    loaded = small.checkpoint(small.with_layers(small.LLAMA, small.linear(positions="drop"), small.LINEAR))
    checkpoint.save(tmp_path / "small.pt", loaded.model, None, {})
    return tmp_path / "small.pt"


@pytest.mark.usefixtures("tiny", "llama")
def test_servers_side_by_side(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comparison.decode.SETTLE", 0)
    monkeypatch.setattr("comparison.serve.rate", lambda times: len(times) / times[0][-1])  # streams do not overlap
    engines = ("t2r:w4", "llama-server:Q4_0")
    counts: dict[str, Any] = {"streams": (2,), "contexts": (4, 9), "rounds": 1, "tokens": 5, "threads": 1}
    rare: dict[str, Any] = {"prefix": 20, "prefix_rounds": 1, "sessions": 20, "sessions_model": str(model)}
    result = bench_serve(ServePlan(size="tiny", engines=engines, **counts, **rare))
    ours, theirs = engines
    streamed = {(row["name"], row["context"]): row for row in result["streams"]}
    assert streamed.keys() == {(name, context) for name in (ours, theirs) for context in (4, 9)}
    assert all(row["median"] > 0 and row["resident"] > 1 << 20 for row in streamed.values())
    assert [row["name"] for row in result["prefix"] if row["median"] > 0] == [ours, theirs]
    assert [row["name"] for row in result["overhead"]] == [f"{ours}, alone", f"{ours}, one stream"]
    assert [row["batch"] for row in result["steps"] if row["median"] > 0] == [1, 2]
    [sessions] = result["sessions"]
    assert sessions["state_bytes"] > 100
    assert sessions["file_ratio"] > 1
    made = tables(result)
    assert made["streams"].head == ["", "2 behind 4", "2 behind 9"]
    assert all(len(table.rows) >= 1 for table in made.values())


@pytest.mark.usefixtures("llama")
def test_slots_of_llama_server(tmp_path: Path) -> None:
    place = Place(slots=3, context=50, threads=2, folder=tmp_path / "here")
    with LlamaServer(Files(tmp_path / "m", 1), place) as server:
        assert "--ctx-size 150 " in " ".join(server.command())
        [times] = streams(server, [server.body([3, 4], 6, 1)], 5)
        assert len(times) == 5
        server.keep(2)
        server.recall(2)
        with pytest.raises(UserError, match="expected 7 tokens of each stream; received 6"):
            streams(server, [server.body([3], 6, 0)], 7)
    asked = (place.folder / "asked").read_text()
    assert '["/completion", {"prompt": [3, 4], "n_predict": 6, "id_slot": 1, "cache_prompt": true' in asked
    assert '["/slots/2?action=save", {"filename": "2.bin"}]\n["/slots/2?action=restore"' in asked


def test_rate_of_streams() -> None:
    """Counted only while all streams run: two tokens of one and one of the other in 0.5 s."""
    assert rate([[0.0, 1.0, 1.2, 1.5], [1.0, 1.4, 9.0]]) == pytest.approx(3 / 0.5)
    with pytest.raises(UserError, match="a time at which all streams run"):
        rate([[0.0, 1.0], [1.5, 2.0]])


def test_server_that_does_not_start(tmp_path: Path) -> None:
    place = Place(slots=1, context=9, threads=1, folder=tmp_path)
    with pytest.raises(UserError, match="expected a server that listens; received .*no.onnx"):
        servers.T2RServer(Files(tmp_path / "no.onnx", 1), place)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"engines": ()}, "engines, each once"),
        ({"engines": ("torch:t2r",)}, "an engine of t2r, llama-server"),
        ({"engines": ("t2r:w4",), "streams": (0,)}, "counts from 1 to"),
        ({"engines": ("t2r:w4",), "sessions_model": "no.pt"}, "no.pt"),
    ],
)
def test_invalid_plans_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ServePlan(**options)


def test_missing_llama_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "require_installed", lambda *_: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="llama-server on the PATH; received none"):
        ServePlan(engines=("llama-server:Q4_0",))


def test_soak_with_kills(model: Path) -> None:
    plan = SoakPlan(model=str(model), requests=160, clients=3, sessions=5, kills=1, threads=1)
    result = bench_soak(plan)
    counts = result["counts"]
    assert (counts["kill -9"], counts["lost"], counts["wrong statuses"]) == (1, 0, 0)
    assert sum(counts.values()) - counts["kill -9"] == 160
    kinds = {"sessions begun", "sessions continued", "streams", "clients that vanished", "malformed bodies"}
    assert all(counts[kind] > 2 for kind in kinds)
    assert ["lost", "0"] in tables(result)["soak"].rows


def test_soak_sees_what_is_lost(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has no room for states."""
    monkeypatch.setattr(servers, "KEEP_MB", 0)
    with pytest.raises(CheckFailed, match="'lost': [1-9]"):
        bench_soak(SoakPlan(model=str(model), requests=60, clients=2, sessions=2, kills=0, threads=1))
