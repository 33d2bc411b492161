"""Which layers of a chat model look up what stands far back: a needle's number, by layer and window.

    python benchmarks/needle_layers.py MODEL TEXT [--windows WIDE,SHORT] [--wide 7,18,23] [--length 512] [--needles 5]

One at a time, each layer gets a window of SHORT tokens with 4 sinks, the others one of WIDE tokens. A row has the mean
change of log p(number) after the start of its answer, and of the nats per token of TEXT in pieces of 1,024 tokens. A
window costs what few layers pay: these are the ones to give a wide window. Layers stand in for each other, so the
changes do not add up: --wide measures a choice, with wide windows in the layers named and short ones in all others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from comparison.tables import Table
from questions import Question, needles, numbers
from t2r_export.checkpoints import checkpoint
from t2r_export.config.mixers import WindowConfig
from t2r_export.convert import convert
from t2r_export.model.transformer import Transformer
from t2r_runtime import Tokenizer

SINKS, PIECES, PIECE = 4, 2, 1024  # tokens kept; pieces of the text, and their tokens


def prompt(question: Question, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Token ids of the message with the start of an answer, and those of the number."""
    room = question.message.split(" is ")[0]
    asked = tokenizer.chat([{"role": "user", "content": question.message}]) + f"{room} is "
    return tokenizer.encode(asked, special_tokens=False), tokenizer.encode(question.answers[0], special_tokens=False)


def log_probability(model: Transformer, ids: Sequence[int], first: int) -> float:
    """Log-probability, in nats, of the tokens from number `first` on, given those before."""
    logits: Tensor = model(torch.tensor([ids]))[0, first - 1 : -1]
    return float(logits.float().log_softmax(-1).gather(1, torch.tensor(ids[first:])[:, None]).sum())


@torch.no_grad()
def measure(
    model: Transformer, asked: Sequence[tuple[list[int], list[int]]], pieces: Sequence[list[int]]
) -> tuple[float, float]:
    """Mean log p(number), and nats per token of the pieces."""
    found = sum(log_probability(model, [*ids, *number], len(ids)) for ids, number in asked) / len(asked)
    nats = -sum(log_probability(model, piece, 1) for piece in pieces) / sum(len(piece) - 1 for piece in pieces)
    return found, nats


def windowed(model: Transformer, short: Sequence[int], sizes: tuple[int, int]) -> Transformer:
    """The model with short windows in the layers named, and wide ones in the others."""
    others = [n for n in range(len(model.config.layers)) if n not in short]
    for layers, size in ((others, sizes[0]), (short, sizes[1])):
        if layers:
            model = convert(model, WindowConfig(window=size, sinks=SINKS), ",".join(map(str, layers)))
    return model.eval()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="checkpoint, folder or .gguf of a softmax chat model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--windows", type=numbers, default=[2048, 60], help="tokens: wide and short")
    parser.add_argument("--wide", action="append", default=[], help="layers of a choice; repeatable")
    parser.add_argument("--length", type=int, default=512, help="tokens between needle and question")
    parser.add_argument("--needles", type=int, default=5)
    given = parser.parse_args(arguments)
    loaded = checkpoint.load(given.model)
    if loaded.tokenizer is None or loaded.chat_template is None:
        parser.error(f"expected a chat model with its tokenizer; received {given.model}, which is none")
    model = loaded.model.eval()
    tokenizer = Tokenizer(loaded.tokenizer, chat_template=loaded.chat_template)
    text, (wide, short), count = given.text.read_text("utf-8"), given.windows, len(model.config.layers)
    asked = [prompt(question, tokenizer) for question in needles(text, tokenizer, [given.length], given.needles)]
    ids = tokenizer.encode(text, special_tokens=False)
    pieces = [ids[start : start + PIECE + 1] for start in range(0, len(ids), max(1, len(ids) // PIECES))][:PIECES]
    choices = [("none", []), *((str(layer), [layer]) for layer in range(count))]
    if given.wide:
        choices[1:] = [(f"all but {kept}", [n for n in range(count) if n not in numbers(kept)]) for kept in given.wide]
    rows: list[list[str]] = []
    for name, layers in choices:
        found, nats = measure(windowed(model, layers, (wide, short)), asked, pieces)
        if not rows:
            first, second = found, nats
            rows.append([name, f"{found:.2f}", f"{nats:.4f}"])
        else:
            rows.append([name, f"{found - first:+.2f}", f"{nats - second:+.4f}"])
    print(Table("needles", ["short window in", "log p(number)", "nats per token"], rows).markdown())


if __name__ == "__main__":
    main()
