"""The threads and session entries of a graph: the caller's, else from its weight bytes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from runtime import graphs
from t2r_runtime import Decoder, Translator, UserError
from t2r_runtime.session import session
from t2r_runtime.session.tuning import BYTES_A_THREAD, threads_for, usable_cores, weight_bytes

CORES = Path(__file__).parents[1] / "cores.json"  # cases of all runtimes
Opened = list[tuple[int | None, dict[str, str]]]


@pytest.fixture
def sized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a file of `times` BYTES_A_THREAD on a machine of 16 cores of which this process may use `usable`."""

    def make(times: float, usable: int = 16) -> Path:
        monkeypatch.setattr(os, "cpu_count", lambda: 16)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(usable)), raising=False)
        with (tmp_path / "g.onnx").open("wb") as file:
            file.truncate(int(times * BYTES_A_THREAD))
        return tmp_path / "g.onnx"

    return make


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Threads and entries of every opened session."""
    found: Opened = []
    real = session._options
    monkeypatch.setattr(session, "_options", lambda *given: (found.append(given), real(*given))[1])
    return found


@pytest.mark.parametrize("times, threads", [(0.01, 1), (0.9, 1), (1.9, 1), (2.1, 2), (8.1, 8)])
def test_threads_by_graph_size(times: float, threads: int, sized: Any) -> None:
    assert threads_for(sized(times), "cpu", None) == threads


def test_threads_large_graph(sized: Any) -> None:
    assert threads_for(sized(9.1), "cpu", None) is None, "ONNX Runtime's choice: one a physical core"
    assert threads_for(sized(9.1, usable=12), "cpu", None) == 12, "ONNX Runtime counts those of others too"
    assert threads_for(sized(2.1, usable=3), "cpu", None) == 3
    assert threads_for(sized(0.1, usable=1), "cpu", None) == 1


def test_unknown_core_count(sized: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sized(100)
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert threads_for(path, "cpu", None) is None


@pytest.mark.parametrize("case", json.loads(CORES.read_text("utf-8")), ids=lambda case: case["groups"])
def test_a_quota_of_cpu_time(case: dict[str, Any], sized: Any, tmp_path: Path) -> None:
    sized(1, usable=4)
    files = {f"sys/fs/cgroup/{name}": text for name, text in case["files"].items()}
    for name, text in {"proc/self/cgroup": case["groups"], **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == min(4, case["cores"] or 4)
    sized(1, usable=16)
    assert usable_cores(tmp_path) == case["cores"]  # None: all


def test_threads_of_other_providers(sized: Any) -> None:
    path = sized(0.1)
    assert [threads_for(path, name, None) for name in ("cpu", "dnnl", "openvino", "cuda")] == [1, 1, None, None]


def test_threads_given(sized: Any) -> None:
    assert threads_for(sized(0.1, usable=2), "openvino", 5) == threads_for(sized(100), "cpu", 5) == 5


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, 4097, "2"])
def test_invalid_threads(threads: Any, tmp_path: Path) -> None:
    path = graphs.save(tmp_path / "g.onnx")
    with pytest.raises(UserError) as caught:
        Decoder(path, threads=threads)
    received = f"expected a number of threads from 1 to 4096; received {threads!r}"
    assert str(caught.value) == f"{received}; choose another value"
    assert caught.value.kind == "provider"


def test_weight_bytes_include_external_data(tmp_path: Path) -> None:
    for name, size in (("g[1].onnx", 100), ("g[1].onnx.0123456789ab.data", 5000), ("g1.onnx.0123456789ab.data", 70)):
        (tmp_path / name).write_bytes(bytes(size))
    for name in ("g[1].onnx.loop.data", "g[1].onnx.gone.data"):
        (tmp_path / name).symlink_to(name if "loop" in name else "nowhere")  # refused at opening the graph
    assert weight_bytes(tmp_path / "g[1].onnx") == 5100


def test_threads_of_companions(tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "threads_for", lambda path, provider, asked: asked or 1)
    monkeypatch.setattr(session, "usable_cores", lambda: 3)
    golden = Path(__file__).parents[2] / "models" / "tiny"
    for made in (
        Decoder(golden / "prefill.onnx"),
        Decoder(golden / "prefill.onnx", threads=2),
        Translator(golden / "translator.onnx"),
    ):
        for companion in made._graph.companions.values():
            companion()
    assert sorted(threads for threads, _ in opened) == [1, 1, 2, 2, 3, 3]


def test_session_config_applies_to_all_sessions(opened: Opened) -> None:
    golden = Path(__file__).parents[2] / "models" / "tiny"
    decoder = Decoder(golden / "prefill.onnx", session_config={"session.force_spinning_stop": "0", "my.entry": "5"})
    assert decoder.prefill([1, 2, 3]).shape[0] == 1
    assert [entries["my.entry"] for _, entries in opened] == ["5", "5"]
    assert opened[1][1]["session.force_spinning_stop"] == "0", "the caller's own go before ours"


def test_session_config_applies_to_translator(opened: Opened) -> None:
    golden = Path(__file__).parents[2] / "models" / "tiny"
    translator = Translator(golden / "translator.onnx", session_config={"my.entry": "5"})
    assert len(list(translator.translate([[1, 3]]))) == 1
    assert [entries["my.entry"] for _, entries in opened] == ["5"] * 2


@pytest.mark.parametrize("config", [[("a", "b")], {"a": 1}, {1: "a"}, "a=b"])
@pytest.mark.parametrize("kind", [Decoder, Translator])
def test_session_config_types(kind: type, config: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="session_config; received") as caught:
        kind(graphs.save(tmp_path / "g.onnx"), session_config=config)
    assert caught.value.kind == "provider"


def test_no_entries(tmp_path: Path, opened: Opened) -> None:
    Decoder(graphs.save(tmp_path / "g.onnx"), session_config=None)
    assert [entries for _, entries in opened] == [{}]
