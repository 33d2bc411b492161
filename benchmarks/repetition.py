"""Repetition by sampling options: the basis of the defaults of `t2r demo`.

    python benchmarks/repetition.py models/storyteller/model.pt
    python benchmarks/repetition.py MODEL --tokens 10000 --endless --seeds 3 --sampling 0.7,0.95 --text TEXT

Samples texts with the same seeds for each setting, and prints the share of repeated 4-grams of tokens. With --text, the
training text, it also prints the share of words that do not occur in it, and the repeated 4-grams of the text itself:
`--tokens` tokens from as many places of each file as there are seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import SEPARATOR
from t2r_export.export import export
from t2r_runtime import Decoder, Sampling, Tokenizer

GRAM = 4  # tokens
NUCLEI = ((0.4, 0.95), (0.6, 0.9), (0.6, 0.95), (0.8, 0.9), (0.8, 0.95), (1.0, 1.0))  # temperature, top-p
PENALTIES = (1.1, 1.3)  # with temperature 0.6, top-p 0.9
SETTINGS = (
    *(Sampling(temperature, top_p=top_p) for temperature, top_p in NUCLEI),
    Sampling(1.0, min_p=0.1),
    *(Sampling(0.6, top_p=0.9, repetition_penalty=penalty) for penalty in PENALTIES),
)


def repeated(tokens: Sequence[int]) -> float:
    """Share of repeated 4-grams; 0 for short texts."""
    grams = [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def words(text: str) -> list[str]:
    """Words in lower case, including apostrophes."""
    return re.findall(r"[^\W\d_]+(?:['’][^\W\d_]+)*", text.lower())


def unknown(text: str, known: set[str]) -> float:
    """Share of words that are not among `known`; 0 for a text without words."""
    found = words(text)
    return sum(word not in known for word in found) / len(found) if found else 0.0


def pieces(text: str, count: int, tokens: int, tokenizer: Tokenizer, end: int) -> Iterator[list[int]]:
    """`tokens` tokens each from `count` places of a text, evenly spaced; `end` is the token after a story."""
    stories = [story.strip() for story in text.split(SEPARATOR)]
    for place in range(count):
        there = stories[place * len(stories) // count :][:tokens]  # a story has at least one token
        yield [token for ids in tokenizer.encode_documents(there) for token in (*ids, end)][:tokens]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--tokens", type=int, default=240)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--sampling", metavar="TEMPERATURE,TOP_P", help="one setting in place of the table's")
    parser.add_argument("--endless", action="store_true", help="continue after the end of a text")
    parser.add_argument("--text", type=Path, action="append", default=[], help="repeatable")
    options = parser.parse_args()
    settings: Sequence[Sampling] = SETTINGS
    if options.sampling:
        temperature, top_p = map(float, options.sampling.split(","))
        settings = (Sampling(temperature, top_p=top_p),)
    always: dict[str, Any] = {"stop_tokens": ()} if options.endless else {}
    known = {word for path in options.text for word in words(path.read_text(encoding="utf-8"))}
    with tempfile.TemporaryDirectory() as folder:
        export(checkpoint.load(options.model), Path(folder) / "model.onnx")
        decoder = Decoder(Path(folder) / "model.onnx")
        tokenizer = Tokenizer.of(decoder.signature)
        prompt, (end, *_) = tokenizer.encode(options.prompt), decoder.signature.eos_tokens
        print(f"| temperature | top-p | min-p | penalty | repeated {GRAM}-grams |{' unknown words |' if known else ''}")
        print(f"|---|---|---|---|---|{'---|' if known else ''}")
        for rules in settings:
            shares, strange = [], []
            for seed in range(options.seeds):
                decoder.reset()
                tokens = decoder.generate(prompt, options.tokens, dataclasses.replace(rules, seed=seed, **always))
                shares.append(repeated(tokens))
                strange.append(unknown(tokenizer.decode(tokens), known))
            said = (rules.temperature, rules.top_p, rules.min_p, rules.repetition_penalty)
            means = [sum(part) / len(part) for part in ((shares, strange) if known else (shares,))]
            print(f"| {' | '.join([*map(str, said), *(f'{mean:.1%}' for mean in means)])} |", flush=True)
        for path in options.text:
            of_text = pieces(path.read_text(encoding="utf-8"), options.seeds, options.tokens, tokenizer, end)
            share = statistics.mean(map(repeated, of_text))
            print(f"| {path.name} itself | | | | {share:.1%} | |", flush=True)


if __name__ == "__main__":
    main()
