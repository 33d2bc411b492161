"""Ray Serve: a replica dies in the middle of many streams, and each continues elsewhere with the same tokens."""

from __future__ import annotations

import http.client
import importlib.util
import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import small
from t2r_export.config.export import ExportConfig
from t2r_export.export import export
from t2r_runtime import Decoder, Sampling

STREAMS, TOKENS = 50, 60
NGRAM = 2  # none comes twice: a token depends on all before it
PROGRAM = Path(__file__).parents[1] / "t2r_ray.py"
PATIENCE = 240  # seconds
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray[serve]: tox run -e clusters"),
    pytest.mark.filterwarnings("default"),  # those of ray
]


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    config = small.with_layers(small.LLAMA, small.LINEAR, small.LINEAR)
    export(small.checkpoint(config), graph := tmp_path / "graph.onnx", ExportConfig(prefill=True))
    return graph


@pytest.fixture
def port(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a cluster of this machine, with two replicas."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("PYTHONPATH", str(PROGRAM.parent))  # of replicas
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    import ray
    import t2r_ray
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        arguments = {"graph": str(graph), "keep": str(tmp_path / "keep"), "replicas": "2", "rows": "32"}
        serve.run(t2r_ray.app(arguments), route_prefix="/v1/completions")
        yield port
        serve.shutdown()
    finally:
        ray.shutdown()
        sys.modules.pop("t2r_ray", None)


def prompt(number: int) -> list[int]:
    return [number % 11, number * 7 % 11, 3]


def stream(port: int, number: int, got: list[int]) -> None:
    """Add the tokens of a stream to `got`."""
    asked = {"prompt": prompt(number), "max_tokens": TOKENS, "session_id": str(number), "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = json.dumps({**asked, "temperature": 0, "no_repeat_ngram": NGRAM, "ignore_eos": True})
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            got += json.loads(line[6:])["choices"][0]["tokens"]
    connection.close()


def replicas() -> list[Any]:
    import ray

    named = ray.util.list_named_actors(all_namespaces=True)
    return [ray.get_actor(each["name"], each["namespace"]) for each in named if "#Decoders#" in each["name"]]


def test_streams_outlive_their_replica(port: int, graph: Path) -> None:
    import ray

    got: list[list[int]] = [[] for _ in range(STREAMS)]
    with ThreadPoolExecutor(STREAMS) as pool:
        running = [pool.submit(stream, port, number, got[number]) for number in range(STREAMS)]
        end = time.monotonic() + PATIENCE
        while not all(got) and time.monotonic() < end:
            time.sleep(0.01)
        begun = sum(len(tokens) < TOKENS for tokens in got)
        killed, _ = replicas()
        ray.kill(killed)
        for each in running:
            each.result()
    assert begun == STREAMS, "killed too late"
    decoder = Decoder(graph, threads=1)
    sampling = Sampling(temperature=0, no_repeat_ngram=NGRAM, stop_tokens=())
    for number, tokens in enumerate(got):
        decoder.reset()
        assert tokens == list(decoder.generate(prompt(number), TOKENS, sampling))


def test_bulk_recipe(graph: Path) -> None:
    """The class of docs/clusters.md."""
    page = (PROGRAM.parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")
    [program] = re.findall(r"^```python\n(.*?)^corpus = ", page, flags=re.DOTALL | re.MULTILINE)
    exec(program, names := {})
    prompts = [[3, 1, 4], [5]]
    made = names["Continue"](str(graph))({"ids": [np.array(ids) for ids in prompts]})
    for ids, tokens in zip(prompts, made["continued"], strict=True):
        assert tokens == list(Decoder(graph, threads=1).generate(ids, 100, Sampling(seed=1)))
