"""Steps of feature maps whose inputs have a large mean."""

from __future__ import annotations

import pytest
import torch

import small
from t2r_export.batches.batch import window_batch
from t2r_export.config.mixers import HybridConfig
from t2r_export.convert import convert
from t2r_export.training.centering import center
from t2r_export.training.diagnostics import feature_statistics
from t2r_export.training.layerwise import Transfer
from t2r_export.training.optimizers import make_optimizer
from t2r_export.training.start import start

D, K, HEADS = 5, 7, 3


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_steps_are_those_of_centered_inputs(kind: str) -> None:
    def steps(shift: torch.Tensor, moved: torch.Tensor, means: dict[str, torch.Tensor]) -> torch.Tensor:
        """Arguments of the features after three steps, from maps that are equal for inputs less `moved`."""
        torch.manual_seed(2)
        weight, bias, matrix = (torch.nn.Parameter(torch.randn(s)) for s in ((HEADS, D, K), (HEADS, K), (D, K)))
        x, target = torch.randn(HEADS, 9, D), torch.randn(HEADS, 9, K)
        bias.data -= (moved[:, None] @ weight.data)[:, 0]
        names = {"blocks.0.maps.q.weight": weight, "blocks.0.maps.q.bias": bias, "blocks.0.o.weight": matrix}
        optimizer = make_optimizer(names, 0.05, 0.0, kind)
        center(optimizer, names, means)
        for _ in range(3):
            ((x + shift[:, None]) @ weight + bias[:, None] - target + matrix.sum(0)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return ((x + shift[:, None]) @ weight + bias[:, None]).detach()

    mean, none = 20.0 * torch.randn(HEADS, D, generator=torch.Generator().manual_seed(1)), torch.zeros(HEADS, D)
    expected = steps(none, none, {})
    found = steps(mean, mean, {"blocks.0.maps.q": mean, "blocks.0.maps.of_no_bias": mean})
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert (steps(mean, mean, {}) - expected).abs().max() > 0.5


def test_keys_with_a_large_mean_keep_their_features() -> None:
    """Two channels of the embeddings are nearly equal for all tokens, as in the hidden states of pretrained models."""
    teacher = small.model(small.with_layers(small.LLAMA, small.SOFTMAX, small.SOFTMAX))
    teacher.embedding.weight.data.div_(teacher.embedding.weight.std())[:, :2] += 3.0
    batch, found = window_batch(small.ids(length=24, batch=4)), []
    for centered in (True, False):
        student = convert(teacher, HybridConfig(3, 20, positions="after"))
        start(student, teacher, batch)
        stage = Transfer(student, teacher)
        stage.measure(batch)
        optimizer = make_optimizer(stage.trainable(), 0.01, 0.0, factors=stage.rate_factors())
        center(optimizer, stage.trainable(), stage.means if centered else {})
        first = feature_statistics(student, [batch])[0]["dead_keys"]
        for _ in range(10):
            optimizer.zero_grad()
            loss = stage(batch)
            loss.backward()
            optimizer.step()
        found.append((first, feature_statistics(student, [batch])[0]["dead_keys"], float(loss.detach())))
    (begun, dead, loss), (_, without, larger) = found
    assert dead < begun + 0.1 < without and loss < 0.9 * larger, found
