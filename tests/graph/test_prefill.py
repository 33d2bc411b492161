"""The prefill graph equals the step graph, token for token: logits and every state, wherever a prompt is cut."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import small
from small import CONFIGS, VOCABULARY, B, V
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.quantize import SCHEMES, QuantizeConfig
from t2r_export.config.uniform import LAYERS
from t2r_export.graph.layout import pack
from t2r_export.graph.pieces import CHUNK
from t2r_export.lab.config.compressive import CompressiveConfig
from t2r_export.model.mixers.feature_maps import FEATURE_MAPS
from t2r_export.quantize import quantize
from t2r_export.quantizers.quality import QualityCheckFailed
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError
from t2r_runtime.session.states import States

COMPRESSIVE = small.with_layers(small.GPT2, CompressiveConfig(4, 3, 2), CompressiveConfig(4, 3, 2, "mean"))
MODELS = CONFIGS | {"span": small.FORMS["span"], "compressive": COMPRESSIVE}
# models whose positions are looked up in large constants
TABLES = ("sinusoidal", "rotary_keep", "gated_rotary", "hybrid", "pair")
WINDOWS = ("window_rotary", "memory_window", "hybrid_sum", "hybrid_gated")
SPLIT = {  # models without max_positions, one for each kind of layer
    **{name: CONFIGS[name] for name in ("none", "rotary_keep", "rotary_drop", "gated_rotary", "delta_rotary")},
    **{name: CONFIGS[name] for name in ("hybrid", "memory_softmax", "window_rotary", "hybrid_sum", "hybrid_gated")},
    **{name: MODELS[name] for name in ("span", "lstm", "gru")},
    "memory_window": dataclasses.replace(CONFIGS["memory_window"], position="none", max_positions=None),
}
TARGETS = ("portable", "fused", "standard")
SIZES = (CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3)  # tokens on both sides of a chunk's end


pytestmark = pytest.mark.usefixtures("newest_opset")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Graphs by name, each opened many times."""
    folder = tmp_path_factory.mktemp("prefill")
    paths = {}
    for target in ("portable", "fused"):
        for name in SPLIT:
            paths[f"{name} {target}"] = folder / f"{name}-{target}.onnx"
            small.graph(paths[f"{name} {target}"], SPLIT[name], target=target, prefill=True)
            paths[f"{name} {target} w8"] = folder / f"{name}-{target}-w8.onnx"
            quantize(paths[f"{name} {target}"], paths[f"{name} {target} w8"], QuantizeConfig(scheme="w8"))
    return paths


def long(name: str, batch: int) -> int:
    """Number of tokens that fit behind the random states."""
    end = MODELS[name].max_positions
    return max(SIZES) if end is None else end - 2 * batch - small.CACHED


Arrays = dict[str, np.ndarray]


def folded_states(config: ModelConfig, batch: int = B, seed: int = 0) -> dict[str, np.ndarray]:
    """Random states as the graph of this model keeps them."""
    made = small.model(config)
    return small.arrays(made.fold_states(small.states(made, batch, seed)))


def close(received: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-5) -> None:
    small.assert_states(
        {name: torch.from_numpy(value) for name, value in received.items()},
        {name: torch.from_numpy(value) for name, value in expected.items()},
        tolerance,
    )


def result(path: Path, start: dict[str, np.ndarray], ids: np.ndarray, **options: Any) -> dict[str, np.ndarray]:
    decoder = Decoder(path, threads=1, **options)
    decoder.set_state(start)
    return {"logits": decoder.prefill(ids), **decoder.state()}


ONE, PACKED = {"batch": 1}, {"batch": B, "state_layout": "packed"}
# layouts do not depend on targets: all pairs for two models only
EVERY = tuple((target, options) for target in TARGETS for options in ({}, ONE, PACKED))
SOME = (*((target, {}) for target in TARGETS), ("fused", ONE), ("portable", PACKED))
EXPORTS = [(name, *how) for name in MODELS for how in (EVERY if name in ("mixed", "hybrid_gated") else SOME)]


