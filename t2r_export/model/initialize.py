"""Random initialization of models."""

from __future__ import annotations

import math

import torch
from torch import nn

from t2r_export.config.model import ModelConfig
from t2r_export.config.positions import SinusoidalConfig
from t2r_export.model.transformer import Transformer


def initialize(config: ModelConfig, seed: int) -> Transformer:
    """A model with random weights as in GPT-2 (Radford et al. 2019, section 2.3).

    Projections and embeddings are normal with standard deviation 0.02, output projections 0.02 / √(2L). Feature maps,
    recurrent layers and memories have separate initializations. Embeddings have the RMS of the sinusoids if these
    are added, and standard deviation 1 in models without norms.
    """
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
            writes = name.endswith((".o.weight", ".down.weight", ".down.outer.weight"))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * len(config.layers)) if writes else 0.02)
            is_table = name.endswith("embedding.weight")
            if is_table and isinstance(config.positions, SinusoidalConfig):
                nn.init.normal_(parameter, std=math.sqrt(0.5) / config.embedding_scale)
            elif is_table and normless:
                nn.init.normal_(parameter)
    return model
