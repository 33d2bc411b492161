"""Decoders whose caches and windows stay in place, against decoders that copy them at each step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime_ep_t2r as plugin
import pytest
import torch

from t2r_export.checkpoints import checkpoint
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import HybridConfig, LinearConfig, SoftmaxConfig, WindowConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_runtime import Decoder
from t2r_runtime.session.reserve import MIN_ROOM

VOCABULARY = 71
PLAIN = UniformConfig(
    vocab_size=VOCABULARY,
    width=30,
    ffn_size=22,
    layers=(SoftmaxConfig(), SoftmaxConfig()),
    max_positions=None,
    position="none",
    attention=HeadsConfig(heads=6, kv_heads=3, head_size=10, positions=RotaryConfig()),
)
CONFIGS = {
    "softmax": PLAIN,
    "hybrid": replace(PLAIN, layers=(LinearConfig(4, feature_map="relu"), SoftmaxConfig(), WindowConfig(5))),
    "sink": PLAIN.with_attention(sink=True),  # what else reads the scores leaves the caches to copies
    "capped": PLAIN.with_attention(softcap=3.0),
    "int8": replace(PLAIN, layers=(SoftmaxConfig(cache_bits=8), SoftmaxConfig(cache_bits=8))),
    "windows": replace(PLAIN, layers=(WindowConfig(7, sinks=4), WindowConfig(18, sinks=0), WindowConfig(1))),
    "eight": replace(
        PLAIN,
        layers=(
            WindowConfig(7, cache_bits=8),
            SoftmaxConfig(cache_bits=8),
            HybridConfig(6, feature_size=8, cache_bits=8),
        ),
    ),
}
IN_PLACE = {"hybrid": 2, "windows": 4, "eight": 8}  # states that are windows in place


def exported(config: UniformConfig, folder: Path, **options: Any) -> Path:
    torch.manual_seed(5)
    model = Transformer(config.build())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    checkpoint.save(folder / "m.pt", model, None, {"origin": "random weights"})
    export(checkpoint.load(folder / "m.pt"), folder / "g.onnx", ExportConfig(prefill=True, **options))
    return folder / "g.onnx"


@pytest.fixture(scope="module", params=CONFIGS)
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return exported(CONFIGS[request.param], folder, draft_check=request.param in ("softmax", "windows"))


def copying(path: Path, provider: str = "t2r") -> Decoder:
    decoder = Decoder(path, provider, threads=1)
    object.__setattr__(decoder._graph, "rows_option", None)
    decoder.reset(decoder.batch)
    decoder._states._reserve = None
    return decoder


def holds(decoder: Decoder) -> bool:
    reserve = decoder._states._reserve
    assert reserve is not None
    return reserve.holds


def turned(decoder: Decoder) -> list[str]:
    """Windows that are one buffer."""
    now, other = decoder._states._buffers
    return [name for name, value in now.items() if value is other[name]]


def same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, state in ours.items():
        np.testing.assert_array_equal(state, theirs[name], name)


class Script:
    """Random calls, of which the results and the states after each are recorded."""

    def __init__(self, seed: int, draft_check: bool) -> None:
        self.random, self.kept = np.random.default_rng(seed), list[Any]()
        self.calls = ["step"] * 8 + ["prefill", "keep", "go back", "reorder", "fork", "reset"] + ["check"] * draft_check

    def run(self, decoder: Decoder) -> list[Any]:
        results: list[Any] = []
        for _ in range(40):
            ids = self.random.integers(0, VOCABULARY, (decoder.batch, 9))
            call = str(self.random.choice(self.calls))
            if call == "step":
                results += [decoder.step(column) for column in ids.T]
            elif call == "prefill":
                results.append(decoder.prefill(ids[:, :7]))
            elif call == "keep":
                self.kept.append((decoder.state(), decoder.position))
            elif call == "go back" and self.kept:
                decoder.set_state(*self.kept[self.random.integers(len(self.kept))])
            elif call == "reorder":
                decoder.reorder(self.random.integers(0, decoder.batch, self.random.integers(1, 4)))
            elif call == "fork":
                other = decoder.fork()
                other.take([(decoder, np.arange(decoder.batch))])
                results.append(other.step(ids[:, 0]))
                results.append(other.step(ids[:, 1]))
            elif call == "check":
                results.append(decoder.check(ids[:, :4], int(self.random.integers(1, 5))))
            elif call == "reset":
                decoder.reset(int(self.random.integers(1, 4)))
        return [*results, *(kept for kept, _ in self.kept), decoder.state()]


@pytest.mark.parametrize("seed", range(2))
def test_the_same_as_with_copies(graph: Path, seed: int) -> None:
    draft_check = "draft_check" in Decoder(graph).signature.graphs
    found, expected, tolerated = (
        Script(seed, draft_check).run(decoder)
        for decoder in (Decoder(graph, "t2r", threads=2), copying(graph), Decoder(graph, threads=1))
    )
    # numbers in the middle of two levels of 8 bits are rounded to either
    bound = 3e-2 if any(state.dtype == "int8" for state in Decoder(graph).signature.states) else 2e-4
    for ours, theirs, others in zip(found, expected, tolerated, strict=True):
        if isinstance(ours, dict):
            same(ours, theirs)
        else:
            np.testing.assert_array_equal(ours, theirs)
            np.testing.assert_allclose(ours, others, rtol=0, atol=bound * float(np.abs(others).max()))


def test_rows_move_in_place(graph: Path) -> None:
    """Those of a beam search, which does not take the caches out."""
    decoder, others = Decoder(graph, "t2r", threads=2), copying(graph)
    for each in (decoder, others):
        each.reset(3)
    for rows in ([2, 0, 0], [1, 2, 0], [0, 1, 2], [1, 1, 1]):
        for token in range(5):
            ids = [token, 2 * token + rows[0], 7]
            np.testing.assert_array_equal(decoder.step(ids), others.step(ids))
        for each in (decoder, others):
            each._states.reorder(np.array(rows))
        assert holds(decoder) and not others._graph.rows_option
        same(decoder.state(), others.state())


def test_a_library_of_another_version_copies(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose device does not say that it knows the options of states in place, which it would ignore."""
    known = Decoder(graph, "t2r", threads=1)
    monkeypatch.setattr("t2r_runtime.session.providers.IN_PLACE", "rows windows more")
    other = Decoder(graph, "t2r", threads=1)
    assert known._graph.rows_option and not other._graph.rows_option and not other._graph.windows_option
    for token in (3, 1, 4, 1, 5):
        np.testing.assert_array_equal(known.step(token), other.step(token))
    assert holds(known)
    same(known.state(), other.state())


