"""lm-eval's log-likelihoods of a saved folder equal the eager model's, for one right-padded batch."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.hub import save_transformers
from t2r_export.checkpoints.hub.remote.model import T2RForCausalLM

ROOT = Path(__file__).parents[3]
TEXTS = ROOT / "benchmarks" / "harness" / "stories.jsonl"


def log_likelihoods(logits: Tensor, ids: Tensor) -> Tensor:
    """Logits (B, T, V) and next tokens (B, T) -> log-likelihoods (B, T)."""
    return logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]


@torch.no_grad()
def test_log_likelihoods_of_texts_are_those_of_the_eager_model(tmp_path: Path) -> None:
    made = checkpoint.load(ROOT / "models" / "storyteller" / "model.pt")
    save_transformers(made, tmp_path / "f")
    theirs = T2RForCausalLM.from_pretrained(tmp_path / "f").eval()
    tokenizer = Tokenizer.from_str(str(made.tokenizer))
    lines = [json.loads(line) for line in TEXTS.read_text(encoding="utf-8").splitlines()]
    texts = [torch.tensor(tokenizer.encode(line["text"]).ids) for line in lines]
    batch = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    found = log_likelihoods(theirs(batch[:, :-1]).logits, batch[:, 1:])
    assert len({len(text) for text in texts}) > 1
    for text, row in zip(texts, found, strict=True):
        alone = log_likelihoods(made.model(text[None, :-1]), text[None, 1:])[0]
        torch.testing.assert_close(row[: len(alone)], alone, rtol=0, atol=1e-5)
        assert -100 < float(alone.sum()) < -30
