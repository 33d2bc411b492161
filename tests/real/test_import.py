"""The imported model is the one that transformers reads from the same file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from real.conftest import Graphs
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.proof.tolerances import tolerance, widened
from t2r_runtime import Decoder, Sampling

PROMPT, NEW = 40, 24


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_logits_and_greedy_text(
    model: Path, loaded: Checkpoint, graphs: Graphs, tokens: list[int], logits: NDArray[np.float32], rounding: float
) -> None:
    from transformers import AutoModelForCausalLM

    ids = torch.tensor([tokens])
    theirs = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.float32).eval()
    rotary = theirs.model.rotary_emb
    with torch.inference_mode():
        text = theirs.generate(ids[:, :PROMPT], max_new_tokens=NEW, do_sample=False)[0, PROMPT:]
        found = {"ours": loaded.model(ids)[0], "theirs": theirs(ids).logits[0]}
        rotary.forward = lambda x, position_ids: turns(rotary.inv_freq, position_ids)
        found["theirs with angles in float64, not float32"] = theirs(ids).logits[0]
    errors = {name: float(np.abs(each.numpy() - logits).max()) for name, each in found.items()}
    print(errors)
    assert max(errors.values()) <= widened(tolerance("cpu", "none").logits, rounding)
    assert Decoder(graphs("none")).generate(tokens[:PROMPT], NEW, Sampling(temperature=0)) == text.tolist()


def turns(frequencies: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of both halves of a head, (B, T, size), float32."""
    angles = positions[..., None].double() * frequencies.double().repeat(2)
    return angles.cos().float(), angles.sin().float()
