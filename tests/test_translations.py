"""Graphs of an imported folder give transformers' n best translations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from checkpoints.importers.test_translators import SIZES, reference
from runtime.transformers_twin import assert_same, until_the_end
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.export import export
from t2r_runtime import Beam, Translation, Translator

LONGEST, PAD, END, START = 11, SIZES["pad_token_id"], SIZES["eos_token_id"], SIZES["decoder_start_token_id"]
BANNED = (PAD, 6)
SOURCES = [[5, 9, 2, 11, 6, 1], [8, 1], [4, 4, 12, 1], [20, 21, 22, 23, 24, 25, 26, 1]]


def theirs(model: Any, sources: list[list[int]], beam: Beam) -> list[list[Translation]]:
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(source) for source in sources], True, PAD)
    config = GenerationConfig(
        num_beams=beam.width,
        length_penalty=beam.length_penalty,
        max_new_tokens=LONGEST,
        num_return_sequences=beam.n_best,
        no_repeat_ngram_size=beam.no_repeat_ngram,
        forced_eos_token_id=END,
        suppress_tokens=list(BANNED),
        eos_token_id=END,
        pad_token_id=PAD,
        decoder_start_token_id=START,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    with torch.no_grad():
        found = model.generate(ids, attention_mask=_inside(ids, sources), generation_config=config)
    texts = [until_the_end(row.tolist()[1:], [END]) for row in found.sequences]
    best = [Translation(text, score) for text, score in zip(texts, found.sequences_scores.tolist(), strict=True)]
    return [best[i : i + beam.n_best] for i in range(0, len(best), beam.n_best)]


def _inside(ids: torch.Tensor, sources: list[list[int]]) -> torch.Tensor:
    return torch.stack([torch.arange(ids.shape[1]) < len(source) for source in sources]).long()


def lively(name: str) -> Any:
    """A random model whose translations end at several lengths."""
    model = reference(name, forced_eos_token_id=None)
    model.final_logits_bias.zero_()
    model.final_logits_bias[0, END] += 1
    for key, weight in model.named_parameters():
        if weight.requires_grad and ("norm.weight" in key or weight.ndim == 2):
            weight.data = weight.data + 1 if weight.ndim == 1 else 2 * weight.data
    model.generation_config.suppress_tokens = list(BANNED)
    return model


@pytest.mark.parametrize("name", ["marian, three tables", "pegasus"])
def test_n_best_equals_transformers(name: str, tmp_path: Path) -> None:
    model = lively(name)
    model.save_pretrained(tmp_path / "folder")
    export(checkpoint.load(tmp_path / "folder"), tmp_path / "g.onnx", ExportConfig(top_k=18))
    translator = Translator(tmp_path / "g.onnx", threads=1)
    assert (translator.source.start_tokens, translator.source.banned_tokens) == ((START,), BANNED)
    lengths, tokens = set(), set()
    for width in (2, 4, 8):
        for penalty, ngram in ((0.6, 0), (1.0, 0), (1.0, 1)):
            beam = Beam(width, penalty, n_best=width, max_tokens=LONGEST, no_repeat_ngram=ngram, forced_end=True)
            expected = theirs(model, SOURCES, beam)
            lengths |= {len(one.tokens) for best in expected for one in best}
            tokens |= {token for best in expected for one in best for token in one.tokens}
            for batch in (1, 4):
                assert_same(list(translator.translate(SOURCES, beam, batch)), expected)
    assert len(lengths) > 3 and len(tokens) > 6
