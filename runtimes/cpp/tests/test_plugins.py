"""Execution providers in plugin libraries, opened by path: onnxruntime-ep-t2r."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from cpp_build import GOLDEN, HERE, STRICT, Run
from t2r_library import Decoder, Failed, Library
from test_calls import cancelled

WARNING, FATAL = 2, 4  # levels of the log
ANYWHERE = ["session.disable_cpu_ep_fallback", "0"]  # with it, no state is in place: the CPU may run nodes


@pytest.mark.parametrize("name", ["tiny", "gated", "packed", "window", "prefill", "top3", "w4", "w8"])
def test_logits_are_those_of_the_cpu(library: Library, plugin: str, name: str) -> None:
    """In steps and in prefills: the prefill graph runs on the plugin if it supports the graph, else on the CPU."""
    graph = GOLDEN / f"{name}.onnx"
    plain, other = Decoder(library, graph), Decoder(library, graph, provider=[plugin, "threads", "2"])
    tokens = np.random.default_rng(5).integers(0, plain.info.vocab_size, 11).tolist()
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
    Decoder(library, graph, provider=[plugin], config=ANYWHERE).step([1])


@pytest.mark.parametrize("name", ["tiny-hybrid", "prefill", "window", "in_place"])
def test_states_in_place(library: Library, plugin: str, in_place: Path, name: str) -> None:
    """Bit by bit as caches and windows that are copied, beyond the first 64 tokens, whatever is called between the
    steps.
    """
    chance, given = random.Random(name), [[], ANYWHERE]
    graph = in_place if name == "in_place" else GOLDEN / f"{name}.onnx"
    both = [Decoder(library, graph, provider=[plugin], config=config) for config in given]
    others = [decoder.fork() for decoder in both]
    rows = 1

    def tokens(count: int) -> list[int]:
        return [chance.randrange(17) for _ in range(count)]

    def step(count: int) -> None:
        for _ in range(count):
            read = tokens(rows)
            ours, theirs = (decoder.step(read) for decoder in both)
            np.testing.assert_array_equal(ours, theirs)

    for turn in range(12):
        step(chance.randrange(2, 14))
        if turn == 9:
            rows = 3
            for decoder, other in zip(both, others, strict=True):
                other.take([(decoder, 0)])
                decoder.take([(decoder, 1), (other, 0), (decoder, 1)])
        elif turn % 3 == 0:
            read = [tokens(3) for _ in range(rows)]
            ours, theirs = (decoder.prefill(read) for decoder in both)
            np.testing.assert_array_equal(ours, theirs)
        elif turn % 3 == 1:
            order = [chance.randrange(rows) for _ in range(max(rows, 2))]
            rows = len(order)
            for decoder in both:
                decoder.reorder(order)
        else:
            saved = [decoder.save_memory() for decoder in both]
            assert saved[0] == saved[1]
            both[1].load_memory(saved[0])
            both[0] = both[0].copy()
        found, expected = (decoder.states() for decoder in both)
        for state, content in found.items():
            np.testing.assert_array_equal(content, expected[state])
    assert both[0].info.position > 64
    for decoder in both:
        decoder.reset(rows)
    step(3)


def test_a_window_that_another_node_reads(library: Library, plugin: str, in_place: Path, tmp_path: Path) -> None:
    """The provider refuses to keep it in place: windows move at each step, and the cache is in place."""
    model, node = onnx.load(in_place), onnx.helper.make_node
    last = next(each for each in model.graph.node if "logits" in each.output)
    last.output[0] = "before"
    held = {"all": np.array([0, 1, 2, 3]), "none": np.zeros(1, np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(x, f"read.{name}") for name, x in held.items())
    model.graph.node.append(node("ReduceMax", ["present_k.3", "read.all"], ["read.most"], keepdims=0))
    model.graph.node.append(node("Mul", ["read.most", "read.none"], ["read.zero"]))
    model.graph.node.append(node("Add", ["before", "read.zero"], ["logits"]))
    for file in in_place.parent.glob("in_place.onnx.*"):
        shutil.copy(file, tmp_path)
    onnx.save(model, tmp_path / "in_place.onnx")
    graphs = {tmp_path / "in_place.onnx": [], in_place: ANYWHERE}
    both = [Decoder(library, graph, provider=[plugin], config=config) for graph, config in graphs.items()]
    for token in range(34):
        np.testing.assert_array_equal(*(decoder.step([token % 17]) for decoder in both))
        if token == 9:
            both = [decoder.fork() for decoder in both]
    found, expected = (decoder.states() for decoder in both)
    for state, content in found.items():
        np.testing.assert_array_equal(content, expected[state])


def test_a_step_in_place_allocates_nothing(release: Path, run: Run, plugin: str) -> None:
    """From a room of 64 tokens to the next."""
    name = GOLDEN / "tiny-hybrid.onnx"
    assert run(release / "allocations", name, 2, 50, "step", plugin).stdout == "0 0\n"
    assert int(run(release / "allocations", name, 2, 80, "step", plugin).stdout.split()[0]) > 0


@pytest.mark.parametrize("seed", range(2))
def test_random_calls(
    checked: Path, run: Run, plugin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """With AddressSanitizer, as in test_fuzz.py."""
    monkeypatch.setenv("T2R_PLUGIN", plugin)
    folder = Path(shutil.copytree(GOLDEN, tmp_path / "tiny"))
    said = run(checked / "api_calls", folder, seed, 600).stdout.split()
    assert int(said[0]) > 100 and int(said[2]) > 100, said


def test_a_companion_that_falls_back_is_logged(library: Library, plugin: str, tmp_path: Path) -> None:
    """One warning has the reason for which the prefill graph runs on the CPU."""
    for file in GOLDEN.glob("prefill.onnx*"):
        shutil.copy(file, tmp_path)
    (companion,) = tmp_path.glob("*.prefill.onnx")
    model = onnx.load(companion, load_external_data=False)
    last = next(each for each in model.graph.node if "logits" in each.output)
    last.output[0] = "before"
    model.graph.node.append(onnx.helper.make_node("Atan", ["before"], ["logits"]))
    companion.write_bytes(model.SerializeToString())
    heard: list[str] = []
    library.log(WARNING, lambda _, message: heard.append(message))
    try:
        decoder = Decoder(library, tmp_path / "prefill.onnx", provider=[plugin])
        assert heard == []
        decoder.prefill([[1, 2, 3, 4]])
    finally:
        library.log(FATAL, None)
    (line,) = heard
    assert "Atan" in line and "run the graph on the provider cpu" in line


def test_its_options_are_its_own(library: Library, plugin: str) -> None:
    with pytest.raises(Failed, match="^provider: expected options .*; received expected a number .* received many;"):
        Decoder(library, GOLDEN / "tiny.onnx", provider=[plugin, "threads", "many"])


def test_threads_reach_the_plugin(library: Library, plugin: str) -> None:
    """Those of t2r_options, unless its own option gives another number."""
    import onnxruntime_ep_t2r

    for threads, own, expected in ((1, [], 1), (3, [], 3), (3, ["threads", "2"], 2)):
        Decoder(library, GOLDEN / "tiny.onnx", provider=[plugin, *own], threads=threads).step([1])
        assert onnxruntime_ep_t2r.get_threads() == expected


def slow(graph: Path) -> Path:
    """tiny, whose logits wait for 3,000 products of matrices of 1,000 rows and columns."""
    model, node = onnx.load(GOLDEN / "tiny.onnx"), onnx.helper.make_node
    last = next(each for each in model.graph.node if "logits" in each.output)
    last.output[0] = "before"
    held = {"rows": np.array([1, -1]), "wide": np.array([1000, 1000]), "none": np.zeros((1, 1), np.float32)}
    held |= {"w": np.full((1000, 1000), 1e-3, np.float32), "corner": np.zeros(1, np.int64), "one": np.ones(1, np.int64)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(x, f"slow.{name}") for name, x in held.items())
    nodes = [
        node("Cast", ["input_ids"], ["slow.float"], to=onnx.TensorProto.FLOAT),
        node("Reshape", ["slow.float", "slow.rows"], ["slow.row"]),
        node("Expand", ["slow.row", "slow.wide"], ["slow.0"]),
        *(node("MatMul", [f"slow.{i}", "slow.w"], [f"slow.{i + 1}"]) for i in range(3000)),
        node("Slice", ["slow.3000", "slow.corner", "slow.one", "slow.corner"], ["slow.first"]),
        node("Slice", ["slow.first", "slow.corner", "slow.one", "slow.one"], ["slow.number"]),
        node("Mul", ["slow.number", "slow.none"], ["slow.zero"]),
        node("Add", ["before", "slow.zero"], ["logits"]),
    ]
    model.graph.node.extend(nodes)
    onnx.save(model, graph)
    return graph


@pytest.mark.timeout(60)
def test_a_step_on_the_plugin_that_is_cancelled(library: Library, plugin: str, tmp_path: Path) -> None:
    """The run ends in the middle: all of it would take minutes."""
    decoder = Decoder(library, slow(tmp_path / "slow.onnx"), provider=[plugin])
    assert cancelled(decoder, lambda: decoder.step([1])).kind == "cancelled"


@pytest.mark.parametrize("root", ["T2R_ONNXRUNTIME_INCLUDE", "T2R_ONNXRUNTIME_ROOT"])
@pytest.mark.parametrize("place", [301, 300])
def test_places_of_functions(root: str, place: int, run: Run, tmp_path: Path) -> None:
    """Headers of 1.21, which `make libt2r` uses, and those of a later version both tell a wrong place."""
    if root not in os.environ:
        (pytest.fail if STRICT else pytest.skip)(f"no headers where ${root} says")
    folder = Path(os.environ[root])
    source = tmp_path / "plugins.cpp"
    source.write_text((HERE / "src" / "plugins.cpp").read_text("utf-8").replace(" place = 301;", f" place = {place};"))
    found = [folder, folder / "include", folder / "include" / "onnxruntime", HERE / "include", HERE / "src"]
    compiler = [os.environ.get("CXX", "c++"), "-std=c++17", "-fsyntax-only", *(f"-I{each}" for each in found)]
    done = run(*compiler, source, status=None)
    assert (done.returncode == 0) == (place == 301) and ("of OrtApi" in done.stderr or place == 301), done.stderr


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
