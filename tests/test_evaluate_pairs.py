"""Evaluation of translators: greedy translations, BLEU, and refused inputs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

import small
import texts
from t2r_export.checkpoints import checkpoint
from t2r_export.cli import main
from t2r_export.config.model import ModelConfig
from t2r_export.data.pairs import read_pairs, write_pairs
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_export.quality.evaluate_pairs import corpus_bleu, evaluate_pairs
from t2r_export.quality.translations import read_sources, translate, translate_by_graph, write_translations
from t2r_runtime.errors import UserError

SOURCES = [[3, 1, 4], [4], [2, 2, 6, 1, 5, 3], [6, 1], [1, 4]]
PAIRS = [("ab", "ba"), ("abc", "cba"), ("h", "h"), ("a b", "b a")]


def config(**changes: object) -> ModelConfig:
    base = small.translator(base="softmax", source_vocabulary=None)
    changed = {
        "vocab_size": len(texts.LETTERS) + 2,
        "bos_token": None,
        "eos_tokens": (texts.EOS, 7),
        "start_tokens": (texts.BOS, 2),
        "banned_tokens": (4,),
        **changes,
    }
    return dataclasses.replace(base, **changed)  # type: ignore[arg-type]


@torch.no_grad()
def alone(model: Transformer, source: list[int], longest: int) -> list[int]:
    """One source's translation by a plain loop."""
    states = model.start(torch.tensor([source]), torch.tensor([len(source)]))
    for token in model.config.start_tokens:
        logits, states = model.step(torch.tensor([token]), states)
    found: list[int] = []
    while len(found) < longest:
        allowed = [n for n in range(model.config.vocab_size) if n not in model.config.banned_tokens]
        best = max(allowed, key=lambda n: float(logits[0, n]))
        if best in model.config.eos_tokens:
            break
        found.append(best)
        logits, states = model.step(torch.tensor([best]), states)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_batch_translations_equal_single_ones(seed: int) -> None:
    model, done = small.model(config(), seed=seed), list[int]()
    with torch.no_grad():
        model.head.weight.mul_(4)  # makes several tokens likely
    found = translate(model, SOURCES, 10, done.append)
    assert found == [alone(model, source, 9) for source in SOURCES]
    assert done == [5]


def test_end_banned_and_maximum_length() -> None:
    found = [row for seed in range(8) for row in translate(small.model(config(), seed=seed), SOURCES, 6)]
    assert max(map(len, found)) == 5
    assert not {4, 7, texts.EOS} & {token for row in found for token in row}
    positions = small.model(config(max_positions=6, eos_tokens=(texts.EOS,), banned_tokens=(texts.EOS,)))
    assert {len(row) for row in translate(positions, SOURCES)} == {4}  # plus an end, which is not read
    assert translate(positions, SOURCES, 1) == [[]] * len(SOURCES)


def test_bleu_equals_sacrebleu() -> None:
    texts_ = ["the hen ran to the hill", "a small red hen", "it was far away from here"]
    same = corpus_bleu(texts_, texts_)
    assert same.score == pytest.approx(100)
    assert same.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    one = corpus_bleu(["the hen ran to a hill"], ["the hen ran to the hill"], beam=4)
    # matches of n-grams of 1 to 4: 5 of 6, 3 of 5, 2 of 4, 1 of 3, at equal lengths
    assert one.score == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert (one.sentences, one.beam) == (1, 4)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    checkpoint.save(tmp_path / "model.pt", small.model(config()), texts.tokenizer(), {"origin": "random"})
    write_pairs(tmp_path / "pairs.tsv", PAIRS)
    return tmp_path / "model.pt"


