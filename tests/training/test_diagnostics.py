from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

import small
import texts
from t2r_export.batches.batch import Batch, window_batch
from t2r_export.config.mixers import HybridConfig, LinearConfig
from t2r_export.convert import convert
from t2r_export.model.mixers.linear import LinearMixer
from t2r_export.model.parts.attention import Attention
from t2r_export.model.transformer import Transformer
from t2r_export.training.diagnostics import feature_statistics, first_not_finite
from t2r_export.training.layerwise import Transfer
from t2r_export.training.stages import Distill, Stage


def parts(count: int = 3) -> list[torch.Tensor]:
    return [small.ids(seed=seed, vocabulary=texts.TEACHER.vocab_size) for seed in range(count)]


def batches(parts: Iterable[torch.Tensor]) -> list[Batch]:
    return [Batch(ids, ids) for ids in parts]


def linear(model: Transformer, layer: int) -> LinearMixer:
    mixer = model.blocks[layer].mixers[0]
    assert isinstance(mixer, Attention) and isinstance(mixer.inner, LinearMixer)
    return mixer.inner


def distill(seed: int = 0) -> Stage:
    teacher = small.model(texts.TEACHER)
    return Distill(convert(teacher, LinearConfig(small.K), seed=seed), teacher)


def batch() -> Batch:
    return window_batch(small.ids(length=small.T + 1, vocabulary=texts.TEACHER.vocab_size))


def test_dead_features_are_counted() -> None:
    model = small.model("hybrid")  # linear, softmax, linear
    with torch.no_grad():
        linear(model, 0).maps.of_keys.weight[1, :, 2:4] = 0
        linear(model, 0).maps.of_keys.bias[1, 2:4] = -1.0
        linear(model, 2).maps.of_queries.weight[:] = 0
        linear(model, 2).maps.of_queries.bias[:] = -1.0
    first, softmax, third = feature_statistics(model, batches(parts()))
    assert softmax == {}
    assert first["dead_keys"] >= 2 / (small.G * small.K)
    assert third["dead_queries"] == 1.0
    assert third["smallest_normalizer"] == 0.0
    with torch.no_grad():
        linear(model, 0).maps.of_keys.bias[:] = 100.0
    assert feature_statistics(model, batches(parts()))[0]["dead_keys"] == 0.0


def test_dead_features_of_hybrid_layers_are_counted() -> None:
    model = small.model(small.with_layers(small.LLAMA, HybridConfig(3, small.K), HybridConfig(3, small.K)))
    with torch.no_grad():
        maps = model.blocks[1].parts[0].inner.maps
        maps.of_queries.bias[:, 1] = -1e6
        maps.of_keys.bias[:] = 100.0
    _, found = feature_statistics(model, batches(parts()))
    assert found.keys() == {"dead_queries", "dead_keys", "far_share"}
    assert found["dead_queries"] >= 1 / small.K and found["dead_keys"] == 0.0


def test_smallest_normalizer_equals_single_steps() -> None:
    model = small.model("rotary_keep")
    expected = torch.inf
    with torch.no_grad():
        for ids in parts():
            states = model.init_state(len(ids))
            for column in ids.T:
                step, block = model.context(states, model.ops(None)), model.blocks[0]
                heads = block.mixers[0].project(block.norms[0](model.embed(column, step), step.ops), step)
                q, *_ = linear(model, 0).features(heads, {}, step.ops)
                _, states = model.step(column, states)
                z = states["z.0"].repeat_interleave(small.H // small.G, 1)  # including this token
                expected = min(expected, float((q.squeeze(2) * z).sum(-1).min()))
    found = feature_statistics(model, batches(parts()))[0]["smallest_normalizer"]
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_statistics_are_reduced_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter([(1.0, 5.0, 2.0), (3.0, 4.0, 6.0)])

    def statistics(*_: object) -> dict[str, float]:
        return dict(zip(("share", "smallest_x", "largest_x"), next(said), strict=True))

    model = small.model("shared")
    monkeypatch.setattr(model.blocks[0].mixers[0], "statistics", statistics)
    ids = [small.ids(), small.ids(seed=1)]
    assert feature_statistics(model, batches(ids)) == [{"share": 2.0, "smallest_x": 4.0, "largest_x": 6.0}]


def test_first_not_finite_none_and_gradients_cleared() -> None:
    stage = distill()
    assert first_not_finite(stage, batch()) is None
    assert all(p.grad is None for p in stage.parameters())


def test_first_not_finite_names_weight() -> None:
    stage = distill()
    with torch.no_grad():
        stage.student.blocks[1].parts[1].up.weight[2, 3] = torch.nan
    assert first_not_finite(stage, batch()) == "the weight student.blocks.1.parts.1.up.weight"


@pytest.mark.parametrize("stage", [Transfer, Distill])
def test_first_not_finite_names_first_output(stage: type[Stage]) -> None:
    teacher = small.model(texts.TEACHER)
    made = stage(convert(teacher, LinearConfig(small.K)), teacher)
    with torch.no_grad():
        linear(made.student, 1).maps.of_keys.weight.fill_(3e38)
        linear(made.student, 2).maps.of_keys.weight.fill_(3e38)
    assert first_not_finite(made, batch()) == "the output of student.blocks.1.parts.0.inner.maps.k"
    with torch.no_grad():
        teacher.blocks[0].mixers[0].v.weight.fill_(3e38)
    assert str(first_not_finite(made, batch())).startswith("the output of teacher.blocks.0.parts.0")


def test_first_not_finite_names_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = distill()
    stage.student.blocks[1].mixers[0].o.weight.register_hook(lambda gradient: gradient * torch.nan)
    assert first_not_finite(stage, batch()) == "the gradient of student.blocks.1.parts.0.o.weight"
