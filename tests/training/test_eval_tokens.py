"""Number of evaluated tokens, their choice, and standard errors."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import small
import texts
from t2r_export.batches.batch import Batch, window_batches
from t2r_export.batches.pair_batches import Tokenizers, tokenize_pairs
from t2r_export.batches.windows import WindowBatches
from t2r_export.cli import main
from t2r_export.config.finetune import EVAL_TOKENS, LEAST_EVAL_TOKENS, FinetuneConfig
from t2r_export.config.stages import parse_plan
from t2r_export.data.pairs import read_pairs
from t2r_export.data.shards import Corpus
from t2r_export.finetune import finetune
from t2r_export.quality.evaluate import evaluate, evaluate_lengths, mean_and_error, token_losses
from t2r_export.quality.evaluate_pairs import evaluate_pairs


def config(**options: object) -> FinetuneConfig:
    made = FinetuneConfig(model=Path("m"), output=Path("o"), data=(Path("t"),), **options)  # type: ignore[arg-type]
    return made.for_model(64, None)


@pytest.mark.parametrize(
    "options, reports, validations",
    [
        ({"plan": parse_plan("distill", "6"), "batch": 4}, 6 * 4 * 256, 6 * 4 * 256 // 2),
        ({"plan": parse_plan("distill", "1"), "batch": 1}, LEAST_EVAL_TOKENS, LEAST_EVAL_TOKENS),
        ({"plan": parse_plan("transfer,distill", "300,3000")}, EVAL_TOKENS, 3300 * 16 * 256 // (3 + 16)),
        ({"plan": parse_plan("distill", "6"), "eval_tokens": 0}, 0, 6 * 16 * 256 // 2),
        ({"plan": parse_plan("distill", "6"), "eval_tokens": 70}, 70, 6 * 16 * 256 // 2),
    ],
)
def test_evaluation_is_bounded_by_training(options: dict[str, object], reports: int, validations: int) -> None:
    made = config(**options)
    assert (made.report_tokens, made.validation_tokens) == (reports, validations)


def test_bounded_evaluation_spreads_windows() -> None:
    tokens = np.tile(np.arange(160_001, dtype=np.uint32), 3)
    corpus = Corpus(tokens, (160_001, 320_002))
    few = WindowBatches(corpus, config(plan=parse_plan("distill", "1"), batch=1, length=16), texts.TEACHER)
    assert sum(batch.count for batch in few.test) == LEAST_EVAL_TOKENS
    assert sum(batch.count for batch in few.validation(1)) == 32 * 16
    assert int(few.test[0].ids[0, 0]) == 0 and int(few.test[-1].targets[-1, -1]) == 160_000
    starts = torch.cat([batch.ids[:, 0] for batch in few.test])
    assert int(starts.diff().max()) - int(starts.diff().min()) <= 16
    every = WindowBatches(corpus, config(plan=parse_plan("distill", "1"), length=16, eval_tokens=0), texts.TEACHER)
    assert sum(batch.count for batch in every.test) == 160_000


@pytest.mark.slow
def test_short_run_on_long_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts all evaluations of a run; without the limit, a part of 15 MB would be read three times."""
    read = []

    def counted(model: object, batches: list[Batch]) -> object:
        read.append(sum(batch.count for batch in batches))
        return evaluate(model, batches)  # type: ignore[arg-type]

    for module in ("finetune", "training.trainer"):
        monkeypatch.setattr(f"t2r_export.{module}.evaluate", counted)
    run = texts.run(tmp_path, parse_plan("distill", "2"), test_share=0.5, valid_share=0.2)
    texts.write_text(run.data[0], 400)
    report = finetune(run)
    assert 0 < report.after.tokens <= LEAST_EVAL_TOKENS
    assert max(read) <= LEAST_EVAL_TOKENS
    assert report.teacher is not None
    errors = {e.standard_error for e in (report.teacher, report.before, report.after)}
    assert all(0 < error < 1 for error in errors) and len(errors) == 3
    whole = finetune(dataclasses.replace(run, eval_tokens=0, output=tmp_path / "whole.pt"))
    assert whole.after.tokens > 2 * LEAST_EVAL_TOKENS
    assert abs(whole.after.nats - report.after.nats) < 4 * (whole.after.standard_error + report.after.standard_error)


