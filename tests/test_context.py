"""A context turns growing caches into fixed-size states: the same function up to its end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import small
from cli_models import Output, letter_tokenizer, run
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import WindowConfig
from t2r_export.convert import context_of, convert, with_context
from t2r_export.model.transformer import Transformer
from t2r_export.verify import verify
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

N = 11  # context length in tokens
DECODERS = ["softmax", "hybrid", "mamba2", "gated_delta", "memory_softmax", "yarn", "ntk"]
TRANSLATORS = ["translator_softmax"]
REFUSED = ["shared_weights", "alibi_kinds", "translator_shared", "translator_merged_softmax"]
EPS = 1e-4


@torch.no_grad()
@pytest.mark.parametrize("name", [*DECODERS, *TRANSLATORS])
def test_same_function_up_to_the_context(name: str) -> None:
    made = small.model(name)
    bounded = with_context(made, N)
    assert not any(spec.grows for spec in bounded.state_spec())
    shared = {weight.data_ptr() for weight in made.parameters()}
    assert all(weight.data_ptr() in shared for weight in bounded.parameters())
    sources = () if made.encoder is None else small.sources()
    logits = []
    for model, length in ((made, N), (bounded, N), (made, N + 5), (bounded, N + 5)):
        ids = small.ids(length=length)
        logits.append(model.prefill(ids, model.start(*sources) if sources else model.init_state(len(ids)))[0])
    torch.testing.assert_close(logits[1], logits[0], rtol=EPS, atol=EPS)
    torch.testing.assert_close(logits[3][:, :N], logits[2][:, :N], rtol=EPS, atol=EPS)
    assert (logits[3] - logits[2]).abs().max() > 1e-3  # tokens that left the context mattered


@pytest.mark.parametrize("options", [{}, {"prefill": True, "draft_check": True}, {"target": "npu"}])
@pytest.mark.parametrize("name", ["softmax", "gated_delta", "yarn"])
def test_graph_refuses_what_is_past_the_context(tmp_path: Path, name: str, options: dict[str, object]) -> None:
    made, report = small.graph(tmp_path / "out.onnx", name, context=str(N), **options)
    assert not any(state.grows for state in report.signature.states)
    assert report.signature.max_positions == N
    decoder = Decoder(tmp_path / "out.onnx")
    ids = small.ids(1, N + 1)
    with torch.no_grad():
        expected = made.model(ids[:, :N])
    for token, logits in zip(ids[0, :N], expected[0], strict=True):
        torch.testing.assert_close(torch.from_numpy(decoder.step([int(token)])[0]), logits, rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match=f"{N}"):
        decoder.step([int(ids[0, N])])


@pytest.mark.parametrize("name", ["gated_delta", "yarn", "translator_softmax"])
def test_oldest_tokens_leave_a_sliding_context(tmp_path: Path, name: str) -> None:
    made, report = small.graph(tmp_path / "out.onnx", name, context=f"{N}:slide")
    assert report.signature.max_positions == made.config.max_positions
    assert small.proof(made, tmp_path / "out.onnx", 64).passed


@pytest.mark.parametrize("context", [str(N), f"{N}:slide"])
@pytest.mark.parametrize("name", ["softmax", "gated_delta", "translator_softmax"])
def test_verify(tmp_path: Path, name: str, context: str) -> None:
    made, _ = small.graph(tmp_path / "out.onnx", name, context=context, prefill=True)
    report = small.proof(made, tmp_path / "out.onnx", 30)
    assert report.passed
    assert "context against growing caches, logits" in [check.name for check in report.checks]


def test_verify_fails_where_the_context_is_not_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nearer(model: Transformer, length: int) -> Transformer:
        return with_context(model, N - 3)

    monkeypatch.setattr("t2r_export.export.with_context", nearer)
    monkeypatch.setattr("t2r_export.verify.with_context", nearer)
    made, _ = small.graph(tmp_path / "out.onnx", "gated_delta", context=str(N))
    monkeypatch.setattr("t2r_export.verify.context_of", lambda model, layers: N)
    report = verify(made, tmp_path / "out.onnx", steps=20)
    assert [check.name for check in report.checks if not check.passed] == ["context against growing caches, logits"]


def test_another_model_is_refused(tmp_path: Path) -> None:
    small.graph(tmp_path / "out.onnx", "gated_delta", context=str(N))
    with pytest.raises(UserError, match="a graph of this model"):
        verify(small.checkpoint("hybrid"), tmp_path / "out.onnx", steps=5)


def test_caches_of_8_bits_have_no_context() -> None:
    with pytest.raises(UserError, match="float32, for a context; received cache_bits=8; convert the model"):
        with_context(small.model("softmax_8_bits"), N)


def test_a_window_of_the_model_is_no_context() -> None:
    made = small.model("yarn")
    assert context_of(made, [{"parts": []}]) is None
    windowed = convert(made, WindowConfig(window=5, sinks=0), "softmax")
    layers = [{"parts": [{"inside": {"kind": "window", "window": 5}}]}]
    assert context_of(windowed, layers) is None
    for odd in (
        None,
        [],
        3,
        {"parts": None},
        {"parts": 3},
        {"parts": [None]},
        {"parts": [[1]]},
        {"parts": [{"inside": 3}]},
    ):
        assert context_of(made, [odd]) is None
    assert context_of(made, layers) == 5
    with pytest.raises(UserError, match="window"):
        context_of(made, [{"parts": [{"inside": {"kind": "window", "window": "5"}}]}])


@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_have_no_window_are_refused(name: str) -> None:
    with pytest.raises(UserError):
        with_context(small.model(name), N)


def test_nothing_to_bound() -> None:
    with pytest.raises(UserError, match="softmax layers, for a context"):
        with_context(small.model(), N)


@pytest.mark.parametrize("context", ["0", "-3", "5:slid", "5:", "slide", "5.0", "٥", "9999999", ""])
def test_bad_context(context: str) -> None:
    with pytest.raises(UserError, match="a context of N or N:slide"):
        ExportConfig(context=context)


def test_two_ends_are_refused() -> None:
    with pytest.raises(UserError, match="one end of the context"):
        ExportConfig(context="8", past_end="wrap:5")
    assert ExportConfig(context="8:slide", past_end="wrap:5").window == 8


def test_command(tmp_path: Path, capsys: Output) -> None:
    checkpoint.save(tmp_path / "model.pt", small.model("hybrid"), letter_tokenizer(), {})
    out, _ = run(capsys, "export", tmp_path / "model.pt", tmp_path / "out.onnx", "--context", N)
    assert "constant" in out
    run(capsys, "verify", tmp_path / "model.pt", tmp_path / "out.onnx", "--steps", 20)
    _, err = run(capsys, "export", tmp_path / "model.pt", tmp_path / "no.onnx", "--context", "x", code=2)
    assert "N:slide" in err
    assert not (tmp_path / "no.onnx").exists()
