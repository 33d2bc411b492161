"""Matrices as low-rank products."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import small
from pruning_models import corpus
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.parts import DenseConfig
from t2r_export.config.pruning import PruneConfig
from t2r_export.export import export
from t2r_export.model.parts.dense import Factored
from t2r_export.pruning.factors import factors, versions
from t2r_export.pruning.prune import prune
from t2r_export.pruning.watch import inputs
from t2r_runtime.errors import UserError

FORMS = {"gated": small.LLAMA, "with biases": small.GPT2}


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 6), st.integers(1, 5))
def test_no_product_of_that_rank_is_nearer(seed: int, out: int, into: int, rank: int) -> None:
    draw = np.random.default_rng(seed)
    W, X = draw.normal(size=(out, into)), draw.normal(size=(into, 30)) * draw.uniform(0.1, 3.0, (into, 1))
    outer, inner = (factor.numpy() for factor in factors(torch.from_numpy(W), torch.from_numpy(X @ X.T)))
    rank = min(rank, out, into)
    found = ((W - outer[:, :rank] @ inner[:rank]) @ X) ** 2
    least = np.linalg.svd(W @ X, compute_uv=False)[rank:] ** 2  # Eckart and Young 1936
    assert found.sum() == pytest.approx(least.sum(), rel=1e-3, abs=1e-4 * ((W @ X) ** 2).sum())


@pytest.mark.parametrize("form", FORMS)
def test_full_rank_is_the_same_function(form: str) -> None:
    model = small.model(FORMS[form]).double()
    part = model.blocks[1].parts[1]
    windows = small.ids(3, 9)
    grams = inputs(model, windows, [part.get_parameter(f"{name}.weight") for name in part.factorable()])
    rank = small.WIDTH
    made = type(part)(part.site, part.with_rank(rank)).double()
    for name, gram in zip(part.factorable(), grams, strict=True):
        outer, inner = factors(part.get_parameter(f"{name}.weight"), gram)
        matrix = made.get_submodule(name)
        assert isinstance(matrix, Factored)
        matrix.outer.weight.data, matrix.inner.weight.data = outer, inner
        if matrix.outer.bias is not None:
            matrix.outer.bias.data = part.get_parameter(f"{name}.bias")
    whole, blocks = model(windows), model.blocks[1].parts
    blocks[1] = made  # type: ignore[index]
    torch.testing.assert_close(model(windows), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_pruned_rank(form: str, tmp_path: Path) -> None:
    model = small.model(FORMS[form])
    found = prune(model, PruneConfig(rank=0.4), corpus(), window=16)
    parts = [part for layer in found.model.config.layers for part in layer.parts if isinstance(part, DenseConfig)]
    assert any(part.rank for part in parts)
    whole = 4 * len(parts) * (3 if parts[0].gated else 2) * small.WIDTH * small.FFN
    left = sum(version.bytes for version in found.chosen["rank"])
    assert left <= 0.6 * whole and found.bytes[0] - found.bytes[1] == whole - left
    made = Checkpoint(found.model.config, found.model, None, {}, "0" * 64)
    export(made, tmp_path / "g.onnx", ExportConfig(prefill=True))
    assert small.proof(made, tmp_path / "g.onnx", steps=12).passed
    again = prune(found.model, PruneConfig(ffn=0.3), corpus(), window=16)  # prunes the features of products
    assert again.bytes[1] < found.bytes[1]


def test_refused() -> None:
    with pytest.raises(UserError, match="dense feed-forwards of whole matrices, for rank; received .* linear, moe"):
        versions(small.model("moe"), small.ids())
    config = small.built(small.GPT2)
    attention, dense = config.layers[0].parts
    layer = dataclasses.replace(config.layers[0], parts=(attention, dataclasses.replace(dense, rank=3)))
    config = dataclasses.replace(config, layers=(layer,))
    with pytest.raises(UserError, match="dense feed-forwards of whole matrices"):
        versions(small.model(config), small.ids())