def test_standard_error_over_windows() -> None:
    model = small.model()
    rows = torch.randint(small.VOCABULARY, (7, small.T + 1), generator=torch.Generator().manual_seed(1))
    means = token_losses(model, rows).mean(1).numpy()
    found = evaluate(model, window_batches(rows, 3))
    assert found.standard_error == pytest.approx(means.std(ddof=1) / math.sqrt(7), rel=1e-5)
    (at,) = evaluate_lengths(model, rows, [small.T])
    assert at.standard_error == pytest.approx(found.standard_error, rel=1e-5)
    assert math.isnan(evaluate(model, window_batches(rows[:1])).standard_error)


def test_standard_error_of_unequal_sequences() -> None:
    """The standard error equals the spread over many samples of the same population."""
    chance = np.random.default_rng(0)

    def sample(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        counts = chance.integers(3, 30, count)
        level = chance.normal(3.0, 0.5, count)
        return torch.from_numpy(counts * level), torch.from_numpy(counts)

    found = [mean_and_error(*sample(200)) for _ in range(400)]
    means, errors = np.array(found).T
    assert errors.mean() == pytest.approx(means.std(), rel=0.15)


def test_evaluate_reports_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, text = texts.write_teacher(tmp_path / "m.pt"), texts.write_text(tmp_path / "t.txt", 200)
    line = ["evaluate", str(model), str(text), "--part", "all", "--lengths", "8,16", "--json"]
    assert main([*line, "--eval-tokens", "100"]) == 0
    few = json.loads(capsys.readouterr().out)["lengths"]
    assert [row["tokens"] for row in few] == [96, 96]
    assert all(0 < row[name] < 1 for row in few for name in ("standard_error", "end_standard_error"))
    assert main([*line, "--eval-tokens", "0"]) == 0
    every = json.loads(capsys.readouterr().out)["lengths"]
    assert min(row["tokens"] for row in every) > 5000
    assert main(line) == 0
    assert json.loads(capsys.readouterr().out)["lengths"] == every
    assert main([*line[:-1], "--eval-tokens", "8"]) == 0  # one window has no standard error
    assert "±" not in capsys.readouterr().out.splitlines()[1]


def test_pair_evaluation_is_bounded(tmp_path: Path) -> None:
    pairs = read_pairs(texts.write_words(tmp_path / "pairs.tsv", 60))
    texts.write_translator(tmp_path / "t.pt", small.LINEAR_CROSS, "softmax")
    every = evaluate_pairs(tmp_path / "t.pt", pairs, bleu=True)
    few = evaluate_pairs(tmp_path / "t.pt", pairs, bleu=True, eval_tokens=100)
    assert every.text is not None and few.text is not None and every.bleu is not None and few.bleu is not None
    assert every.bleu.sentences == 60
    assert few.text.tokens <= 110 < every.text.tokens
    assert 3 <= few.bleu.sentences <= 10
    assert 0 < every.text.standard_error < few.text.standard_error


def test_pair_batches_are_evenly_spread(tmp_path: Path) -> None:
    pairs = read_pairs(texts.write_words(tmp_path / "pairs.tsv", 60))
    model = dataclasses.replace(
        small.translator(source_vocabulary=None), vocab_size=len(texts.LETTERS) + 2, bos_token=None
    )
    tokens, _ = tokenize_pairs(pairs, Tokenizers(texts.tokenizer()), model, 100)
    assert sum(map(len, tokens.batches(200))) == 60
    found = tokens.batches(200, 150)
    assert 0 < sum(batch.count for batch in found) <= 170
