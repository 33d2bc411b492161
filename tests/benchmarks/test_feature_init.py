"""Initializations in benchmarks/feature_init.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import feature_init
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.model.mixers.feature_maps import FeatureMaps
from t2r_export.model.torch_ops import TorchOps
from t2r_export.model.transformer import Transformer


def maps_from(start: str, feature_size: int, seed: int = 5) -> FeatureMaps:
    """The feature maps of one layer with this initialization; two query heads of size 3 per key head."""
    config = UniformConfig(
        vocab_size=11,
        width=12,
        ffn_size=7,
        layers=(LinearConfig(feature_size),),
        position="none",
        attention=HeadsConfig(heads=4, kv_heads=2, head_size=3),
    )
    model = Transformer(config.build())
    feature_init.initialise(model, start, seed)
    return next(module for module in model.modules() if isinstance(module, FeatureMaps))


def features_of(maps: FeatureMaps, x: Tensor) -> Tensor:
    with torch.no_grad():
        return maps.of_keys.of(x, False, TorchOps())


@pytest.mark.parametrize("start", ["pairs", "eye"])
def test_paired_features_keep_input(start):
    x = torch.randn(1, 2, 5, 3)
    features = features_of(maps_from(start, 6), x)
    first, negative = features.split(3, -1)
    kept = first - negative
    torch.testing.assert_close(kept.norm(dim=-1), x.norm(dim=-1))
    if start == "eye":
        torch.testing.assert_close(kept, x)


def test_elu_start_equals_elu():
    x = torch.randn(1, 2, 50, 3).clamp(min=0)
    torch.testing.assert_close(features_of(maps_from("elu", 3), x), torch.nn.functional.elu(x) + 1)


def test_features_start_different():
    weight = maps_from("eye", 14).k.weight
    assert all(len(torch.unique(head.T, dim=0)) == 14 for head in weight)


@pytest.mark.parametrize("start", feature_init.T2R)
def test_only_own_separates_queries(start):
    maps = maps_from(start, 5)
    same = torch.equal(maps.q.weight, maps.k.weight.repeat_interleave(2, 0))
    assert same is (start != "own")


def test_unknown_start_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["feature_init.py", "--starts", "copy,copied"])
    with pytest.raises(SystemExit) as stopped:
        feature_init.main()
    assert stopped.value.code == 2
    assert "received copied" in capsys.readouterr().err
