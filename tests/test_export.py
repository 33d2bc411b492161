"""Interface and metadata of exported graphs, and refused options; test_verify covers their values."""

from __future__ import annotations

import dataclasses
import errno
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers

import small
import texts
from small import CONFIGS, GPT2, LINEAR, POSITIONS, VOCABULARY, B, G, K, V
from t2r_export.config.export import ExportConfig
from t2r_export.config.layer import LayerConfig, mixer_of
from t2r_export.config.plain import from_plain
from t2r_export.config.targets import TARGETS
from t2r_export.errors import CheckFailed
from t2r_export.export import build, export
from t2r_export.fold import fold
from t2r_export.graph import file as graph_file
from t2r_export.graph.layout import pack, unpack
from t2r_export.graph.weights import fill
from t2r_runtime import Decoder
from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import UserError

names = pytest.mark.parametrize("name", CONFIGS)
LAYOUTS = pytest.mark.parametrize("layout", ["layers", "packed"])


def forms(values: Any) -> dict[str, tuple[int | str, ...]]:
    return {
        v.name: tuple(d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim)  # symbol or number
        for v in values
    }


@names
@LAYOUTS
@pytest.mark.parametrize("batch", [None, 3])
def test_inputs_and_outputs_follow_contract(name: str, layout: str, batch: int | None, tmp_path: Path) -> None:
    _, report = small.graph(tmp_path / "g.onnx", name, state_layout=layout, batch=batch)
    model = onnx.load(tmp_path / "g.onnx")
    onnx.checker.check_model(model, full_check=True)
    rows: int | str = "B" if batch is None else batch
    shapes = {s.name: tuple(rows if d == "B" else d for d in s.shape) for s in report.signature.states}
    grown = {n: tuple("T+1" if d == "T" else d for d in shape) for n, shape in shapes.items()}
    assert forms(model.graph.input) == {"input_ids": (rows,)} | {f"past_{n}": s for n, s in shapes.items()}
    assert forms(model.graph.output) == {"logits": (rows, VOCABULARY)} | {f"present_{n}": s for n, s in grown.items()}
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 21)]
    assert model.ir_version == 10
    assert {node.domain for node in model.graph.node} == {""}


@names
def test_metadata(name: str, tmp_path: Path) -> None:
    checkpoint, report = small.graph(tmp_path / "g.onnx", name)
    metadata = {p.key: p.value for p in onnx.load(tmp_path / "g.onnx").metadata_props}
    signature = Signature.from_metadata(metadata)
    assert signature == report.signature
    config = checkpoint.config
    assert list(signature.states) == checkpoint.model.state_spec()
    assert (signature.vocab_size, signature.bos_token, signature.eos_tokens) == (VOCABULARY, 1, (2,))
    assert (signature.batch, signature.max_positions, signature.past_end) == (None, config.max_positions, "refuse")
    assert (signature.state_layout, signature.target, signature.quantization) == ("layers", "portable", "none")
    assert signature.checkpoint_sha256 == checkpoint.sha256
    assert signature.producer.startswith("t2r-export ")
    assert signature.tokenizer is None
    for layer, config_of_layer, folded in zip(signature.layers, config.layers, report.folds, strict=True):
        assert layer["parts"][0]["fold"] == folded.status
        parts = [{name: value for name, value in part.items() if name != "fold"} for part in layer["parts"]]
        said, expected = from_plain(LayerConfig, {**layer, "parts": parts}, "layer"), config_of_layer
        if folded.folded:
            inside = dataclasses.replace(mixer_of(expected.parts[0]), folded=True)
            expected = expected.with_mixer(inside)
        assert said == expected


def test_options_in_metadata(tmp_path: Path) -> None:
    checkpoint = dataclasses.replace(small.checkpoint(), tokenizer='{"a": "tokenizer"}')
    report = export(checkpoint, tmp_path / "g.onnx", ExportConfig(batch=3, state_layout="packed", past_end="clamp"))
    metadata = {p.key: p.value for p in onnx.load(tmp_path / "g.onnx").metadata_props}
    signature = Signature.from_metadata(metadata)
    assert signature == report.signature
    assert (signature.batch, signature.state_layout, signature.past_end) == (3, "packed", "clamp")
    assert signature.tokenizer == '{"a": "tokenizer"}'


