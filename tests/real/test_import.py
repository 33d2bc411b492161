"""The imported model is the one that transformers reads from the same file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from real.conftest import Graphs
from t2r_runtime import Decoder, Sampling

PROMPT, NEW = 40, 24


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_logits_and_greedy_text(model: Path, graphs: Graphs, tokens: list[int], logits: NDArray[np.float32]) -> None:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = theirs(torch.tensor([tokens])).logits[0].numpy()
        text = theirs.generate(torch.tensor([tokens[:PROMPT]]), max_new_tokens=NEW, do_sample=False)[0, PROMPT:]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    found = Decoder(graphs("none")).generate(tokens[:PROMPT], NEW, Sampling(temperature=0))
    assert found == text.tolist()
