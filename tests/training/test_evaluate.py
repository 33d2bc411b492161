from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import small
from t2r_export.batches.batch import window_batches
from t2r_export.quality.evaluate import evaluate, evaluate_lengths, token_losses
from t2r_runtime.errors import UserError


def windows(count: int = 5) -> torch.Tensor:
    return torch.randint(small.VOCABULARY, (count, small.T + 1), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["rotary_keep", "softmax"])
def test_nats_equal_single_steps(kind: str) -> None:
    model, rows = small.model(kind), windows()
    total, states = 0.0, model.init_state(len(rows))
    with torch.no_grad():
        for t in range(small.T):
            logits, states = model.step(rows[:, t], states)
            total += float(F.cross_entropy(logits, rows[:, t + 1], reduction="sum"))
    found = evaluate(model, window_batches(rows, 2))
    assert found.nats == pytest.approx(total / (5 * small.T), rel=1e-5)
    assert (found.tokens, found.length) == (5 * small.T, small.T)


def test_uniform_model_perplexity_is_vocabulary_size() -> None:
    model = small.model()
    torch.nn.init.zeros_(model.norm.weight)
    torch.nn.init.zeros_(model.norm.bias)  # type: ignore[arg-type]
    found = evaluate(model, window_batches(windows()))
    assert found.nats == pytest.approx(math.log(small.VOCABULARY))
    assert found.perplexity == pytest.approx(small.VOCABULARY)


def test_nan_is_reported() -> None:
    model = small.model()
    torch.nn.init.constant_(model.norm.weight, math.nan)
    found = evaluate(model, window_batches(windows()))
    assert math.isnan(found.nats)


def test_perplexity_overflow_is_infinite() -> None:
    model = small.model()
    with torch.no_grad():
        model.norm.weight.mul_(1e5)
    assert evaluate(model, window_batches(windows())).perplexity == math.inf


def test_evaluate_without_windows_is_refused() -> None:
    with pytest.raises(UserError, match="at least one window"):
        evaluate(small.model(), window_batches(windows(0)))


def test_evaluate_lengths_on_same_text() -> None:
    model = small.model("rotary_keep")
    tokens = torch.randint(small.VOCABULARY, (65,), generator=torch.Generator().manual_seed(1))
    found = evaluate_lengths(model, tokens, [8, 16, 64])
    assert [(row.length, row.tokens) for row in found] == [(8, 64), (16, 64), (64, 64)]
    for row in found:
        starts = torch.arange(64 // row.length)[:, None] * row.length
        rows = tokens[starts + torch.arange(row.length + 1)]
        assert row.nats == pytest.approx(evaluate(model, window_batches(rows)).nats, rel=1e-6)
        end = token_losses(model, rows)[:, -row.length // 4 :]
        assert row.end_nats == pytest.approx(float(end.detach().mean()), rel=1e-6)
        assert row.perplexity == pytest.approx(math.exp(row.nats))
    assert found[0].nats != found[1].nats
    (few,) = evaluate_lengths(model, tokens, [8], count=3)
    assert few.tokens == 24


def test_wrapped_positions_allow_any_length() -> None:
    model, tokens = small.model("learned"), windows(9).flatten()
    expected = evaluate_lengths(model, tokens, [8])[0].nats
    model.end_positions("wrap:9")
    assert evaluate_lengths(model, tokens, [8])[0].nats == expected
    (long,) = evaluate_lengths(model, tokens, [small.POSITIONS + 5])
    assert math.isfinite(long.nats)


def test_invalid_lengths_are_refused() -> None:
    tokens = torch.zeros(100, dtype=torch.int32)
    with pytest.raises(UserError, match="lengths from 4 to 40, the model's last position; received 41"):
        evaluate_lengths(small.model("learned"), tokens, [8, 41])
    with pytest.raises(UserError, match="lengths from 4; received 3; correct the lengths"):
        evaluate_lengths(small.model("rotary_keep"), tokens, [3])
    with pytest.raises(UserError, match="at least 201 tokens of text to measure on; received 100"):
        evaluate_lengths(small.model("rotary_keep"), tokens, [200])


def test_a_teacher_has_the_same_tokens() -> None:
    teacher = small.model(replace(small.GPT2, vocab_size=small.VOCABULARY + 3))
    with pytest.raises(UserError, match=f"a teacher with {small.VOCABULARY} tokens; received {small.VOCABULARY + 3}"):
        evaluate_lengths(small.model(), torch.zeros(50, dtype=torch.int64), [small.T], teacher=teacher)
