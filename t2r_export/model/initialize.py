"""Random weights to train a model from, and to measure one with."""

from __future__ import annotations

import math

import torch
from torch import nn

from t2r_export.config.model import ModelConfig
from t2r_export.config.positions import SinusoidalConfig
from t2r_export.model.transformer import Transformer


def initialize(config: ModelConfig, seed: int) -> Transformer:
    """A model with random weights as GPT-2's: projections and tables normal, 0.02, and smaller by √(2L) where a layer
    writes into the residual stream (Radford et al. 2019, section 2.3). Feature maps, recurrent layers and memories
    start as their own class says. Tokens start at the size of the sines where those are added to them, or the model
    would see little but its position, and at the size of one where no norm makes more of them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(config)
        others = [m for m in model.modules() if not isinstance(m, nn.Linear | nn.Embedding)]
        normless = not any(part.norm or part.norm_sum for layer in config.layers for part in layer.parts)
        own = {id(parameter) for module in others for parameter in module.parameters(recurse=False)}
        for name, parameter in model.named_parameters():
            if id(parameter) in own:
                continue
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
                continue
            writes = name.endswith((".o.weight", ".down.weight"))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * len(config.layers)) if writes else 0.02)
            is_table = name.endswith("embedding.weight")
            if is_table and isinstance(config.positions, SinusoidalConfig):
                nn.init.normal_(parameter, std=math.sqrt(0.5) / config.embedding_scale)
            elif is_table and normless:
                nn.init.normal_(parameter)
    return model
