"""Compares a loaded model with the transformers model that wrote the folder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from t2r_export.model.transformer import Transformer

# Of `error`, on logits. Measured: 2e-6, and as much between two sets of instructions of one processor.
TOLERANCE = 1e-5
BART = {
    "vocab_size": 29,
    "d_model": 12,
    "encoder_layers": 2,
    "encoder_ffn_dim": 17,
    "encoder_attention_heads": 3,
    "decoder_layers": 3,
    "decoder_ffn_dim": 11,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 23,
    "pad_token_id": 0,
    "decoder_start_token_id": 3,
}


def error(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest expected value, as rounding is."""
    wanted = torch.as_tensor(expected).double()
    return float((torch.as_tensor(found).double() - wanted).abs().max() / wanted.abs().max())


@torch.no_grad()
def logit_error(ours: Transformer, theirs: Any, length: int) -> float:
    """The error of logits over two texts of that length; for a translator, of encoder outputs too."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, ours.config.vocab_size, (2, length), generator=generator)
    if ours.encoder is not None:
        return translation_error(ours, theirs, ids, generator)
    expected = theirs(ids, return_dict=True).logits
    assert expected.std() > 0.1
    return error(ours(ids), expected)


def translation_error(ours: Transformer, theirs: Any, ids: Tensor, generator: torch.Generator) -> float:
    """The error of encoder outputs, for two sources of different lengths, and of logits."""
    assert ours.encoder is not None
    source = torch.randint(0, ours.config.source_vocab_size, (2, 7), generator=generator)
    lengths = torch.tensor([7, 4])
    read = torch.arange(7) < lengths[:, None]
    expected = theirs(input_ids=source, attention_mask=read.long(), decoder_input_ids=ids, return_dict=True)
    encoded, _ = ours.encoder.run(source, lengths.int(), ours.embedding, ours.ops(7))
    logits, _ = ours.prefill(ids, ours.start(source, lengths))
    pairs = ((encoded.view(2, 7, -1)[read], expected.encoder_last_hidden_state[read]), (logits, expected.logits))
    assert all(peer.std() > 0.1 for _, peer in pairs)
    return max(error(mine, peer) for mine, peer in pairs)