def test_evaluate_checkpoint(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = model.with_name("pairs.tsv")
    found = evaluate_pairs(model, read_pairs(pairs), bleu=True)
    assert found.text is not None and found.bleu is not None
    assert (found.text.tokens, found.bleu.sentences) == (sum(len(target) + 1 for _, target in PAIRS), 4)
    assert main(["evaluate", str(model), str(pairs), "--bleu", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["text"]["nats"] == pytest.approx(found.text.nats)
    assert shown["bleu"] == dataclasses.asdict(found.bleu)
    assert main(["evaluate", str(model), str(pairs)]) == 0
    mean = f"{found.text.nats:.4f} ± {found.text.standard_error:.4f} nats/token"
    assert capsys.readouterr().out == f"{mean}, perplexity {found.text.perplexity:.2f}, 13 tokens\n"


def test_graph_translates_as_checkpoint(model: Path, tmp_path: Path) -> None:
    graph, pairs = tmp_path / "graph.onnx", tmp_path / "pairs.tsv"
    export(checkpoint.load(model), graph)
    sources = [source for source, _ in PAIRS]
    assert write_translations(model, tmp_path / "ours.tsv", sources) == len(PAIRS)
    greedy = [target for _, target in read_pairs(tmp_path / "ours.tsv")]
    assert [" ".join(text.split()) for text in translate_by_graph(graph, sources, 1, print)] == greedy
    found = evaluate_pairs(graph, read_pairs(pairs), bleu=True, beam=3)
    assert found.text is None and found.bleu is not None and found.bleu.beam == 3
    assert (
        evaluate_pairs(graph, read_pairs(pairs), bleu=True).bleu
        == evaluate_pairs(model, read_pairs(pairs), bleu=True).bleu
    )


def test_write_translations(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, out = tmp_path / "lines.txt", tmp_path / "out.tsv"
    lines.write_text("ab\n\n a\tb \nh\n")
    assert read_sources(lines) == ["ab", "a b", "h"]
    assert read_sources(tmp_path / "pairs.tsv") == [source for source, _ in PAIRS]
    assert main(["sample", str(model), str(out), "--sources", str(lines)]) == 0
    assert capsys.readouterr().out == f"{out}: 3 pairs\n"
    assert [source for source, _ in read_pairs(out)] == ["ab", "a b", "h"]
    for arguments, said in (
        ((str(out), "--sources", str(lines), "--beam", "2"), "an exported graph, for a beam"),
        ((str(tmp_path / "out.npy"), "--sources", str(lines)), "a name for a file of pairs that ends in .tsv"),
        ((str(out),), "expected one of --tokens and --sources; received neither; pass one"),
        ((str(out), "--sources", str(tmp_path / "none.txt")), "none.txt, which does not exist"),
    ):
        assert main(["sample", str(model), *arguments]) == 2
        assert said in capsys.readouterr().err
    lines.write_bytes(b"ab\n\xff\n")
    with pytest.raises(UserError, match="UTF-8 in line 2 of"):
        read_sources(lines)


def test_evaluate_pairs_refuses_bad_input(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = tmp_path / "pairs.tsv"
    with pytest.raises(UserError, match="expected an exported graph and BLEU, for a beam; received .*model.pt"):
        evaluate_pairs(model, read_pairs(pairs), bleu=True, beam=4)
    with pytest.raises(UserError, match="a model.pt or a folder, for nats per token"):
        evaluate_pairs(tmp_path / "graph.onnx", read_pairs(pairs))
    texts.write_teacher(tmp_path / "decoder.pt")
    with pytest.raises(UserError, match="a translator, for pairs; received a decoder alone"):
        evaluate_pairs(tmp_path / "decoder.pt", read_pairs(pairs))
    text = texts.write_text(tmp_path / "text")
    budget = ("--budget", "9k", "--data", str(text))
    for arguments, do in (
        (("evaluate", str(model), str(text)), "to measure on a text; received a translator; pass it a .tsv of pairs"),
        (("sample", str(model), str(tmp_path / "o.npy"), "--tokens", "9"), "received a translator; pass it sources"),
        (("choose", str(model), str(tmp_path / "o.pt"), *budget), "received a translator; name the mixer"),
    ):
        assert main([*arguments]) == 2
        assert do in capsys.readouterr().err
    assert main(["evaluate", str(model), str(text), "--bleu", "1"]) == 2
    assert "expected a .tsv of sources and translations with --bleu" in capsys.readouterr().err
