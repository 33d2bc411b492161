"""Descriptions of checkpoints, graphs and untrusted files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import small
from small import CONFIGS, GPT2, POSITIONS, SOFTMAX, WIDTH, G, K, V
from t2r_export.checkpoints import checkpoint
from t2r_export.cli.description import text
from t2r_export.config.export import ExportConfig
from t2r_export.config.finetune import FAR_SHARES
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.describe import Description, _shares, describe
from t2r_export.export import export
from t2r_export.lab.config.span import SpanConfig
from t2r_export.quantize import quantize
from t2r_runtime.errors import UserError


def lines(description: Description) -> list[str]:
    """The printed lines, with one space between columns."""
    return [" ".join(line.split()) for line in text(description).splitlines()]


def both(folder: Path, config: Any = GPT2, **options: Any) -> tuple[Description, Description]:
    """Descriptions of a checkpoint and its graph."""
    checkpoint.save(folder / "m.pt", small.model(config), None, {"origin": "dice"})
    export(checkpoint.load(folder / "m.pt"), folder / "g.onnx", ExportConfig(**options))
    return describe(folder / "m.pt"), describe(folder / "g.onnx")


@pytest.mark.parametrize("name", CONFIGS)
def test_checkpoint_and_graph_descriptions_agree(name: str, tmp_path: Path) -> None:
    made, graph = both(tmp_path, name)
    assert (made.kind, graph.kind) == ("checkpoint", "graph")
    for field in (
        "states",
        "state_bytes",
        "growth_bytes",
        "break_even",
        "max_positions",
        "vocab_size",
        "memory_reason",
    ):
        assert getattr(made, field) == getattr(graph, field), field
    assert made.special_tokens == graph.special_tokens == {"bos": 1, "eos": [2]}
    assert [small.described(layer)["kind"] for layer in made.layers] == [
        small.described(layer)["kind"] for layer in graph.layers
    ]
    for description in (made, graph):
        said = json.loads(json.dumps(description.to_dict()))
        assert (said["memory"], said["memory_reason"]) == (description.memory, description.memory_reason)
        assert said["memory"] == ("grows" if any(s.grows for s in description.states) else "constant")
        assert all(line.isprintable() and len(line) < 400 for line in lines(description))


@pytest.mark.parametrize("name", ["moe", "product_keys"])
def test_parameters_that_a_token_reads(name: str, tmp_path: Path) -> None:
    """Active parameters: two experts of four and one of five, or the values that its heads choose."""
    made, graph = both(tmp_path, name)
    quantize(tmp_path / "g.onnx", tmp_path / "w8.onnx", QuantizeConfig(scheme="w8"))
    idle = {"moe": 2 * 3 * 7 * WIDTH + 4 * 2 * 3 * WIDTH, "product_keys": (25 - 2 * 3) * WIDTH}[name]
    for description in (made, graph, describe(tmp_path / "w8.onnx")):
        assert description.active_parameters == description.parameters - idle
        assert f"parameters, of which a token reads {description.active_parameters:,}," in lines(description)[0]


def test_fold_status(tmp_path: Path) -> None:
    made, graph = both(tmp_path, "hybrid")
    kept = "not folded: positions are rotated between the projection and φ (positions='keep')"
    softmax = "not folded: softmax layers have no feature map to fold"
    assert [layer["parts"][0]["fold"] for layer in made.layers] == [kept, softmax, "not folded yet: export folds it"]
    assert [layer["parts"][0]["fold"] for layer in graph.layers] == [kept, softmax, "folded"]


def test_memory_and_break_even(tmp_path: Path) -> None:
    recurrent, _ = both(tmp_path)
    layer = 4 * G * K * (V + 1)
    assert recurrent.state_bytes == 2 * layer + 4  # plus the position
    assert recurrent.growth_bytes == 0
    assert recurrent.memory == "constant"
    # a cache of 13 tokens: 2 layers · 2 · 3 · 4 · 4 bytes · 13 = 2,496; of 3 tokens 576 and of 4 768
    assert recurrent.state_bytes == 604
    assert recurrent.break_even == 4
    hybrid, _ = both(tmp_path, "hybrid")
    assert hybrid.growth_bytes == 2 * G * V * 4
    assert hybrid.memory == "grows"
    assert "bytes of a sequence: 604 at the start, 96 more a token" in lines(hybrid)
    teacher, _ = both(tmp_path, dataclasses.replace(GPT2, layers=(SOFTMAX,) * 3))
    assert teacher.break_even is None
    assert teacher.memory == "grows"
    assert not any("break-even" in line for line in lines(teacher))


FIXED = "constant: all states have a fixed size"
REASONS = {
    **dict.fromkeys(("learned", "delta", "window", "hybrid_sum", "hybrid_gated", "lstm", "gru", "average"), FIXED),
    "hybrid": "grows: layer 1 (softmax)",
    "softmax": "grows: layers 0-1 (softmax)",
    "mamba2": "grows: layer 2 (softmax)",
    "shared_weights": "grows: layer 0 (softmax), layers 1-2 (shared)",
}


@pytest.mark.parametrize("name", REASONS)
def test_memory_reason(name: str, tmp_path: Path) -> None:
    for description in both(tmp_path, name):
        assert f"memory: {REASONS[name]}" in lines(description)


def test_folded_spans(tmp_path: Path) -> None:
    config = SpanConfig(9, ramp=2)
    made, graph = both(tmp_path, dataclasses.replace(GPT2, layers=(config, config)))
    assert "0-1 span span=9,ramp=2" in " ".join(text(made).split())
    spans = small.described(graph.layers[0])["spans"]
    assert len(spans) == G
    assert f"0 span span=9,ramp=2,spans={spans}" in " ".join(text(graph).split())


def test_packed_states_have_same_memory_reason(tmp_path: Path) -> None:
    made, graph = both(tmp_path, "hybrid", state_layout="packed")
    assert (graph.memory, graph.memory_reason) == (made.memory, made.memory_reason)


def test_reach(tmp_path: Path) -> None:
    made, graph = both(tmp_path)
    assert made.reach == graph.reach == f"{POSITIONS} positions"
    assert both(tmp_path, past_end="clamp")[1].reach == f"{POSITIONS} positions, then its last one"
    assert both(tmp_path, "rotary_keep")[1].reach == "no end"
    assert both(tmp_path, past_end="wrap:8")[1].reach == "no end, absolute positions modulo 8"


def test_details(tmp_path: Path) -> None:
    made, graph = both(tmp_path, batch=3, state_layout="packed")
    assert made.details["provenance"] == {"origin": "dice"}
    assert made.details["sha256"] == checkpoint.load(tmp_path / "m.pt").sha256
    assert (made.details["positions"], made.details["tokenizer"]) == ("learned", False)
    assert graph.details["opset"] == {"ai.onnx": 21}
    assert (graph.details["ir_version"], graph.details["batch"], graph.details["tokenizer"]) == (10, 3, False)
    assert graph.details["operators"]["Gather"] == 2
    assert graph.details["metadata"]["t2r.checkpoint_sha256"] == json.dumps(made.details["sha256"])
    assert {s.name: s.shape[1] for s in graph.states if s.name != "position"} == {"S": 2, "z": 2}


def test_lines(tmp_path: Path) -> None:
    said = lines(both(tmp_path, "rotary_drop")[1])
    assert said[0].startswith(f"{tmp_path / 'g.onnx'}: a graph, ")
    assert "reach: no end" in said
    assert f"memory: {FIXED}" in said
    assert "bytes of a sequence: 604" in said
    assert "layers mixer options feed-forward fold" in said
    options = "feature_size=5,positions=drop,query_scale=0.5,guard.kind=add,guard.eps=0.001"
    assert f"0-1 linear {options} dense folded" in said
    assert "S 0-1 float32 B × 3 × 5 × 4 240" in said
    assert "position - int32 B 4" in said
    assert "special tokens: bos 1, eos (2)" in said
    assert "opset: ai.onnx 21" in said
    hybrid, graph = map(lines, both(tmp_path, "hybrid"))
    assert "1 softmax - dense not folded: softmax layers have no feature map to fold" in graph
    assert any(line.startswith("k 1 float32 B × 3 × T × 4 48 a token") for line in hybrid)
    assert "provenance: origin dice" in hybrid


@pytest.mark.parametrize("name", ["learned", "hybrid_gate", "mixed"])
def test_text_output_has_no_json(name: str, tmp_path: Path) -> None:
    for description in both(tmp_path, name):
        assert not set("{}[]\"'") & set(text(description).replace(str(tmp_path), "").replace("positions='keep'", ""))


@pytest.mark.parametrize("name", ["learned", "rotary_keep", "hybrid"])
def test_parameter_count_equals_export(name: str, tmp_path: Path) -> None:
    source, report = small.graph(tmp_path / "g.onnx", name, prefill=True)
    assert describe(tmp_path / "g.onnx").parameters == report.parameters
    quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="w8"))
    assert describe(tmp_path / "q.onnx").parameters == report.parameters
    for strange in ("-1", "9" * 30, "many", ""):  # without a valid count, the file's
        claiming(tmp_path / "q.onnx")
        model = onnx.load(tmp_path / "q.onnx")
        kept = {p.key: p.value for p in model.metadata_props} | {"t2r.parameters": strange}
        onnx.helper.set_model_props(model, kept)
        onnx.save(model, tmp_path / "q.onnx")
        assert describe(tmp_path / "q.onnx").parameters > 0


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected an ONNX file; received .*, which does not exist; check"):
        describe(tmp_path / "g.onnx")
    with pytest.raises(UserError, match="expected a checkpoint at .*m.pt; received nothing"):
        describe(tmp_path / "m.pt")


@pytest.mark.parametrize("content", [b"", b"not a graph", b"\xff" * 100])
def test_other_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(content)
    with pytest.raises(UserError) as caught:
        describe(tmp_path / "g.onnx")
    assert str(caught.value).endswith("; export the model again with t2r-export")
    assert "\n" not in str(caught.value)


def claiming(path: Path, **values: Any) -> Path:
    """The graph with other values in its metadata; None removes a key."""
    model = onnx.load(path)
    metadata = {p.key: p.value for p in model.metadata_props}
    metadata |= {f"t2r.{key}": json.dumps(value) for key, value in values.items()}
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {k: v for k, v in metadata.items() if v != json.dumps("REMOVE")})
    onnx.save(model, path)
    return path


FORM = "expected metadata as the contract defines it; received "
ATTENTION = {
    "kind": "attention",
    "heads": 6,
    "kv_heads": 3,
    "head_size": 4,
    "inside": {"kind": "softmax"},
    "fold": "not folded",
}


def layer(**changes: Any) -> dict[str, Any]:
    """A described layer with changed attention values."""
    return {"parts": [ATTENTION | changes, {"kind": "dense", "size": 11}]}


@pytest.mark.parametrize(
    "values, message",
    [
        (
            {"contract": "REMOVE"},
            "expected a step graph with t2r metadata; received a graph without the key t2r.contract",
        ),
        (
            {"contract": 3},
            "expected contract version 1; received version 3; export the model again, or use",
        ),
        ({"states": "REMOVE"}, "expected the metadata key t2r.states; received a graph without it; export the model"),
        ({"states": 3}, f"{FORM}no list as states; export the model again"),
        ({"layers": [3]}, f"{FORM}a bad value of layers; export the model again"),
        ({"vocab_size": "many"}, f"{FORM}a bad value of vocab_size; export the model again"),
        ({"eos_tokens": [None]}, FORM),
        (
            {"layers": [{}]},
            "expected layers of parts in the metadata key t2r.layers; received {}; export the model again",
        ),
        (
            {"layers": [layer(fold=3)]},
            "expected layers of parts in the metadata key t2r.layers; received {'parts': [{'kind': 'attention', ",
        ),
        (
            {"layers": [layer(kv_heads="3")]},
            "expected kv_heads to be an integer from 1 to 1048576; received '3'; correct kv_heads",
        ),
        (
            {"layers": [{"parts": [None]}]},
            "expected layers of parts in the metadata key t2r.layers; received {'parts': [None]}; export the mod",
        ),
        (
            {"layers": [layer(inside={"kind": "other"})]},
            "expected layer.parts (attention).inside.kind to be one of softmax, ",
        ),
        (
            {"layers": [layer(inside={"kind": "linear", "feature_size": 5, "guard": {"kind": "clamp", "eps": "1"}})]},
            "expected guard eps to be a finite positive number; received '1'; correct guard eps",
        ),
    ],
)
def test_untrusted_metadata_is_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")
    with pytest.raises(UserError) as caught:
        text(describe(claiming(tmp_path / "g.onnx", **values)))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("rows", [None, [], [[0, 0.5]], [[0, 0.5, 2]], [["x", 0.1, 0.2]], [[10**5000, 0.1, 0.2]], 3])
def test_shares_of_strangers_are_left_out(rows: Any) -> None:
    for runs in ([{FAR_SHARES: rows}], {FAR_SHARES: rows}, [rows]):
        assert _shares({"finetune": runs}) == {}
    assert _shares({"finetune": [{FAR_SHARES: [[3, 0.126, 1]]}]}).popitem()[1] == "layer 3 0.13/1.00"