@pytest.mark.parametrize("name, target, options", EXPORTS)
def test_a_prompt_is_its_steps(
    name: str, target: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From random states, with the eager model's steps as the definition."""
    _, report = small.graph(tmp_path / "g.onnx", MODELS[name], target=target, prefill=True, **options)
    ids, start, expected, after = by_eager_steps(name, options.get("batch", B))
    specs = report.signature.states
    monkeypatch.setattr(States, "step", None)  # no token may go through the step graph
    received = result(tmp_path / "g.onnx", pack(start, specs), ids)
    close(received, {"logits": expected, **pack(after, specs)}, 2e-5)


@cache
def by_eager_steps(
    name: str, batch: int
) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray, dict[str, np.ndarray]]:
    """Tokens, random states before them, and logits and states after the eager model's steps."""
    model = small.checkpoint(MODELS[name]).model
    states, ids = small.states(model, batch), small.ids(batch, long(name, batch))
    with torch.no_grad():
        logits, after = small.by_steps(model, ids, states)
    start, after = (small.arrays(model.fold_states(of_model)) for of_model in (states, after))
    return ids.numpy(), start, logits[:, -1].numpy(), after


SIZES_OF_MAPS = {"relu": 5, "relu2": 3, "elu": V, "rfa": 2 * 3, "favor": 5, "dpfp": 2 * V, "hedgehog": 2 * V}


@pytest.mark.parametrize("target", ["portable", "fused"])
@pytest.mark.parametrize("normalizer", LinearConfig.NORMALIZERS)
@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
def test_every_feature_map(feature_map: str, normalizer: str, target: str, tmp_path: Path) -> None:
    """With and without z, folded and not, with every kind of feed-forward."""
    layer = LinearConfig(SIZES_OF_MAPS[feature_map], feature_map=feature_map, normalizer=normalizer)
    dropped = dataclasses.replace(layer, positions="drop")
    config = dataclasses.replace(small.LLAMA, layers=(layer, dropped), feed_forwards=(small.MEMORY, small.Dense()))
    checkpoint, _ = small.graph(tmp_path / "g.onnx", config, target=target, prefill=True)
    start = small.arrays(small.states(checkpoint.model))
    ids = small.ids(length=CHUNK + 6).numpy()
    received, expected = (result(tmp_path / "g.onnx", start, ids, companions=names) for names in (("prefill",), ()))
    close(received, expected, 2e-4)  # random models of small numbers: a denominator may be near its guard


@settings(max_examples=25)
@given(data=st.data())
def test_any_split(made: dict[str, Path], data: st.DataObject) -> None:
    """Pieces of one token are single steps, all others runs of the prefill graph."""
    name = data.draw(st.sampled_from(sorted(made)))
    size = data.draw(st.sampled_from(SIZES) | st.integers(2, max(SIZES)))
    cuts = sorted(data.draw(st.sets(st.integers(1, size - 1), max_size=4)))
    seed = data.draw(st.integers(0, 9))
    start = folded_states(SPLIT[name.split()[0]], seed=seed)
    ids = small.ids(length=size, seed=seed).numpy()
    expected = result(made[name], start, ids, companions=())
    decoder = Decoder(made[name], threads=1)
    decoder.set_state(start)
    for piece in np.split(ids, cuts, axis=1):
        logits = decoder.prefill(piece)
    # int8 activations: one that rounds differently moves a logit by more than float32 does
    close({"logits": logits, **decoder.state()}, expected, 2e-2 if name.endswith("w8") else 2e-5)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("sizes", [(2, 30), (3, 2, 8), (8, 5)])
def test_from_the_start(made: dict[str, Path], name: str, sizes: tuple[int, ...]) -> None:
    """While sinks take their tokens and the window is not full."""
    ids = small.ids(length=sum(sizes)).numpy()
    many, one = (
        Decoder(made[f"{name} portable"], threads=1, companions=companions) for companions in (["prefill"], [])
    )
    for decoder in (many, one):
        decoder.reset(batch=len(ids))
    for piece in np.split(ids, np.cumsum(sizes)[:-1], axis=1):
        np.testing.assert_allclose(many.prefill(piece), one.prefill(piece), 1e-5, 1e-4)
        expected = one.state()
        for state, value in many.state().items():  # sums are still 0 until a token leaves the window
            np.testing.assert_allclose(value, expected[state], 1e-5, 1e-5, err_msg=state)


