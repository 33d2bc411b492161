"""Graphs that read vectors: models without an embedding, and models of tokens after their embedding."""

from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import small
from small import GPT2, LINEAR, LLAMA, SOFTMAX, WIDTH
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.describe import describe
from t2r_export.export import build, export
from t2r_export.finetune import finetune
from t2r_export.lab.config.recurrent import GRUConfig
from t2r_export.model.sample import sample
from t2r_export.providers.genai import export_genai
from t2r_export.providers.timed import TimedDecoder
from t2r_export.providers.triton import export_triton
from t2r_export.quantize import export_quantized
from t2r_export.verify import verify
from t2r_runtime import Batch, Decoder, Sampling
from t2r_runtime.contract.signature import Signature
from t2r_runtime.decode.score import score
from t2r_runtime.errors import UserError
from test_readme import ROOT, fenced

SIZE = 6  # vector size


def reading(base: UniformConfig, size: int, **other: Any) -> UniformConfig:
    return dataclasses.replace(base, input_size=size, tied_head=False, **other)


MODELS = {
    "projected": reading(GPT2, SIZE, embedding_scale=1.7, embedding_norm=True),
    "of the width": reading(LLAMA, WIDTH, layers=(LINEAR, SOFTMAX)),
    "recurrent": reading(small.RECURRENT, SIZE, layers=(GRUConfig(), LINEAR), attention=GPT2.attention),
}
models = pytest.mark.parametrize("name", MODELS)


