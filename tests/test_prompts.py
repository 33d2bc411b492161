"""Quantized graphs read prompts at once and step by step, equal within the promised tolerance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import small
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.proof.tolerances import QUANTIZED, tolerance
from t2r_export.quantize import export_quantized
from t2r_export.verify import verify
from t2r_runtime import Decoder, PrefixCache, Sampling

LENGTHS = (1, 2, 63, 64, 65, 193)
RULES = (Sampling(0, stop_tokens=()), Sampling(1, seed=3, stop_tokens=()))
NEW = 12  # tokens
FORMS = {
    "fp16": QuantizeConfig(scheme="fp16"),
    "w8": QuantizeConfig(scheme="w8"),
    "w4": QuantizeConfig(scheme="w4"),
    "exact w8": QuantizeConfig(scheme="w8", accuracy_level=0),
    "exact w4": QuantizeConfig(scheme="w4", accuracy_level=0),
}
EXACT = ("exact w8", "exact w4")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The storyteller in each form: trained, and wide enough that int8 activations round both ways."""
    folder = tmp_path_factory.mktemp("forms")
    model = checkpoint.load(Path(__file__).parents[1] / "models" / "storyteller" / "model.pt")
    options = ExportConfig(prefill=True, draft_check=True)
    made = {}
    for number, (name, form) in enumerate(FORMS.items()):
        made[name] = folder / f"{number}.onnx"
        export_quantized(model, made[name], options, form)
    return made


def prompt(decoder: Decoder, length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, decoder.signature.vocab_size, length).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", FORMS)
def test_generate_equals_stream(name: str, graphs: dict[str, Path]) -> None:
    decoder = Decoder(graphs[name], threads=1)
    for rules in RULES:
        for length in LENGTHS:
            ids, written = prompt(decoder, length), []
            for write in (
                lambda: decoder.generate(ids, NEW, rules),  # noqa: B023
                lambda: list(decoder.stream(ids, NEW, rules)),  # noqa: B023
            ):
                decoder.reset()
                written.append(write())
            assert written[0] == written[1], (length, rules)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_float_products_prompts_equal_steps(name: str, graphs: dict[str, Path]) -> None:
    decoder = Decoder(graphs[name], threads=1)
    steps = Decoder(graphs[name], threads=1, companions=())
    bound = tolerance("cpu", "none")
    for length in LENGTHS:
        ids = prompt(decoder, length)
        for each in (decoder, steps):
            each.reset()
        expected = steps.prefill(ids)
        np.testing.assert_allclose(decoder.prefill(ids), expected, rtol=0, atol=bound.logits)
        for rules in RULES:
            steps.reset()
            text = steps.generate(ids, NEW, rules)
            for draft in (None, "lookup"):
                decoder.reset()
                assert decoder.generate(ids, NEW, rules, draft=draft) == text, (length, rules, draft)


@pytest.mark.parametrize("name", FORMS)
def test_prompt_without_prefill_graph_is_steps(name: str, graphs: dict[str, Path]) -> None:
    one, other = (Decoder(graphs[name], threads=1, companions=()) for _ in range(2))
    for length in LENGTHS:
        one.reset()
        other.reset()
        ids = prompt(one, length)
        logits = one.prefill(ids)
        for token in ids:
            by_steps = other.step(token)
        np.testing.assert_array_equal(logits, by_steps)


@pytest.mark.parametrize("fault, form, seen", [(2.0, "w8", True), (0.01, "w8", False), (0.01, "exact w8", True)])
def test_verify_prompt_bounds(fault: float, form: str, seen: bool, tmp_path: Path) -> None:
    """The bound is below the scheme's error to the eager model, which could hide a fault of the prefill graph."""

    class Faulty(Decoder):
        def prefill(self, ids: object) -> np.ndarray:
            logits = super().prefill(ids)  # type: ignore[arg-type]
            logits[0, 0] += fault
            return logits

    assert fault < QUANTIZED["w8"].logits
    model = small.checkpoint("rotary_keep")
    export_quantized(model, tmp_path / "q.onnx", ExportConfig(prefill=True), FORMS[form])
    right, wrong = (
        verify(model, tmp_path / "q.onnx", steps=8, decoder=d(tmp_path / "q.onnx")) for d in (Decoder, Faulty)
    )
    name = "prefill graph against steps, logits"
    assert next(check.passed for check in right.checks if check.name == name)
    assert next(check.passed for check in wrong.checks if check.name == name) is not seen


def test_prefix_cache_separates_quantizations(tmp_path: Path) -> None:
    """And companion graphs: with one checkpoint and scheme, logits differed by up to 2.9."""
    model, text, reused = small.checkpoint("rotary_keep"), [1, 2, 3, 4, 5, 6, 7], []
    forms = [
        QuantizeConfig(scheme="w4", block_size=size, asymmetric=bias) for size in (16, 256) for bias in (False, True)
    ]
    for number, form in enumerate(forms):
        export_quantized(model, tmp_path / f"{number}.onnx", ExportConfig(prefill=True), form)
        for companions in (("prefill",), ()):
            for _ in range(2):
                decoder = Decoder(tmp_path / f"{number}.onnx", threads=1, companions=companions)
                cache = PrefixCache(decoder, block=3, folder=tmp_path / "states")
                cache.read(text)
                reused.append(cache.reused)
    assert reused == [0, 6] * 8


def test_snapshot_across_quantizations(tmp_path: Path) -> None:
    model = small.checkpoint("rotary_keep")
    four, eight = (tmp_path / f"{scheme}.onnx" for scheme in ("w4", "w8"))
    for path in (four, eight):
        export_quantized(model, path, ExportConfig(), QuantizeConfig(scheme=path.stem))
    one, other = Decoder(four, threads=1), Decoder(eight, threads=1)
    one.prefill([1, 2, 3])
    one.save_state(tmp_path / "saved.state")
    other.load_state(tmp_path / "saved.state")
    for name, state in one.state().items():
        np.testing.assert_array_equal(other.state()[name], state)