def test_a_long_prompt_is_cut(made: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of bounded size bound the memory; the bound counts the tokens of all sequences."""
    monkeypatch.setattr("t2r_runtime.decode.reader.ROWS", 24)
    read: list[tuple[int, ...]] = []
    right = States.prefill
    monkeypatch.setattr(States, "prefill", lambda self, ids, wanted: read.append(ids.shape) or right(self, ids, wanted))
    decoder = Decoder(made["rotary_drop fused"], threads=1)
    decoder.reset(batch=2)
    decoder.prefill(small.ids(2, 29).numpy())
    assert read == [(2, 12), (2, 12), (2, 5)]
    assert decoder.position == 29


def test_the_largest_logits_of_a_prompt(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "rotary_keep", prefill=True, top_k=3)
    decoder = Decoder(tmp_path / "g.onnx", threads=1)
    ids = small.ids(1, 9).numpy()
    logits = decoder.prefill(ids)
    decoder.reset()
    values, tokens = decoder.top_k(ids)
    np.testing.assert_array_equal(tokens, np.argsort(-logits, kind="stable")[:, :3])
    np.testing.assert_array_equal(values, np.take_along_axis(logits, tokens, -1))


def test_what_lies_beside_the_step_graph(tmp_path: Path) -> None:
    """Both graphs share one file of weights; an export without prompts removes the files of one with them."""
    checkpoint, report = small.graph(tmp_path / "g.onnx", "rotary_keep", prefill=True)
    step, data, prompts = report.files
    assert {step, data, prompts} == set(tmp_path.iterdir())
    assert (step.name, prompts.name) == ("g.onnx", report.signature.graphs["prefill"])
    places = []
    for path in (step, prompts):
        model = onnx.load(path, load_external_data=False)
        onnx.checker.check_model(str(path), full_check=True)
        places.append({
            tensor.name: [entry.value for entry in tensor.external_data]
            for tensor in model.graph.initializer if tensor.external_data
        })  # fmt: skip
    assert places[0].items() <= places[1].items()  # the prefill graph has separate masks
    assert {location for location, *_ in places[0].values()} == {data.name}
    assert {name for name, _ in small.model("rotary_keep").named_parameters() if "q_k_v" in name} <= places[0].keys()
    small.graph(step, "rotary_keep", prefill=True)
    assert {step, data, prompts} == set(tmp_path.iterdir()), "the same again"
    small.graph(step, "rotary_keep")
    assert [step] == list(tmp_path.iterdir())


def test_the_proof_sees_a_wrong_graph_for_prompts(tmp_path: Path) -> None:
    """The fault: a causal mask of ones, so that tokens see later ones."""
    checkpoint, report = small.graph(tmp_path / "g.onnx", "rotary_drop", prefill=True)
    assert small.proof(checkpoint, tmp_path / "g.onnx", steps=3).passed
    prompts = report.files[2]
    model = onnx.load(prompts, load_external_data=False)
    for tensor in model.graph.initializer:
        if "causal" in tensor.name:
            everything = np.ones(tensor.dims, np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(everything, tensor.name))
    prompts.write_bytes(model.SerializeToString())
    outcome = small.proof(checkpoint, tmp_path / "g.onnx", steps=3)
    assert [c.name for c in outcome.checks if not c.passed] == [
        f"{check} against steps, {what}"
        for check in ("prefill graph", "split prefill")
        for what in ("logits", "states")
    ]


def test_every_mixer_reads_many_tokens() -> None:
    assert {layer.kind for config in MODELS.values() for layer in config.layers} == LAYERS.keys()


@pytest.mark.parametrize("name, nodes", [("lstm", {"LSTM": 2}), ("gru", {"GRU": 2}), ("mixed", {"LSTM": 1})])
def test_a_recurrent_network_is_one_node(name: str, nodes: dict[str, int], tmp_path: Path) -> None:
    """ONNX's own node over all tokens; the step graph spells it out."""
    _, report = small.graph(tmp_path / "g.onnx", name, prefill=True)
    for path, wanted in ((report.files[2], nodes), (report.files[0], {})):
        used = Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)
        assert {operator: used[operator] for operator in ("LSTM", "GRU") if used[operator]} == wanted


