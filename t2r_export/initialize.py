"""Random weights to train a model from, and to measure one with."""

from __future__ import annotations

import math

import torch
from torch import nn

from t2r_export.config import ModelConfig
from t2r_export.mixers.feature_maps import FeatureMap
from t2r_export.model import Transformer


def initialize(config: ModelConfig, seed: int) -> Transformer:
    """A model with random weights as GPT-2's: normal, 0.02, and smaller by √(2L) where a layer writes into the residual
    stream (Radford et al. 2019, section 2.3). Tokens start at the size of the sines where those are added to them, or
    the model would see little but its position. A feature map whose first weights are a part of its method keeps them.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(config)
        maps = [m for m in model.modules() if isinstance(m, FeatureMap) and m.starts_itself]
        kept = {id(parameter) for each in maps for parameter in each.parameters()}
        for name, parameter in model.named_parameters():
            if id(parameter) in kept:
                continue
            if parameter.ndim >= 2:
                writes = name.endswith((".o.weight", ".down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * len(config.layers)) if writes else 0.02)
                if parameter is model.embedding.weight and config.position == "sinusoidal":
                    nn.init.normal_(parameter, std=math.sqrt(0.5))
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)
    return model
