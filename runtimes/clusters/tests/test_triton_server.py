"""A real Triton server, that of nvidia-pytriton, with the model of runtimes/clusters/triton."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import small
from t2r_export.config.export import ExportConfig
from t2r_export.export import export
from t2r_runtime import Decoder

MODELS = Path(__file__).parents[1] / "triton"
PATIENCE = 120  # seconds
found = importlib.util.find_spec("pytriton")
pytestmark = pytest.mark.skipif(found is None, reason="needs nvidia-pytriton: tox run -e clusters")


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A graph whose cache grows, which the ONNX Runtime backend cannot serve, in a copy of the models."""
    repository = shutil.copytree(MODELS, tmp_path / "models")
    config = small.with_layers(small.LLAMA, small.LINEAR, small.SOFTMAX)
    export(small.checkpoint(config), graph := repository / "decoder" / "1" / "graph.onnx", ExportConfig(prefill=True))
    return graph


@contextlib.contextmanager
def running(graph: Path, folder: Path) -> Iterator[Any]:
    """A client of a server of the graph's repository."""
    http = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]: tox run -e clusters")
    assert found is not None and found.submodule_search_locations is not None
    server = Path(found.submodule_search_locations[0]) / "tritonserver"
    backends = shutil.copytree(server / "backends", folder / "backends")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(server / "python_backend_stubs" / version / "triton_python_backend_stub", backends / "python")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = {"model-repository": graph.parents[2], "backend-directory": backends, "http-port": port}
    options |= {"http-address": "127.0.0.1", "allow-grpc": "false", "allow-metrics": "false"}
    # the stub starts the first Python on the PATH; a copy of it does not find the wheel's libraries
    place = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    libraries = f"{server.parents[1] / 'nvidia_pytriton.libs'}{os.pathsep}{sysconfig.get_config_var('LIBDIR')}"
    environment = os.environ | {"PATH": place, "LD_LIBRARY_PATH": libraries}
    command = [server / "bin" / "tritonserver", *(f"--{name}={value}" for name, value in options.items())]
    log = folder / "log"
    with open(log, "wb") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
    try:
        client = http.InferenceServerClient(f"127.0.0.1:{port}")
        end = time.monotonic() + PATIENCE
        while not _ready(client):
            assert process.poll() is None and time.monotonic() < end, log.read_text()[-2000:]
            time.sleep(0.2)
        yield client
        client.close()
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _ready(client: Any) -> bool:
    try:
        return bool(client.is_model_ready("decoder"))
    except OSError:
        return False


def test_sequences_have_decoders(graph: Path, tmp_path: Path) -> None:
    """Two sequences in turns have the logits of two Decoders; errors are those of a Decoder."""
    http = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]: tox run -e clusters")
    from tritonclient.utils import InferenceServerException

    with running(graph, tmp_path) as client:

        def read(tokens: list[int], sequence: int, start: bool = False, end: bool = False) -> Any:
            ids = http.InferInput("input_ids", [1, len(tokens)], "INT64")
            ids.set_data_from_numpy(np.array([tokens]))
            asked = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
            return client.infer("decoder", [ids], **asked).as_numpy("logits")

        first, second = Decoder(graph, threads=1), Decoder(graph, threads=1)
        one, two = read([3, 1, 4], 7, start=True), read([1, 5], 8, start=True)
        expected, other = first.prefill([3, 1, 4]), second.prefill([1, 5])
        for turn in range(12):
            np.testing.assert_allclose(one, expected, atol=1e-5)
            np.testing.assert_allclose(two, other, atol=1e-5)
            tokens = int(one.argmax()), int(two.argmax())
            one, two = read([tokens[0]], 7), read([tokens[1]], 8, end=turn == 11)
            expected, other = first.step([tokens[0]]), second.step([tokens[1]])
        with pytest.raises(InferenceServerException, match=r"expected ids in 0 … 16; received 99"):
            read([99], 7)
        with pytest.raises(InferenceServerException, match="must specify the START flag"):
            read([1], 8)
