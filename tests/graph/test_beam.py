"""A beam graph gives the n best of Translator, whose search is held to transformers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from runtime import translators
from runtime.transformers_twin import assert_same
from runtime.translators import SOURCE, TARGET
from t2r_export.graph.beam import beam_graph
from t2r_runtime import Beam, Translator, UserError

LONGEST = 13
SOURCES = [[int(token) for token in np.random.default_rng(n).integers(0, SOURCE, 1 + n * 5 % 9)] for n in range(5)]
Edit = Callable[[onnx.ModelProto], None]


def made(folder: Path, seed: int = 1, edit: Edit = lambda step: None, **changes: Any) -> Translator:
    """The tiny translator with its beam graph, made from a step graph that `edit` has had its way with."""
    graphs = {"encoder": "encoder.onnx", "beam": "beam.onnx"}
    path = translators.save(folder, seed, graphs=graphs, **changes)
    signature, step = translators.signature(**changes), translators.step_model(seed, **changes)
    edit(step)
    beam = beam_graph(step, translators.encoder_model(seed, **changes), signature)
    helper.set_model_props(beam, signature.companion("beam").to_metadata())
    (folder / "beam.onnx").write_bytes(beam.SerializeToString())
    return Translator(path, threads=1)


def compare(translator: Translator, beam: Beam) -> None:
    assert translator.has_beam_graph
    expected = list(translator.translate(SOURCES, beam))
    assert_same([translator.search(source, beam) for source in SOURCES], expected)


@pytest.mark.parametrize("seed", [1, 4])
@pytest.mark.parametrize("length_penalty", [0.6, 1.0])
def test_the_n_best_of_translator(seed: int, length_penalty: float, tmp_path: Path) -> None:
    translator = made(tmp_path / "t", seed, top_k=20)  # of which the beam graph has none
    for width in (1, 2, 4, 8, TARGET):
        compare(translator, Beam(width, length_penalty, max_tokens=LONGEST, n_best=width))
    compare(translator, Beam(4, length_penalty, max_tokens=2, n_best=2))


OPTIONS: list[dict[str, Any]] = [
    {"early_stopping": True},
    {"early_stopping": "never"},
    {"early_stopping": "never", "length_penalty": -0.5},
    {"length_penalty": 0.0},
    {"forced_end": False},
    {"min_tokens": 5},
    {"min_tokens": LONGEST},
    {"n_best": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_each_rule(options: dict[str, Any], tmp_path: Path) -> None:
    translator = made(tmp_path / "t", 4)
    for width in (1, 3):
        n_best = min(width, options.get("n_best", width))
        compare(translator, Beam(width, **{"max_tokens": LONGEST, **options, "n_best": n_best}))


@pytest.mark.parametrize(
    "changes",
    [
        {"start_tokens": (3,)},
        {"start_tokens": (3, 1, 4, 1, 5)},
        {"eos_tokens": (9, 2, 11, 5)},
        {"eos_tokens": ()},
        {"banned_tokens": ()},
        {"banned_tokens": (6, 1, 2)},
    ],
    ids=str,
)
def test_other_tokens(changes: dict[str, Any], tmp_path: Path) -> None:
    translator = made(tmp_path / "t", **changes)
    for width in (1, 5):
        compare(translator, Beam(width, max_tokens=LONGEST, n_best=width, min_tokens=1))


def test_a_beam_that_does_not_reorder_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from t2r_export.graph import beam as module

    right = module.search.choose

    def stays(signature: Any) -> onnx.GraphProto:
        graph = right(signature)
        for node in graph.node:
            if list(node.output) == ["rows"]:
                node.op_type, node.input[:] = "Identity", ["every_row"]
        return graph

    monkeypatch.setattr(module.search, "choose", stays)
    translator = made(tmp_path / "t")
    with pytest.raises(AssertionError):
        compare(translator, Beam(4, max_tokens=LONGEST, n_best=4))


def test_a_start_state_left_at_its_initial_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = translators.signature
    with monkeypatch.context() as patch:
        patch.setattr(translators, "signature", lambda *given, **changes: right(*given, start_states=(), **changes))
        signature = translators.signature()
    beam = beam_graph(translators.step_model(1), translators.encoder_model(1), signature)
    translator = made(tmp_path / "t")
    helper.set_model_props(beam, right().companion("beam").to_metadata())
    (tmp_path / "t" / "beam.onnx").write_bytes(beam.SerializeToString())
    with pytest.raises(AssertionError):
        compare(translator, Beam(4, max_tokens=LONGEST, n_best=4))


def test_logits_that_are_not_finite(tmp_path: Path) -> None:
    def edit(step: onnx.ModelProto) -> None:
        (bias,) = (tensor for tensor in step.graph.initializer if tensor.name == "b_o")
        bias.CopyFrom(onnx.numpy_helper.from_array(np.full(TARGET, np.nan, np.float32), "b_o"))

    translator = made(tmp_path / "t", edit=edit)
    with pytest.raises(UserError, match="expected finite logits; received others; check the graph with t2r verify"):
        translator.search([1], Beam(2))


def test_what_is_refused(tmp_path: Path) -> None:
    step, encoder = translators.step_model(), translators.encoder_model()
    for changes, message in (
        (
            {"cache": True},
            "expected states of constant size for a beam graph (--beam); received a model whose cache grow",
        ),
        ({"batch": 1}, "expected a beam graph of any width; received a batch of 1; leave out --batch or --beam"),
    ):
        with pytest.raises(UserError, match=f"^{re.escape(message)}"):
            beam_graph(step, encoder, translators.signature(**changes))
    translator = made(tmp_path / "t")
    for beam, message in (
        (Beam(2, no_repeat_ngram=2), "expected a beam without penalties for a beam graph; received BeamOptions("),
        (Beam(30), "expected a beam of at most the vocabulary, 29; received 30; choose a smaller one"),
    ):
        with pytest.raises(UserError, match=f"^{re.escape(message)}"):
            translator.search([1], beam)
    with pytest.raises(UserError, match="expected a source of at most 12 tokens; received 13"):
        translator.search([1] * 13)
    alone = Translator(translators.save(tmp_path / "alone"))
    with pytest.raises(UserError, match="expected a translator with a beam graph; received one without; export with"):
        alone.search([1])