def vectors(size: int, batch: int = small.B, length: int = small.T, seed: int = 0) -> Tensor:
    return torch.randn(batch, length, size, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_rows_by_definition() -> None:
    """(W x + b) · scale + position, normalized, against numpy."""
    made, x = small.model(MODELS["projected"]), vectors(SIZE)
    w = {name: value.numpy() for name, value in made.state_dict().items()}
    rows = (x.numpy() @ w["projection.weight"].T + w["projection.bias"]) * 1.7 + w["positions.table.weight"][: small.T]
    spread = np.sqrt(rows.var(-1, keepdims=True) + made.config.embedding_norm.eps)  # type: ignore[union-attr]
    rows = (rows - rows.mean(-1, keepdims=True)) / spread * w["embedding_norm.weight"] + w["embedding_norm.bias"]
    step = made.context(made.init_state(small.B), made.ops(small.T))
    np.testing.assert_allclose(made.embed(x, step).numpy(), rows.reshape(-1, WIDTH), rtol=2e-5, atol=2e-5)


@torch.no_grad()
@settings(max_examples=12)
@given(st.sampled_from(list(MODELS)), st.integers(1, 3), st.integers(1, 9), st.integers(0, 9))
def test_steps_are_the_sequence(name: str, batch: int, length: int, cut: int) -> None:
    made = small.model(MODELS[name]).double()
    x = vectors(made.config.input_size or 0, batch, length)
    start = small.states(made, batch)
    expected, after = made.prefill(x, start)
    rows, states = [], start
    for t in range(length):
        row, states = made.step(x[:, t], states)
        rows.append(row)
    torch.testing.assert_close(torch.stack(rows, 1), expected, rtol=0, atol=1e-9)
    small.assert_states(states, after, 1e-9)
    cut = min(cut, length - 1)
    if cut:
        first, between = made.prefill(x[:, :cut], start)
        second, end = made.prefill(x[:, cut:], between)
        torch.testing.assert_close(torch.cat([first, second], 1), expected, rtol=0, atol=1e-9)
        small.assert_states(end, after, 1e-9)


@models
@pytest.mark.parametrize("options", [{"prefill": True}, {"batch": 3, "state_layout": "packed"}])
def test_graph_is_the_model(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    made, report = small.graph(tmp_path / "g.onnx", MODELS[name], **options)
    assert report.signature.input_size == made.config.input_size
    outcome = small.proof(made, tmp_path / "g.onnx", steps=60)
    assert outcome.passed, outcome


@pytest.mark.parametrize("name", ["learned", "softmax"])
def test_embeddings_of_a_text_are_the_text(name: str, tmp_path: Path) -> None:
    made, _ = small.graph(tmp_path / "tokens.onnx", name)
    _, report = small.graph(tmp_path / "vectors.onnx", name, inputs_embeds=True, prefill=True)
    assert report.signature.input_size == WIDTH
    outcome = small.proof(made, tmp_path / "vectors.onnx", steps=40)
    assert outcome.passed, outcome
    ids, table = small.ids(), made.model.embedding.weight.detach().numpy()
    words, rows = Decoder(tmp_path / "tokens.onnx"), Decoder(tmp_path / "vectors.onnx")
    words.reset(batch=small.B)
    rows.reset(batch=small.B)
    np.testing.assert_array_equal(rows.step(table[ids[:, 0]]), words.step(ids[:, 0].numpy()))
    rest = ids[:, 1:].numpy()
    np.testing.assert_allclose(rows.prefill(table[rest]), words.prefill(rest), atol=2e-5)
    small.assert_states(rows.state(), {k: torch.from_numpy(v) for k, v in words.state().items()}, 1e-5)
    assert rows.position == small.T and not rows.history().size


@pytest.mark.parametrize("config", [MODELS["projected"], dataclasses.replace(GPT2, max_positions=6)])
def test_hidden_state_and_float64(config: UniformConfig, tmp_path: Path) -> None:
    """The smallest number of positions leaves one token after a random state."""
    made, _ = small.graph(tmp_path / "g.onnx", config, output_hidden=True)
    for reference in ("float32", "float64"):
        outcome = verify(made, tmp_path / "g.onnx", steps=10, reference=reference)
        assert outcome.passed, outcome
        assert any(check.name.startswith("hidden") for check in outcome.checks)


def test_a_wrong_projection_is_seen(tmp_path: Path) -> None:
    made, _ = small.graph(tmp_path / "g.onnx", MODELS["projected"])
    assert made.model.projection is not None
    made.model.projection.bias.data[1] += 0.1  # one element only: the norm removes a common shift
    assert not verify(made, tmp_path / "g.onnx", steps=5).passed
    other = small.checkpoint(reading(GPT2, SIZE + 1))
    with pytest.raises(UserError, match="17, vectors of 7 elements; received .* 17, vectors of 6 elements; name"):
        verify(other, tmp_path / "g.onnx", steps=5)


@pytest.mark.parametrize("how", ["fp16", "w8", "w4"])
def test_quantized(how: str, tmp_path: Path) -> None:
    made = small.checkpoint(MODELS["projected"])
    export_quantized(made, tmp_path / "g.onnx", ExportConfig(prefill=True), QuantizeConfig(scheme=how))
    decoder = Decoder(tmp_path / "g.onnx")
    assert np.isfinite(decoder.prefill(vectors(SIZE, 1)[0].numpy())).all()
    rows = Path(tmp_path / "rows.onnx")
    export_quantized(small.checkpoint(), rows, ExportConfig(inputs_embeds=True), QuantizeConfig(scheme=how))
    assert all(node.op_type != "Gather" or "past_position" in node.input for node in onnx.load(rows).graph.node)


def test_snapshots_and_forks(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", MODELS["of the width"])
    one, x = Decoder(tmp_path / "g.onnx"), vectors(WIDTH, 1)[0].numpy()
    one.prefill(x[:3])
    one.save_state(tmp_path / "s.t2r")
    other = one.fork()
    other.load_state(tmp_path / "s.t2r")
    other.reorder([0, 0])
    np.testing.assert_allclose(other.step(np.stack([x[3]] * 2)), one.step(x[3].astype(np.float64)).repeat(2, 0))


def test_interface_and_metadata(tmp_path: Path) -> None:
    _, report = small.graph(tmp_path / "g.onnx", MODELS["projected"], prefill=True)
    for file, dims in zip(report.files, (["B", SIZE], None, ["B", "N", SIZE]), strict=False):
        if file.suffix == ".onnx" and dims:
            first = onnx.load(file, load_external_data=False).graph.input[0]
            assert first.name == "inputs_embeds"
            assert [d.dim_param or d.dim_value for d in first.type.tensor_type.shape.dim] == dims
    metadata = report.signature.to_metadata()
    assert metadata["t2r.input_size"] == str(SIZE)
    assert "t2r.input_size" not in build(small.checkpoint(), ExportConfig())[0].signature.to_metadata()
    for wrong in ("0", "-1", "true", '"6"', str(1 << 25)):
        with pytest.raises(UserError, match="input_size"):
            Signature.from_metadata(metadata | {"t2r.input_size": wrong})
    checkpoint.save(tmp_path / "m.pt", small.model(MODELS["projected"]), None, {})
    for file in ("m.pt", "g.onnx"):
        assert describe(tmp_path / file).details["reads"] == "vectors of 6 elements"
    seconds = TimedDecoder(tmp_path / "g.onnx")
    assert seconds.prompt(3) > 0 and len(seconds.steps(2, 0)) == 2


def test_decoder_refuses(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", MODELS["projected"])
    small.graph(tmp_path / "words.onnx")
    decoder, words = Decoder(tmp_path / "g.onnx"), Decoder(tmp_path / "words.onnx")
    good = np.ones(SIZE, np.float32)
    for wrong, message in [
        (np.array([3]), "floating-point numbers"),
        (good[:-1], r"shape \(1, 6\); received \(5,\)"),
        (np.ones((2, SIZE)), r"shape \(1, 6\)"),
        (good * np.nan, "finite vectors"),
        (np.full(SIZE, 1e300), "finite vectors"),
    ]:
        with pytest.raises(UserError, match=message):
            decoder.step(wrong)
    with pytest.raises(UserError, match=r"shape \(1, T, 6\)"):
        decoder.prefill(np.ones((0, SIZE)))
    with pytest.raises(UserError, match="integers"):
        words.step(good)
    assert decoder.position == 0
    for call in (
        lambda: decoder.generate([1], 2, Sampling(0)),
        lambda: score(decoder, [1, 2]),
        lambda: Batch(decoder),
    ):
        with pytest.raises(UserError, match="a graph that reads token ids; received one that reads vectors of 6"):
            call()


def test_export_and_training_refuse(tmp_path: Path) -> None:
    made, out = small.checkpoint(MODELS["projected"]), tmp_path / "g.onnx"
    with pytest.raises(UserError, match="nothing embeds them"):
        ExportConfig(inputs_embeds=True, draft_check=True)
    with pytest.raises(UserError, match="nothing embeds them"):
        export(made, out, ExportConfig(draft_check=True))
    with pytest.raises(UserError, match="a decoder alone, to read vectors"):
        export(small.checkpoint(small.translator()), out, ExportConfig(inputs_embeds=True))
    with pytest.raises(UserError, match="without a calibration"):
        export_quantized(made, out, ExportConfig(), QuantizeConfig(scheme="int8"))
    for exporter in (export_genai, export_triton):
        with pytest.raises(UserError, match="a model that reads token ids, for"):
            exporter(made, tmp_path / "folder")
    with pytest.raises(UserError, match="only .* with --format genai; received --inputs-embeds"):
        export_genai(small.checkpoint(), tmp_path / "folder", ExportConfig(inputs_embeds=True))
    with pytest.raises(UserError, match="reads token ids, to sample texts"):
        sample(made.model, 4, 4)
    checkpoint.save(tmp_path / "model.pt", made.model, None, {})
    (tmp_path / "text.txt").write_text("some words\n")
    with pytest.raises(UserError, match="reads token ids, to finetune"):
        finetune(FinetuneConfig(model=tmp_path / "model.pt", output=tmp_path / "o.pt", data=(tmp_path / "text.txt",)))
    assert not out.exists()
    with pytest.raises(UserError, match="a head of its own"):
        dataclasses.replace(GPT2, input_size=SIZE)
    with pytest.raises(UserError, match="a decoder that reads vectors"):
        reading(small.translator(), SIZE)


PAGE = (ROOT / "docs" / "vectors.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's programs in order: training succeeds, and the graphs equal the models."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for program in fenced(PAGE, "python"):
        exec(program, names)
    assert np.mean(names["heard"][-5:]) < 0.5 < np.mean(names["heard"][:5]) and names["note"] == 2
    assert len(names["text"]) == 8


@pytest.mark.slow
def test_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training succeeds, the graph equals the model, and it turns where the sign says."""
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(ROOT / "tests" / "policy.py"))
    assert np.mean(names["rewards"][:5]) < 0.6 and np.mean(names["rewards"][-5:]) > 0.9
    np.testing.assert_array_equal(names["turn"], names["goals"])
    outcome = verify(checkpoint.load("policy.pt"), "policy.onnx", steps=1000)
    assert outcome.passed, outcome


@pytest.mark.slow
def test_decision_transformer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training succeeds, and the graph acts as the model over the whole walk at once."""
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(ROOT / "tests" / "decision_transformer.py"))
    assert np.mean(names["losses"][-5:]) < 0.3 * np.mean(names["losses"][:5])
    with torch.no_grad():
        walk = [torch.tensor([column]) for column in zip(*names["steps"], strict=True)]
        at_once = names["model"](names["front"](*walk, names["times"]))[0, 1::3, 0]
    np.testing.assert_allclose(at_once.numpy(), walk[2][0].numpy(), atol=1e-5)
