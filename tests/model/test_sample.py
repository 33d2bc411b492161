from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import small
from t2r_export.batches.batch import window_batches
from t2r_export.model.sample import BATCH, sample
from t2r_export.quality.evaluate import evaluate
from t2r_runtime.errors import UserError

UNENDING = dataclasses.replace(small.LLAMA, eos_tokens=())


@pytest.mark.parametrize("kind", ["rotary_keep", "hybrid", "learned", "sinusoidal"])
def test_low_temperature_is_greedy(kind: str) -> None:
    model = small.model(kind)
    rows = torch.from_numpy(sample(model, 60, length=12, temperature=1e-6)).view(5, 12).long()
    assert (rows[:, 0] == model.config.bos_token).all()
    expected = model(rows[:, :-1]).argmax(-1)
    expected[torch.isin(rows[:, :-1], torch.tensor(model.config.eos_tokens))] = model.config.bos_token
    assert torch.equal(rows[:, 1:], expected)


@pytest.mark.slow
def test_sample_frequencies_match_probabilities() -> None:
    model = small.model(UNENDING)
    model.head.weight.data *= 2  # far from uniform
    rows = torch.from_numpy(sample(model, 20_000, length=20)).view(-1, 20).long()
    with torch.no_grad():
        log = torch.log_softmax(model(rows[:, :-1]).double(), -1)
    entropy = float(-(log.exp() * log).sum(-1).mean())
    assert evaluate(model, window_batches(rows)).nats == pytest.approx(entropy, abs=0.03)
    assert entropy < 0.8 * np.log(small.VOCABULARY)
    hot = torch.from_numpy(sample(model, 4000, length=20, temperature=3.0)).view(-1, 20).long()
    assert evaluate(model, window_batches(hot)).nats > entropy + 0.2


def test_seed_and_prefix_consistency() -> None:
    model = small.model()
    first = sample(model, BATCH * 5 + 7, length=5, seed=3)
    assert first.dtype == np.int32
    assert len(first) == BATCH * 5 + 7
    assert np.array_equal(first, sample(model, BATCH * 5 + 7, length=5, seed=3))
    assert not np.array_equal(first, sample(model, BATCH * 5 + 7, length=5, seed=4))
    assert np.array_equal(first[: BATCH * 5], sample(model, BATCH * 5, length=5, seed=3))


def test_texts_begin_with_bos() -> None:
    ended = dataclasses.replace(small.LLAMA, bos_token=None, eos_tokens=(4,))
    rows = sample(small.model(ended), 70, length=7).reshape(10, 7)
    assert set(rows[:, 0]) == {4}
    bare = sample(small.model(dataclasses.replace(ended, eos_tokens=())), 700, length=7).reshape(100, 7)
    assert len(set(bare[:, 0])) > 5
    both = sample(small.model(), 4000, length=40)
    ends = np.flatnonzero(both[:-1] == 2)
    assert len(ends) > 20
    assert set(both[ends + 1]) == {1}


def test_shared_bos_eos_is_not_repeated() -> None:
    one = small.model(dataclasses.replace(small.LLAMA, bos_token=1, eos_tokens=(1, 2)))
    ids = sample(one, 4000, length=40)
    assert len(set(ids)) == small.VOCABULARY
    after = ids[np.flatnonzero(ids[:-1] == 1) + 1]
    assert len(set(after)) > 3


def test_progress_callback() -> None:
    told: list[int] = []
    sample(small.model(), 3 * BATCH * 4 - 1, length=4, on_progress=told.append)
    assert told == [BATCH * 4, BATCH * 8, BATCH * 12 - 1]


def test_sample_refuses_bad_input() -> None:
    model = small.model()
    with pytest.raises(UserError, match="tokens to write; received 0; correct the number"):
        sample(model, 0)
    with pytest.raises(UserError, match="a length from 1 to 40; received 41"):
        sample(model, 5, length=41)
    with pytest.raises(UserError, match="a temperature above 0; received 0"):
        sample(model, 5, length=4, temperature=0)
    torch.nn.init.constant_(model.norm.weight, torch.nan)
    with pytest.raises(UserError, match="a model with finite logits; received NaN or infinity at token 1 of a text"):
        sample(model, 5, length=4)
