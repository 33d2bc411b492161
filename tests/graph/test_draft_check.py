"""The draft-check graph: logits after every token and states after the kept tokens equal those of steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import small
from small import CONFIGS, B
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.graph.layout import pack
from t2r_export.quantize import quantize
from t2r_runtime import Decoder
from t2r_runtime.contract.signature import MOST_CHECKED
from t2r_runtime.errors import UserError

MODELS = {name: config for name, config in CONFIGS.items() if config.encoder is None} | {"span": small.FORMS["span"]}
ENDLESS = ("none", "rotary_after", "gated_rotary", "delta_rotary", "hybrid_gated", "conv_after", "gru")


pytestmark = pytest.mark.usefixtures("newest_opset")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoder]:
    """Decoders by the name of their model, each used many times."""
    folder = tmp_path_factory.mktemp("draft-check")
    decoders = {}
    for name in ENDLESS:
        small.graph(folder / f"{name}.onnx", name, draft_check=True, prefill=True)
        decoders[name] = Decoder(folder / f"{name}.onnx", threads=1)
    return decoders


def assert_as_steps(
    decoder: Decoder, start: dict[str, np.ndarray], ids: np.ndarray, keep: np.ndarray, tolerance: float = 5e-5
) -> None:
    """Assert logits and states of ids (B, N) with keep (B,), from states that have read `small.CACHED` tokens."""
    decoder.set_state(start, small.CACHED)
    logits, states = [], []
    for column in ids.T:
        logits.append(decoder.step(column))
        states.append(decoder.state())
    decoder.set_state(start, small.CACHED)
    received, after = decoder.check(ids, keep), decoder.state()
    assert received.shape == (*ids.shape, decoder.signature.vocab_size)
    np.testing.assert_allclose(received, np.stack(logits, 1), rtol=tolerance, atol=tolerance)
    expected = {name: np.stack([states[n - 1][name][row] for row, n in enumerate(keep)]) for name in after}
    for name, value in expected.items():
        assert after[name].dtype == value.dtype
        np.testing.assert_allclose(after[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("target", ["portable", "fused", "standard"])
@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_layer(name: str, target: str, tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx", MODELS[name], target=target, draft_check=True)
    decoder = Decoder(tmp_path / "g.onnx", threads=1)
    start = small.arrays(checkpoint.model.fold_states(small.states(checkpoint.model)))
    alike = any(spec.grows for spec in decoder.signature.states)
    for length, keep in ((2, (1, 2)), (7, (3, 6)), (11, (11, 1))):
        ids = small.ids(length=length).numpy()
        assert_as_steps(decoder, start, ids, np.array([keep[0]] * B if alike else keep))


@settings(max_examples=40, deadline=None)
@given(data=st.data(), name=st.sampled_from(ENDLESS))
def test_property_any_cut_is_the_text(made: dict[str, Decoder], data: st.DataObject, name: str) -> None:
    """Reading a text in runs that each keep some of their tokens gives the logits and states of the whole text."""
    decoder = made[name]
    text = np.array(data.draw(st.lists(st.integers(0, small.VOCABULARY - 1), min_size=3, max_size=40)))
    decoder.reset(batch=1)
    expected, states = decoder.prefill(text), decoder.state()
    decoder.reset()
    place = 0
    while place < text.size:
        behind = data.draw(st.integers(1, MOST_CHECKED))
        run = text[place : place + behind]
        keep = data.draw(st.integers(1, run.size))
        wrong = (run[keep:] + data.draw(st.integers(0, 1))) % small.VOCABULARY
        logits = decoder.check([[*run[:keep], *wrong]], keep)[0, keep - 1]
        place += keep
    np.testing.assert_allclose(logits[None], expected, rtol=1e-3, atol=2e-4)
    np.testing.assert_array_equal(decoder.history(), text)
    for label, value in decoder.state().items():
        np.testing.assert_allclose(value, states[label], rtol=1e-3, atol=2e-4, err_msg=label)


@pytest.mark.parametrize("scheme", ["fp16", "w8", "w4"])
@pytest.mark.parametrize("name", ["rotary_after", "hybrid_gated"])
def test_quantized(name: str, scheme: str, tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx", name, draft_check=True)
    report = quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme=scheme))
    assert not report.left_out
    start = small.arrays(checkpoint.model.fold_states(small.states(checkpoint.model)))
    assert_as_steps(Decoder(tmp_path / "q.onnx", threads=1), start, small.ids(length=9).numpy(), np.array([4, 9]), 2e-2)


def test_int8_has_none(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", draft_check=True)
    report = quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme="int8"))
    assert list(report.left_out) == ["draft_check"] and "rounds the tokens of a run together" in str(report.left_out)
    with pytest.raises(UserError, match="expected a draft-check graph beside the step graph; received none"):
        Decoder(tmp_path / "q.onnx").check([1, 2], 1)


def test_packed_and_top_k(tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx", "none", draft_check=True, state_layout="packed", top_k=3)
    decoder = Decoder(tmp_path / "g.onnx", threads=1)
    states = small.arrays(checkpoint.model.fold_states(small.states(checkpoint.model)))
    start = pack(states, decoder.signature.states)
    assert_as_steps(decoder, start, small.ids(length=6).numpy(), np.array([2, 5]))
    (check,) = tmp_path.glob("*.draft_check.onnx")
    outputs = {v.name: v.type.tensor_type.shape.dim for v in onnx.load(check, load_external_data=False).graph.output}
    assert [len(outputs[name]) for name in ("logits", "top_logits", "top_tokens")] == [3, 3, 3]


@pytest.mark.parametrize(
    ("ids", "keep", "message"),
    [
        ([1] * 33, 1, "at most 32 tokens to check at once; received 33"),
        ([1, 2, 3], 0, "keep in 1 … 3"),
        ([1, 2, 3], 4, "keep in 1 … 3"),
        ([1, 2, 3], [1, 1], r"a number or integers \(1,\)"),
        ([1, 2, 3], 1.5, "keep in 1 … 3"),
        ([], 1, "at least one token"),
    ],
)
def test_bad_calls(ids: list[int], keep: object, message: str, made: dict[str, Decoder]) -> None:
    decoder = made["none"]
    decoder.reset(batch=1)
    with pytest.raises(UserError, match=message):
        decoder.check(ids, keep)  # type: ignore[arg-type]
    assert decoder.position == 0


def test_caches_keep_as_many(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "softmax", draft_check=True)
    decoder = Decoder(tmp_path / "g.onnx", threads=1)
    decoder.reset(batch=2)
    with pytest.raises(UserError, match="equal for all sequences, whose caches have one length"):
        decoder.check([[1, 2], [3, 4]], [1, 2])


def test_the_end_of_positions(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "learned", draft_check=True)
    decoder = Decoder(tmp_path / "g.onnx", threads=1)
    decoder.prefill([[1] * (small.POSITIONS - 2)])
    with pytest.raises(UserError, match=f"at most {small.POSITIONS} tokens"):
        decoder.check([1, 2, 3], 1)
    assert decoder.check([1, 2], 1).shape == (1, 2, small.VOCABULARY)


@pytest.mark.parametrize("options", [{"target": "npu"}, {"float16_safe": True}])
def test_refused(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match="draft-check|--draft-check"):
        ExportConfig(draft_check=True, **options)  # type: ignore[arg-type]


def test_translators_have_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a decoder alone for --draft-check"):
        export(
            small.checkpoint(next(name for name, c in small.MODELS.items() if c.encoder is not None)),
            tmp_path / "g.onnx",
            ExportConfig(draft_check=True),
        )
    assert not list(tmp_path.iterdir())


def test_one_file_of_weights(tmp_path: Path) -> None:
    _, report = small.graph(tmp_path / "g.onnx", "none", draft_check=True, prefill=True)
    assert sorted(path.name.split(".")[-2] for path in report.files if path.suffix == ".onnx") == [
        "draft_check", "g", "prefill",
    ]  # fmt: skip
    assert len([path for path in report.files if path.suffix == ".data"]) == 1