def test_states_that_were_read_do_not_change(graph: Path) -> None:
    decoder = Decoder(graph, "t2r", threads=2)
    for token in range(5):
        decoder.step([token])
    assert holds(decoder)
    kept = decoder.state()
    copy = {name: state.copy() for name, state in kept.items()}
    logits = [decoder.step([token]) for token in range(MIN_ROOM + 3)]
    same(kept, copy)
    decoder.set_state(kept, 5)
    for token in range(MIN_ROOM + 3):
        np.testing.assert_array_equal(decoder.step([token]), logits[token])


@pytest.mark.parametrize("name", IN_PLACE)
def test_windows_stay_where_they_are(name: str, tmp_path: Path) -> None:
    """While caches grow, and states are read; a prompt puts them in order."""
    path = exported(CONFIGS[name], tmp_path)
    decoder, others = Decoder(path, "t2r"), copying(path)
    for token in range(MIN_ROOM + 7):
        np.testing.assert_array_equal(decoder.step([token % 70]), others.step([token % 70]))
        if token == 1:
            places = {name: decoder._states._buffers[0][name].data_ptr() for name in turned(decoder)}
        if token % 9 == 4:
            same(decoder.state(), others.state())
    assert {name: decoder._states._buffers[0][name].data_ptr() for name in turned(decoder)} == places
    assert len(places) == IN_PLACE[name] and not decoder._graph.apart
    np.testing.assert_array_equal(decoder.prefill([[1, 2, 3]]), others.prefill([[1, 2, 3]]))
    assert not turned(decoder)
    same(decoder.state(), others.state())


