"""Execution providers in plugin libraries, opened by path: onnxruntime-ep-t2r."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from cpp_build import GOLDEN, STRICT
from t2r_library import Decoder, Failed, Library

random = np.random.default_rng(5)


@pytest.fixture(scope="module")
def plugin() -> str:
    """The library's path."""
    if importlib.util.find_spec("onnxruntime_ep_t2r") is None:
        (pytest.fail if STRICT else pytest.skip)("onnxruntime_ep_t2r is not installed: pip install ./runtimes/provider")
    import onnxruntime_ep_t2r

    return onnxruntime_ep_t2r.get_library_path()


@pytest.mark.parametrize("name", ["tiny", "gated", "packed", "window", "prefill", "top3", "w4", "w8"])
def test_logits_are_those_of_the_cpu(library: Library, plugin: str, name: str) -> None:
    """In steps and in prefills: the prefill graph runs on the plugin if it supports the graph, else on the CPU."""
    graph = GOLDEN / f"{name}.onnx"
    plain, other = Decoder(library, graph), Decoder(library, graph, provider=[plugin, "threads", "2"])
    tokens = random.integers(0, plain.info.vocab_size, 11).tolist()
    for decoder in (plain, other):
        decoder.prefill([tokens])
    for token in tokens:
        expected, found = plain.step([token]), other.step([token])
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_forks_and_a_second_opening(library: Library, plugin: str) -> None:
    """The library is registered only once."""
    graph = GOLDEN / "tiny.onnx"
    decoders = [Decoder(library, graph, provider=[plugin]) for _ in range(3)]
    decoders.append(decoders[0].fork())
    written = [decoder.generate([1, 2], 9, temperature=0.0) for decoder in decoders]
    assert all(tokens == written[0] for tokens in written) and len(written[0]) > 0


def test_a_path_from_the_working_directory(library: Library, plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(plugin).parent)
    assert len(Decoder(library, GOLDEN / "tiny.onnx", provider=[f"./{Path(plugin).name}"]).step([1])) == 1


def test_the_plugin_runs_the_step(library: Library, plugin: str, tmp_path: Path) -> None:
    """A graph with an operator that the plugin lacks is refused, unless the CPU may run nodes."""
    model = onnx.load(GOLDEN / "tiny.onnx")
    last = model.graph.node[-1]
    inner, last.output[0] = last.output[0], "before"
    model.graph.node.append(onnx.helper.make_node("HardSwish", ["before"], [inner]))
    graph = tmp_path / "other.onnx"
    onnx.save(model, graph)
    with pytest.raises(Failed, match=r"^provider: expected every node of the step graph on \S+; received .*fallback"):
        Decoder(library, graph, provider=[plugin])
    Decoder(library, graph, provider=[plugin], config=["session.disable_cpu_ep_fallback", "0"]).step([1])


def test_its_options_are_its_own(library: Library, plugin: str) -> None:
    with pytest.raises(Failed, match="^provider: expected options .*; received expected a number .* received many;"):
        Decoder(library, GOLDEN / "tiny.onnx", provider=[plugin, "threads", "many"])


def test_threads_reach_the_plugin(library: Library, plugin: str) -> None:
    """Those of t2r_options, unless its own option gives another number."""
    import onnxruntime_ep_t2r

    for threads, own, expected in ((1, [], 1), (3, [], 3), (3, ["threads", "2"], 2)):
        Decoder(library, GOLDEN / "tiny.onnx", provider=[plugin, *own], threads=threads).step([1])
        assert onnxruntime_ep_t2r.get_threads() == expected


def test_libraries_that_are_none(library: Library, release: Path, plugin: str, tmp_path: Path) -> None:
    """No file, a file that is no library, and a library that is no plugin; a second try gives the same error."""
    text = tmp_path / "text.so"
    text.write_text("no library")
    other = tmp_path / "other.so"
    shutil.copy(release / "libt2r.so", other)
    for path in (tmp_path / "none.so", text, other, text):
        with pytest.raises(Failed, match="^provider: expected an execution provider's library in .*plugin"):
            Decoder(library, GOLDEN / "tiny.onnx", provider=[str(path)])
    assert len(Decoder(library, GOLDEN / "tiny.onnx", provider=[plugin]).step([1])) == 1
