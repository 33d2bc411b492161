"""The graph's own options (`t2r.generation`) hold unless the caller sets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract_pages import PAGES
from runtime import graphs
from runtime.conftest import Open, OpenTranslator
from t2r_runtime import Batch, Beam, Decoder, PrefixCache, Sampling, UserError
from t2r_runtime.contract.options import DECODER, TRANSLATOR, BeamOptions, SamplingOptions

OF_GRAPH = {
    "temperature": 0.7,
    "top_k": 6,
    "top_p": 0.8,
    "min_p": 0.02,
    "repetition_penalty": 1.7,
    "no_repeat_ngram": 2,
}
OF_SEARCH = {
    "width": 3,
    "max_tokens": 7,
    "min_tokens": 4,
    "length_penalty": 0.3,
    "early_stopping": "never",
    "forced_end": False,
    "repetition_penalty": 1.5,
    "no_repeat_ngram": 2,
}
PROMPT, SEED, COUNT = [3, 1, 4], 5, 12


def asked(**options: Any) -> Sampling:
    return Sampling(seed=SEED, stop_tokens=(), **options)


def text(decoder: Decoder, sampling: Sampling) -> list[int]:
    decoder.reset()
    return decoder.generate(PROMPT, COUNT, sampling)


def test_option_precedence() -> None:
    assert Sampling().resolved() == SamplingOptions()
    assert Sampling().resolved(OF_GRAPH) == SamplingOptions(**OF_GRAPH)  # type: ignore[arg-type]
    assert Sampling(temperature=1, no_repeat_ngram=0).resolved({"temperature": 0, "top_k": 3}) == SamplingOptions(
        temperature=1, top_k=3
    )
    assert Beam().resolved() == BeamOptions()
    assert Beam(n_best=2).resolved(OF_SEARCH) == BeamOptions(**OF_SEARCH, n_best=2)  # type: ignore[arg-type]
    assert not Beam(early_stopping=False).resolved(OF_SEARCH).early_stopping


def test_graph_options_apply_to_text(opened: Open) -> None:
    plain, own = opened(), opened(generation=OF_GRAPH)
    assert text(own, asked()) == text(plain, asked(**OF_GRAPH)) != text(plain, asked())
    for name in OF_GRAPH:
        table = getattr(SamplingOptions(), name)  # an explicit default overrides the graph's option
        expected = asked(**{**OF_GRAPH, name: table})
        assert text(own, asked(**{name: table})) == text(plain, expected), name


def test_graph_options_apply_to_all_generators(opened: Open, tmp_path: Path) -> None:
    expected = text(opened(), asked(**OF_GRAPH))
    own = opened(generation=OF_GRAPH)
    own.reset()
    assert list(own.stream(PROMPT, COUNT, asked())) == expected
    batch = Batch(own)
    batch.add(PROMPT, COUNT, asked())
    assert [batch.step()[0] for _ in range(COUNT)] == expected
    assert PrefixCache(own).generate(PROMPT, COUNT, asked()) == expected


def test_graph_options_apply_to_translation(translator: OpenTranslator) -> None:
    plain, own = translator(), translator(generation=OF_SEARCH)
    sources = [[5, 7, 1, 2], [4, 3], [12, 1, 6]]

    def found(way: Any, **options: Any) -> Any:
        return list(way.translate(sources, Beam(**options)))

    assert found(own) == found(plain, **OF_SEARCH) != found(plain)
    for name in OF_SEARCH:
        table = 256 if name == "max_tokens" else getattr(BeamOptions(), name)
        assert found(own, **{name: table}) == found(plain, **{**OF_SEARCH, name: table}), name
    greedy = Sampling(temperature=0, repetition_penalty=1.5, no_repeat_ngram=2)
    assert own.generate(sources[0], 9) == plain.generate(sources[0], 9, greedy)


def test_graph_max_tokens_limited_by_positions(translator: OpenTranslator) -> None:
    own = translator(max_positions=6, generation={"max_tokens": 40, "forced_end": False, "min_tokens": 40, "width": 1})
    ((best,),) = own.translate([[5, 7, 1]])
    assert len(best.tokens) == 6
    with pytest.raises(UserError, match="max_tokens of at most 6"):
        next(own.translate([[5, 7, 1]], Beam(max_tokens=40)))


def test_n_best_above_graph_width(translator: OpenTranslator) -> None:
    own = translator(generation={"width": 2})
    with pytest.raises(UserError, match="n_best of at most the width, 2; received 3"):
        own.translate([[5, 7, 1]], Beam(n_best=3))
    assert Beam(n_best=6).resolved({"width": 6}).n_best == 6


BAD: tuple[object, ...] = (
    [],
    {"seed": 1},
    {"stop_tokens": []},
    {"top_k": None},
    {"top_k": 2.0},
    {"top_k": True},
    {"top_k": 1 << 31},
    {"temperature": -1},
    {"temperature": "1"},
    {"top_p": 0},
    {"no_repeat_ngram": 65},
    {"n_best": 1},
)


@pytest.mark.parametrize("options", [*BAD, {"width": 2}], ids=json.dumps)
def test_bad_options_of_a_decoder(options: object, tmp_path: Path) -> None:
    path = graphs.save(tmp_path / "g.onnx", generation=options)
    with pytest.raises(UserError, match="a bad value of generation") as caught:
        Decoder(path)
    assert caught.value.kind == "metadata"


@pytest.mark.parametrize("options", [*BAD, {"temperature": 1}, {"width": 0}, {"early_stopping": 1}], ids=json.dumps)
def test_bad_options_of_a_translator(options: object, translator: OpenTranslator) -> None:
    with pytest.raises(UserError, match="a bad value of generation"):
        translator(generation=options)


def test_companion_without_generation_options(opened: Open) -> None:
    signature = opened(generation=OF_GRAPH).signature
    assert signature.generation == OF_GRAPH
    assert signature.companion("prefill").generation is None
    assert "t2r.generation" not in signature.companion("prefill").to_metadata()
    assert "t2r.generation" not in opened().signature.to_metadata()


def test_the_tables_of_the_contract() -> None:
    section = PAGES["generation"].partition("### The graph's options")[2].partition("- **")[0]
    for name in (*DECODER, *TRANSLATOR):
        assert f"`{name}`" in section
    assert set(DECODER) == set(OF_GRAPH) and set(TRANSLATOR) == set(OF_SEARCH)