def test_a_window_that_another_node_reads(tmp_path: Path) -> None:
    """The provider refuses to keep it in place: it moves at each step, and the cache is in place."""
    path = exported(replace(PLAIN, layers=(WindowConfig(7, sinks=4), SoftmaxConfig())), tmp_path)
    model = onnx.load(path)
    last = next(each for each in model.graph.node if "logits" in each.output)
    last.output[0] = "before"
    held = {"all": np.array([0, 1, 2, 3]), "none": np.zeros(1, np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(x, f"read.{name}") for name, x in held.items())
    node = onnx.helper.make_node
    model.graph.node.extend(
        [
            node("ReduceMax", ["present_k.0", "read.all"], ["read.most"], keepdims=0),
            node("Mul", ["read.most", "read.none"], ["read.zero"]),
            node("Add", ["before", "read.zero"], ["logits"]),
        ]
    )
    onnx.save(model, path)
    decoder, others = Decoder(path, "t2r", threads=2), copying(path)
    for token in range(20):
        np.testing.assert_array_equal(decoder.step([token]), others.step([token]))
        if token == 9:
            decoder, others = decoder.fork(), others.fork()
    assert decoder._graph.apart == {"k.0", "v.0"} and holds(decoder)
    same(decoder.state(), others.state())


@pytest.mark.parametrize("name", ["softmax", "int8"])
def test_a_plan_serves_many_lengths(name: str, tmp_path: Path) -> None:
    """No step copies a cache, or plans anew."""
    model = Transformer(CONFIGS[name].build())
    checkpoint.save(tmp_path / "m.pt", model, None, {"origin": "random weights"})
    export(checkpoint.load(tmp_path / "m.pt"), tmp_path / "g.onnx", ExportConfig())
    decoder, others = Decoder(tmp_path / "g.onnx", "t2r"), copying(tmp_path / "g.onnx")
    for token in range(4):
        others.step([token])
    plans = plugin.get_operations()
    for token in range(4):
        decoder.step([token])
    assert plugin.get_operations() == plans, "both fuse attention"
    reserve = decoder._states._reserve
    assert reserve is not None and decoder._states._caches == {} == decoder._states._rooms[0]
    addresses = {name: value.data_ptr() for name, value in reserve.buffers.items()}
    for token in range(MIN_ROOM - 4):
        decoder.step([token % VOCABULARY])
    assert {name: value.data_ptr() for name, value in reserve.buffers.items()} == addresses
    decoder.step([1])
    assert all(value.shape()[2] == 2 * MIN_ROOM for value in reserve.buffers.values())


def test_an_error_leaves_the_states_as_they_are(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder(graph, "t2r", threads=1)
    for token in (1, 2, 3):
        decoder.step([token])
    before, session = decoder.state(), decoder._states._session

    class Fails:
        def run_with_iobinding(self, binding: object, options: object) -> None:
            session.run_with_iobinding(binding, options)
            raise RuntimeError("after the run")

    monkeypatch.setattr(decoder._states, "_session", Fails())
    with pytest.raises(Exception, match="after the run"):
        decoder.step([4])
    monkeypatch.setattr(decoder._states, "_session", session)
    same(decoder.state(), before)
    expected = copying(graph)
    expected.set_state(before, 3)
    for token in (5, 6, 7):
        np.testing.assert_array_equal(decoder.step([token]), expected.step([token]))


@pytest.mark.parametrize(
    "rule, gate", [("linear", "none"), ("gated", "data"), ("delta", "none"), ("gated_delta", "data")]
)
def test_prompts_of_update_rules(rule: str, gate: str, tmp_path: Path) -> None:
    """Of several chunks; their graphs run whole on the provider."""
    layer = LinearConfig(4, update_rule=rule, gate=gate, normalizer="none" if "delta" in rule else "z")
    path = exported(replace(PLAIN, layers=(layer, layer)), tmp_path)
    ids = np.random.default_rng(4).integers(0, VOCABULARY, (2, 150))
    logits = {}
    for provider in ("t2r", "cpu"):
        decoder = Decoder(path, provider, threads=2)
        decoder.reset(2)
        logits[provider] = [decoder.prefill(ids), *(decoder.step(token) for token in ids[:, :3].T)]
        assert provider in decoder.placement and len(decoder.placement) == 1
    np.testing.assert_allclose(logits["t2r"], logits["cpu"], rtol=1e-4, atol=1e-4)