@pytest.mark.parametrize("scheme", ["fp16", "w8", "w4"])
@pytest.mark.parametrize("target", ["portable", "fused"])
@pytest.mark.parametrize(
    "name", ["learned", "sinusoidal", "rotary_keep", "rotary_drop", "gated_rotary", "delta", "hybrid", "pair"]
)
def test_quantized(name: str, target: str, scheme: str, tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx", name, target=target, prefill=True)
    report = quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme=scheme))
    step, data, prompts = report.files
    assert report.left_out == {}
    assert Decoder(step, threads=1).signature.graphs == {"prefill": prompts.name}
    start = small.arrays(small.states(checkpoint.model))
    ids = small.ids(length=30).numpy()
    received, expected = (result(step, start, ids, companions=names) for names in (("prefill",), ()))
    close(received, expected, 2e-2)
    graphs = [onnx.load(path, load_external_data=False).graph for path in (step, prompts)]
    of_weights, in_prompts = (sum(node.op_type == "MatMulNBits" for node in graph.node) for graph in graphs)
    assert of_weights == in_prompts  # constants of chunks are not rounded
    held = [
        {t.name: [e.value for e in t.external_data] for t in graph.initializer if t.external_data} for graph in graphs
    ]
    large = {name for name in held[0] if name.endswith(".table")}  # smaller ones are in the graphs themselves
    assert bool(large) == (name in TABLES)
    assert {name: held[0][name] for name in large} == {name: held[1][name] for name in large}
    assert {location for graph in held for location, *_ in graph.values()} <= {data.name}


@pytest.mark.parametrize("scheme", ["int8", "int8-static"])
def test_schemes_that_round_tokens_together(scheme: str, tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.random.default_rng(0).integers(0, VOCABULARY, 1100))
    given = {"calibrate": tmp_path / "tokens.npy", "calibrate_steps": 30} if scheme == "int8-static" else {}
    small.graph(tmp_path / "g.onnx", prefill=True)
    report = quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme=scheme, **given))  # type: ignore[arg-type]
    assert report.files == [tmp_path / "q.onnx"]
    assert report.left_out == {
        "prefill": f"{scheme} rounds the tokens of a run together, so that the states would depend on how a text is cut"
    }
    assert Decoder(tmp_path / "q.onnx", threads=1).signature.graphs == {}


def test_ruin_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "tokens.npy", np.random.default_rng(0).integers(0, VOCABULARY, 1100))
    small.graph(tmp_path / "g.onnx", prefill=True)
    before = set(tmp_path.iterdir())
    monkeypatch.setitem(SCHEMES, "w4", dataclasses.replace(SCHEMES["w4"], loss=-1))
    with pytest.raises(QualityCheckFailed):
        quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w4"), tmp_path / "tokens.npy")
    assert set(tmp_path.iterdir()) == before


def test_no_prompts_of_any_length_on_npu() -> None:
    with pytest.raises(UserError) as caught:
        ExportConfig(target="npu", prefill=True)
    assert str(caught.value) == (
        "expected no prefill graph with target npu: all dimensions are fixed; received --prefill; leave out --prefill, "
        "or choose another --target"
    )


def test_short_prompts_need_not_open_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.graph(tmp_path / "g.onnx", prefill=True)
    decoder = Decoder(tmp_path / "g.onnx", threads=1, prefill_from=5)
    counted = []
    run = decoder._states._run
    monkeypatch.setattr(decoder._states, "_run", lambda *args: (counted.append(args[2]), run(*args))[1])
    decoder.prefill([1, 2, 3, 4])
    decoder.prefill([1, 2, 3, 4, 5])
    assert counted == [1, 1, 1, 1, 5]
    assert decoder.fork()._prefill_from == 5
    with pytest.raises(UserError, match="as prefill_from of at least 1; received 0; choose another value"):
        Decoder(tmp_path / "g.onnx", prefill_from=0)
