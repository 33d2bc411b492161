"""Every target writes the same model: against the eager model, against other targets, and by its operators."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import small
from small import CONFIGS, LINEAR, B, G, H, K, V
from t2r_export.config.export import ExportConfig
from t2r_export.config.targets import TARGETS, find
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

ALLOW = "ALLOW_RELEASED_ONNX_OPSET_ONLY"
CONSTANT = [name for name in CONFIGS if not any(state.grows for state in small.model(name).state_spec())]
# portable: tests/test_verify.py, test_correct_graph_passes
OTHERS = [target for target in TARGETS if target != "portable"]
CASES = [(target, name) for target in OTHERS for name in (CONSTANT if TARGETS[target].static else CONFIGS)]


pytestmark = pytest.mark.usefixtures("newest_opset")


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


@pytest.mark.parametrize("target, name", CASES)
def test_the_model(target: str, name: str, tmp_path: Path) -> None:
    made, report = small.graph(tmp_path / "g.onnx", name, target=target)
    assert report.signature.target == Decoder(tmp_path / "g.onnx", threads=1).signature.target == target
    outcome = small.proof(made, tmp_path / "g.onnx", steps=60)
    assert outcome.passed, outcome


@pytest.mark.parametrize("target", ["fused", "standard"])
@pytest.mark.parametrize("name", ["learned", "hybrid"])
@pytest.mark.parametrize("options", [{"state_layout": "packed"}, {"batch": 3}, {"state_layout": "packed", "batch": 3}])
def test_layouts_and_batches(target: str, name: str, options: dict[str, Any], tmp_path: Path) -> None:
    made, _ = small.graph(tmp_path / "g.onnx", name, target=target, **options)
    outcome = small.proof(made, tmp_path / "g.onnx", steps=30)
    assert outcome.passed, outcome


@pytest.mark.parametrize("name", CONSTANT)
def test_one_another(name: str, tmp_path: Path) -> None:
    """All four agree from the same random states over 20 steps: logits and every state."""
    start, tokens = small.arrays(small.states(small.model(name))), small.ids(length=20).numpy()
    results = {}
    for target in TARGETS:
        small.graph(tmp_path / f"{target}.onnx", name, target=target, batch=B)
        decoder = Decoder(tmp_path / f"{target}.onnx", threads=1)
        decoder.set_state(start)
        results[target] = {"logits": decoder.prefill(tokens), **decoder.state()}
    expected = results.pop("portable")
    for target, received in results.items():
        assert received.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(received[key], value, rtol=2e-5, atol=2e-5, err_msg=f"{target} {key}")


@pytest.mark.parametrize(
    "target, opsets, ir", [("portable", {"": 21}, 10), ("fused", {"": 21, "com.microsoft": 1}, 10),
                           ("standard", {"": 27}, 13), ("npu", {"": 21}, 10)]
)  # fmt: skip
def test_versions_are_written_down(target: str, opsets: dict[str, int], ir: int, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", target=target)
    model = onnx.load(tmp_path / "g.onnx")
    assert {o.domain: o.version for o in model.opset_import} == opsets
    assert model.ir_version == ir
    assert {node.domain for node in model.graph.node} == set(opsets)


@pytest.mark.parametrize("target, domain, per_layer", [("fused", "com.microsoft", 2), ("standard", "", 1)])
def test_a_node_for_each_sum(target: str, domain: str, per_layer: int, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", target=target)
    nodes = [node for node in onnx.load(tmp_path / "g.onnx").graph.node if node.op_type == "LinearAttention"]
    assert len(nodes) == 2 * per_layer  # S, and on target fused z, of two layers
    for node in nodes:
        assert node.domain == domain
        assert {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} == {
            "update_rule": b"linear", "scale": 1.0, "q_num_heads": H, "kv_num_heads": G
        }  # fmt: skip


@pytest.mark.parametrize("name, skip", [("learned", "SkipLayerNormalization"),
                                        ("rotary_drop", "SkipSimplifiedLayerNormalization")])  # fmt: skip
def test_a_norm_takes_the_sum_before_it(name: str, skip: str, tmp_path: Path) -> None:
    """Two per layer: each norm but the first, which has a sum only if positions are added."""
    counts = {}
    for target in ("portable", "fused", "standard"):
        small.graph(tmp_path / "g.onnx", name, target=target)
        counts[target] = operators(tmp_path / "g.onnx")
    layers = 2
    assert counts["fused"][skip] == 2 * layers + (name == "learned")
    assert counts["portable"]["Add"] - counts["fused"]["Add"] >= counts["fused"][skip]
    assert not any("Skip" in operator for target in ("portable", "standard") for operator in counts[target])


@pytest.mark.parametrize("layout", ["layers", "packed"])
def test_what_cannot_be_inferred_is_declared(layout: str, tmp_path: Path) -> None:
    """Quantizers and the mobile checkers stop at a tensor without a shape."""
    small.graph(tmp_path / "g.onnx", target="fused", state_layout=layout)
    graph = onnx.load(tmp_path / "g.onnx").graph
    shapes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in [*graph.value_info, *graph.output]
    }
    assert {name for node in graph.node for name in node.output if name} <= shapes.keys()
    numerator, state = next(n.output for n in graph.node if n.op_type == "LinearAttention")
    assert (shapes[numerator], shapes[state]) == (["B", 1, H * V], ["B", G, K, V])


@pytest.mark.parametrize("name", CONSTANT)
def test_npu_is_static_and_flat(name: str, tmp_path: Path) -> None:
    _, report = small.graph(tmp_path / "g.onnx", name, target="npu")
    assert report.signature.batch == 1
    graph = onnx.load(tmp_path / "g.onnx").graph
    for value in [*graph.input, *graph.output, *graph.value_info]:
        dims = value.type.tensor_type.shape.dim
        assert len(dims) <= 4
        assert all(d.dim_value > 0 and not d.dim_param for d in dims), value.name
    used = operators(tmp_path / "g.onnx")
    assert not used.keys() & {"LayerNormalization", "Cos"}


def test_npu_avoids_the_product_that_was_wrong(tmp_path: Path) -> None:
    """No Reshape to [·, K, 1] feeds a Mul: it was silently wrong on one accelerator."""
    small.graph(tmp_path / "g.onnx", "rotary_keep", target="npu")
    graph = onnx.load(tmp_path / "g.onnx").graph
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    columns = {n.output[0] for n in graph.node if n.op_type == "Reshape" and constants[n.input[1]][-1] == 1}
    assert columns
    assert not columns & {name for node in graph.node if node.op_type == "Mul" for name in node.input}


def test_npu_far_positions(tmp_path: Path) -> None:
    """cos computed by sin is exact enough for large angles."""
    results = []
    for target in ("portable", "npu"):
        small.graph(tmp_path / "g.onnx", "rotary_keep", target=target, batch=1)
        decoder = Decoder(tmp_path / "g.onnx", threads=1)
        state = decoder.state() | {"position": np.array([1_000_003], np.int32)}
        decoder.set_state(state)
        results.append(decoder.prefill([1, 2, 3]))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-4)


def test_standard_needs_no_switch_of_onnx_runtime(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", target="standard")
    program = f"import t2r_runtime; t2r_runtime.Decoder({str(tmp_path / 'g.onnx')!r})"
    without = {name: value for name, value in os.environ.items() if name != ALLOW}
    subprocess.run([sys.executable, "-c", program], check=True, env=without)
    small.newer_opset(tmp_path / "g.onnx")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=without)
    assert done.returncode != 0
    said = done.stderr.splitlines()[-1]
    assert "expected an opset that ONNX Runtime reads; received a newer one (Current official support for " in said
    assert said.endswith(f"; export with --target portable or fused, or set {ALLOW}=0 in the environment")


def test_unknown_target() -> None:
    for make, what in ((find, "a target of"), (lambda name: ExportConfig(target=name), "target to be one of")):
        with pytest.raises(UserError) as caught:
            make("gpu")
        known = "portable, fused, standard, npu"
        assert str(caught.value) == f"expected {what} {known}; received 'gpu'; did you mean npu?"


def test_npu_refuses_packed_states() -> None:
    with pytest.raises(UserError) as caught:
        ExportConfig(target="npu", state_layout="packed")
    assert str(caught.value) == (
        "expected --state-layout layers with target npu, whose tensors have at most 4 axes; "
        "received 'packed'; leave out --state-layout, or choose another target"
    )


def test_npu_refuses_growing_states(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        small.graph(tmp_path / "g.onnx", "softmax", target="npu")
    assert str(caught.value) == (
        "expected states of constant size for target npu; received a model whose k.0, v.0, k.1, v.1 grow with every "
        "token; export with --context, or convert all layers"
    )
    assert not list(tmp_path.iterdir())


def test_a_wrong_target_does_not_pass(tmp_path: Path) -> None:
    """A scale left at its default, K^-0.5, is detected."""
    made, _ = small.graph(tmp_path / "g.onnx", target="fused")
    model = onnx.load(tmp_path / "g.onnx")
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "scale":
                attribute.f = 0.0
    onnx.save(model, tmp_path / "g.onnx")
    assert LINEAR.feature_size > 1
    assert not small.proof(made, tmp_path / "g.onnx", steps=3).passed