@torch.no_grad()
@settings(max_examples=25)
@given(
    st.sampled_from(list(CONFIGS)), st.sampled_from(["layers", "packed"]), st.sampled_from([None, B]), st.integers(1, 5)
)
def test_graph_computes_step(name: str, layout: str, batch: int | None, steps: int) -> None:
    """Steps from random states in ONNX's reference interpreter, which is independent of ONNX Runtime."""
    made = small.checkpoint(name)
    bundle, _ = build(made, ExportConfig(batch=batch, state_layout=layout))
    model, signature = bundle.step, bundle.signature
    fill(model, bundle.weights)
    session = onnx.reference.ReferenceEvaluator(model)
    states = small.states(made.model)
    fed = pack(states, signature.states)
    for ids in small.ids(length=steps).T:
        expected, states = made.model.step(ids, states)
        logits, *after = session.run(None, {"input_ids": ids.numpy()} | {f"past_{n}": a for n, a in fed.items()})
        np.testing.assert_allclose(logits, expected.numpy(), atol=2e-4)
        fed = dict(zip((state.name for state in signature.states), after, strict=True))
        small.assert_states(unpack(fed, made.model.state_spec()), states, 1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_top_k_logits(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    made, report = small.graph(tmp_path / "g.onnx", "rotary_keep", target=target, top_k=4, batch=B)
    assert report.signature.top_k == 4
    decoder = Decoder(tmp_path / "g.onnx", threads=1)
    values, tokens = decoder.top_k(small.ids())
    with torch.no_grad():
        expected, places = made.model(small.ids())[:, -1].topk(4)
    np.testing.assert_array_equal(tokens, places)
    np.testing.assert_allclose(values, expected, atol=1e-4)
    assert small.proof(made, tmp_path / "g.onnx", steps=20).passed


def test_packed_equals_layers(tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "layers.onnx", "hybrid")
    small.graph(tmp_path / "packed.onnx", "hybrid", state_layout="packed")
    specs = checkpoint.model.state_spec()
    layers, joined = Decoder(tmp_path / "layers.onnx"), Decoder(tmp_path / "packed.onnx")
    start = small.arrays(small.states(checkpoint.model))
    layers.set_state(start)
    joined.set_state(pack(start, joined.signature.states))
    np.testing.assert_allclose(layers.prefill(small.ids()), joined.prefill(small.ids()), atol=1e-6)
    small.assert_states(unpack(joined.state(), specs), small_tensors(layers.state()), 1e-6)


def small_tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def test_save_load_round_trip(tmp_path: Path) -> None:
    from t2r_export.checkpoints import checkpoint

    made = small.model("hybrid")
    checkpoint.save(tmp_path / "m.pt", made, None, {})
    loaded = checkpoint.load(tmp_path / "m.pt")
    export(dataclasses.replace(loaded, model=made), tmp_path / "before.onnx")
    export(loaded, tmp_path / "after.onnx")
    assert (tmp_path / "before.onnx").read_bytes() == (tmp_path / "after.onnx").read_bytes()


def test_report(tmp_path: Path) -> None:
    checkpoint, report = small.graph(tmp_path / "g.onnx")
    model = onnx.load(tmp_path / "g.onnx")
    assert report.files == [tmp_path / "g.onnx"]
    assert report.nodes == len(model.graph.node)
    assert [f.status for f in report.folds] == ["folded", "folded"]
    stored = sum(int(np.prod(t.dims)) for t in model.graph.initializer if not t.name.startswith("const_"))
    assert report.parameters == stored
    assert checkpoint.config == GPT2.build(), "the checkpoint itself is not folded"


def test_weights_keep_their_names(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "hybrid")
    model = onnx.load(tmp_path / "g.onnx")
    weights = {t.name for t in model.graph.initializer if not t.name.startswith("const_")}
    folded, _ = fold(small.model("hybrid"))
    # a layer's q, k, v and a feed-forward's gate, up; a feature map of q does not count
    joined = (r"(parts\.0\.)[qkv]\.", r"\1q_k_v."), (r"(parts\.1\.)(gate|up)\.", r"\1gate_up.")
    names = {name for name, _ in folded.named_parameters()}
    for pattern, together in joined:
        names = {re.sub(pattern, together, name) for name in names}
    assert weights - {"ropes.0.table"} == names
    nodes = {n.name: n.op_type for n in model.graph.node}
    products = ("0.parts.0.q_k_v", "1.parts.0.q_k_v", "2.parts.0.qkv", "2.parts.1.gate_up")
    assert {nodes[f"blocks.{name}"] for name in products} == {"Gemm"}
    assert {"embedding", "head"} <= nodes.keys()
    assert list(nodes.values()).count("Gemm") == 3 * 4 + 1, "qkv, o, gate with up, down; and the head"


def test_external_data(tmp_path: Path) -> None:
    checkpoint = small.checkpoint()
    inline = export(checkpoint, tmp_path / "inline.onnx").files
    graph, data = export(checkpoint, tmp_path / "g.onnx", external_bytes=1000).files
    assert inline == [tmp_path / "inline.onnx"]
    assert data.parent == graph.parent
    results = []
    for path in (graph, inline[0]):
        decoder = Decoder(path)
        decoder.reset(batch=B)
        results.append(decoder.prefill(small.ids()))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch": 0}, "expected batch to be an integer from 1 to 65536; received 0; correct batch"),
        ({"batch": 65537}, "expected batch to be an integer from 1 to 65536; received 65537; correct batch"),
        ({"top_k": 0}, "expected top_k to be an integer from 1 to 4194304; received 0; correct top_k"),
        ({"top_k": 18}, "expected at most 17 logits, the model's vocabulary; received 18; correct --top-k"),
        (
            {"past_end": "wrap"},
            "expected past_end of refuse, clamp or wrap:N, N of at least 1; received 'wrap'; choose one of those",
        ),
        (
            {"state_layout": "flat"},
            "expected state_layout to be one of layers, packed; received 'flat'; choose one of those for state_layout",
        ),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        small.graph(tmp_path / "g.onnx", **options)
    assert str(caught.value) == message
    assert list(tmp_path.iterdir()) == []


def test_unpackable_states_are_refused(tmp_path: Path) -> None:
    layers = (LINEAR, dataclasses.replace(LINEAR, feature_size=K + 1))
    with pytest.raises(UserError) as caught:
        small.graph(tmp_path / "g.onnx", dataclasses.replace(GPT2, layers=layers), state_layout="packed")
    assert str(caught.value) == (
        "expected states of one shape to pack into S; received S.0 ['B', 3, 5, 4] and S.1 ['B', 3, 6, 4]; "
        "export with --state-layout layers"
    )


def test_wrong_fold_is_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t2r_export.fold.fold_error", lambda *_: 1e-9)
    with pytest.raises(CheckFailed, match="layer 0 folded differs by 1.0e-09 relative, tolerance 1e-10"):
        small.graph(tmp_path / "g.onnx")
    assert list(tmp_path.iterdir()) == []


def test_full_disk_keeps_old_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.graph(tmp_path / "g.onnx")
    before = (tmp_path / "g.onnx").read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(graph_file, "parts", full)
    with pytest.raises(
        UserError, match="expected to be able to write .*g.onnx; received No space left on device; choo"
    ):
        small.graph(tmp_path / "g.onnx", "hybrid")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"g.onnx": before}


def rewritten(path: Path, change: Any) -> Path:
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    return path


def test_graph_must_match_metadata(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")

    def lose_a_state(model: onnx.ModelProto) -> None:
        outputs = [o for o in model.graph.output if o.name != "present_z.1"]
        del model.graph.output[:]
        model.graph.output.extend(outputs)

    with pytest.raises(
        UserError, match="outputs that the graph's metadata lists; received missing outputs present_z.1;"
    ):
        Decoder(rewritten(tmp_path / "g.onnx", lose_a_state))


def test_wrong_shape_in_metadata_is_refused(tmp_path: Path) -> None:
    _, report = small.graph(tmp_path / "g.onnx")
    first, *others = report.signature.states
    wrong = dataclasses.replace(first, shape=("B", G, V, K))  # K and V swapped

    def claim(model: onnx.ModelProto) -> None:
        claimed = dataclasses.replace(report.signature, states=(wrong, *others))
        del model.metadata_props[:]
        onnx.helper.set_model_props(model, claimed.to_metadata())

    with pytest.raises(UserError, match=r"past_S.0 float32 \(B, 3, 5, 4\) for float32 \(B, 3, 4, 5\)"):
        Decoder(rewritten(tmp_path / "g.onnx", claim))


@pytest.mark.parametrize("past_end", ["refuse", "clamp"])
def test_past_end_of_learned_table(past_end: str, tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx", past_end=past_end)
    decoder = Decoder(tmp_path / "g.onnx")
    ids = small.ids(1, POSITIONS + 3)
    decoder.prefill(ids[:, :POSITIONS])
    if past_end == "refuse":
        with pytest.raises(
            UserError, match="expected at most 40 tokens, where this model's positions end; received 1 m"
        ):
            decoder.step(ids[:, POSITIONS])
        return
    checkpoint.model.positions.past_end = "clamp"
    with torch.no_grad():
        expected = checkpoint.model(ids)[:, -1]
    np.testing.assert_allclose(decoder.prefill(ids[:, POSITIONS:]), expected.numpy(), atol=1e-4)


def test_unused_nodes_are_not_written(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "rotary_drop")
    graph = onnx.load(tmp_path / "g.onnx").graph
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    assert {name for node in graph.node for name in node.output} <= used
    assert {tensor.name for tensor in graph.initializer} <= used
    assert not {"Sin", "Cos"} & {node.op_type for node in graph.node}


def test_unsupported_tokenizer_is_noted(tmp_path: Path) -> None:
    known = texts.tokenizer()
    assert export(dataclasses.replace(small.checkpoint(), tokenizer=known), tmp_path / "g.onnx").notes == ()
    made = Tokenizer.from_str(known)
    made.normalizer = normalizers.Lowercase()
    report = export(dataclasses.replace(small.checkpoint(), tokenizer=made.to_str()), tmp_path / "g.onnx")
    assert report.notes == (
        "runtimes will not open the tokenizer, for the normalizer Lowercase: pass them token numbers",
    )


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_a_tokenizer_that_is_no_json_is_noted(text: str, tmp_path: Path) -> None:
    report = export(dataclasses.replace(small.checkpoint(), tokenizer=text), tmp_path / "g.onnx")
    assert report.notes == ("runtimes will not open the tokenizer, for text that is not JSON: pass them token numbers",)
