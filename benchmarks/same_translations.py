"""Compare n-best translations and scores with transformers' `generate` on a trained teacher.

    python benchmarks/same_translations.py TEACHER.pt PAIRS.tsv [--sentences 500]

The softmax teacher is saved as a folder for transformers (`t2r save`) and exported. Both translate the first sources of
the file with all widths, length penalties and batch sizes below. Prints the number of sentences whose n best differ,
and the largest difference of a score by rank; near ties may change the order. Needs transformers.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.hub import save_translator
from t2r_export.cli.output import table
from t2r_export.config.model import ModelConfig
from t2r_export.data.pairs import read_pairs
from t2r_export.export import export
from t2r_runtime import Beam, Tokenizer, Translation, Translator
from t2r_runtime.contract.options import BeamOptions

WIDTHS, PENALTIES, BATCHES = (1, 4, 8), (0.6, 1.0), (1, 16)
TOKENS = 64
Best = list[list[Translation]]


def theirs(model: Any, sources: Sequence[Sequence[int]], beam: BeamOptions, batch: int, config: ModelConfig) -> Best:
    """The n best of each source by transformers; greedy texts have no score."""
    found: Best = []
    for first in range(0, len(sources), batch):
        rows = [torch.tensor(source) for source in sources[first : first + batch]]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=mask,
                num_beams=beam.width,
                num_return_sequences=beam.n_best,
                max_new_tokens=TOKENS,
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
                **({"length_penalty": beam.length_penalty} if beam.width > 1 else {}),
            )
        texts = [_until_the_end(row.tolist()[1:], set(config.eos_tokens)) for row in out.sequences]
        scores = out.sequences_scores.tolist() if beam.width > 1 else [float("nan")] * len(texts)
        best = [Translation(text, score) for text, score in zip(texts, scores, strict=True)]
        found += [best[i : i + beam.n_best] for i in range(0, len(best), beam.n_best)]
    return found


def _until_the_end(tokens: list[int], ends: set[int]) -> list[int]:
    place = next((n for n, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: place + 1]


def row(ours: Best, others: Best) -> tuple[int, float]:
    """Number of sentences whose n best differ, and the largest difference of a score."""
    both = list(zip(ours, others, strict=True))
    differing = sum([a.tokens for a in mine] != [b.tokens for b in peers] for mine, peers in both)
    scores = [abs(a.score - b.score) for mine, peers in both for a, b in zip(mine, peers, strict=True)]
    return differing, max(scores)


def main() -> None:
    from transformers import AutoModelForSeq2SeqLM

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--sentences", type=int, default=500)
    options = parser.parse_args()
    loaded = checkpoint.load(options.teacher)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        family = "pegasus" if loaded.config.last_norm is not None else "marian"
        save_translator(loaded, place / family, family)
        export(loaded, place / "teacher.onnx")
        translator = Translator(place / "teacher.onnx")
        tokenizer = Tokenizer.of_source(translator.signature)
        sources = [tokenizer.encode(source) for source, _ in read_pairs(options.pairs)[: options.sentences]]
        model = AutoModelForSeq2SeqLM.from_pretrained(place / family).eval()
        for width, penalty, batch in itertools.product(WIDTHS, PENALTIES, BATCHES):
            if width == 1 and penalty != 1:
                continue  # a single hypothesis has no ranking
            beam = Beam(width, penalty, max_tokens=TOKENS, n_best=width, copy=False)
            ours = list(translator.translate(sources, beam, batch))
            differing, worst = row(ours, theirs(model, sources, beam.resolved(), batch, loaded.config))
            rows.append((width, penalty, batch, len(sources), differing, "none" if width == 1 else f"{worst:.1e}"))
            print(f"{len(rows)} of 10", file=sys.stderr)
    print(table(rows, ("width", "length penalty", "batch", "sentences", "n best differ", "worst score")))


if __name__ == "__main__":
    main()
