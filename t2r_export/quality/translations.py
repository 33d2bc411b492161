"""Translate files of sources, greedily with a checkpoint or by beam search with an exported graph.

Pairs of sources and translations are training data for sequence-level distillation (Kim and Rush 2016, arXiv
1606.07947).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from t2r_export.batches.pair_batches import Tokenizers
from t2r_export.batches.ragged import Ragged
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.data.pairs import bounded_lines, read_pairs, write_pairs
from t2r_export.model.device import choose_device
from t2r_export.model.transformer import Transformer
from t2r_export.paths import existing_model
from t2r_runtime import Beam, Tokenizer, Translator
from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file
from t2r_runtime.outputs import GRAPHS
from t2r_runtime.session.refusals import existing_graph

Progress = Callable[[int], object]
LONGEST = 256  # tokens of a translation
BATCH = 64  # batch size


def is_graph(model: Path) -> bool:
    """Whether the path names an exported graph, not a checkpoint."""
    return model.suffix in GRAPHS


def translator_of(model: Path, device: str) -> Checkpoint:
    """Load a translator's checkpoint onto a device. Raises UserError for other models."""
    loaded = checkpoint.load(existing_model(model))
    if loaded.config.encoder is None:
        raise UserError("a translator, for pairs", "a decoder alone", "pass it a text")
    loaded.model.to(choose_device(device))
    return loaded


def translate_greedily(loaded: Checkpoint, sources: Sequence[str], on_progress: Progress) -> list[str]:
    """Translate texts with a checkpoint on its device. Raises UserError without a tokenizer."""
    ids = Tokenizers(loaded.tokenizer, loaded.source_tokenizer).sources(sources)
    assert loaded.tokenizer is not None
    target = Tokenizer(loaded.tokenizer)
    return [target.decode(tokens) for tokens in translate(loaded.model, ids, on_progress=on_progress)]


def translate_by_graph(
    graph: Path, sources: Sequence[str], beam: int, on_progress: Progress, copy: bool = True
) -> list[str]:
    """Translate texts with an exported graph.

    Batches have sources of similar length, because growing caches are as long as the longest.

    Args:
        copy: copy numbers and names (Beam.copy).

    Raises:
        UserError: no translator, no tokenizer, or a source outside the graph's limits.
    """
    translator = Translator(existing_graph(graph))
    source, target = Tokenizer.of_source(translator.signature), Tokenizer.of(translator.signature)
    known = translator.signature.source
    assert known is not None
    forced = len(known.start_tokens) - 1  # tokens before the text of a translation
    longest = LONGEST + forced if translator.signature.reach is None else None  # None: up to the last position
    ids = [source.encode(text) for text in sources]
    order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
    translations = translator.translate((ids[place] for place in order), Beam(beam, max_tokens=longest, copy=copy))
    found: dict[int, str] = {}
    for place, (best,) in zip(order, translations, strict=True):
        found[place] = target.decode(best.tokens[forced:])
        on_progress(len(found))
    return [found[place] for place in range(len(ids))]


def read_sources(path: Path) -> list[str]:
    """Read the sources of a .tsv of pairs, or the non-empty lines of another text file.

    Raises:
        UserError: a missing or empty file, a file that is not UTF-8, or a line that is too long.
    """
    if path.suffix == ".tsv":
        return [source for source, _ in read_pairs(path)]
    try:
        with existing_file(path, "a text of sources").open("rb") as file:
            lines = [line.strip() for line, _ in bounded_lines(file, str(path))]
    except OSError as error:
        raise UserError(f"to be able to read {path}", error.strerror or str(error), "name an existing file") from error
    found = [" ".join(line.split("\t")) for line in lines if line]
    if not found:
        raise UserError(f"lines of text in {path}", "none", "name a file with text")
    return found


def write_translations(
    model: Path,
    out: Path,
    sources: Sequence[str],
    beam: int = 1,
    device: str = "auto",
    on_progress: Progress = lambda done: None,
) -> int:
    """Write sources with their translations as a TSV of pairs; returns the number of pairs.

    Empty translations are skipped.

    Args:
        model: an exported graph, or a checkpoint, which translates greedily.

    Raises:
        UserError: a model that cannot translate the sources, a beam with a checkpoint, or only empty translations.
    """
    if beam > 1 and not is_graph(model):
        raise UserError("an exported graph, for a beam", f"{model}", "export the model, or leave the beam out")
    if is_graph(model):
        texts = translate_by_graph(model, sources, beam, on_progress, copy=False)  # a student learns the model itself
    else:
        texts = translate_greedily(translator_of(model, device), sources, on_progress)
    pairs = [(source, " ".join(text.split())) for source, text in zip(sources, texts, strict=True)]
    pairs = [pair for pair in pairs if pair[1]]
    if not pairs:
        raise UserError("non-empty translations to write", "only empty ones", "train the model first")
    write_pairs(out, pairs)
    return len(pairs)


@torch.no_grad()
def translate(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    longest: int = LONGEST,
    on_progress: Progress = lambda done: None,
) -> list[list[int]]:
    """Translate sources greedily.

    Args:
        sources: token ids with special tokens, at least one per source.
        longest: maximum tokens per translation, end token included; lower if the model has fewer positions.
        on_progress: called with the number of translated sources.

    Returns:
        Token ids per source, without end token.
    """
    limit = model.reach
    if limit is not None:
        longest = min(longest, limit + 1 - len(model.config.start_tokens))
    found: list[list[int]] = [[] for _ in sources]
    ragged = Ragged.of(sources)
    order, done = ragged.lengths.argsort(stable=True), 0
    for chosen in order.split(BATCH):
        for place, tokens in zip(chosen.tolist(), _batch(model, *ragged.padded(chosen), longest), strict=True):
            found[place] = tokens
        done += len(chosen)
        on_progress(done)
    return found


def _batch(model: Transformer, source: Tensor, lengths: Tensor, longest: int) -> list[list[int]]:
    config, device = model.config, model.embedding.weight.device
    states = model.start(source.to(device), lengths.to(device))
    begin = torch.tensor(config.start_tokens, device=device).expand(len(source), -1)
    logits, states = model.prefill(begin, states)
    logits, ends = logits[:, -1], torch.tensor(config.eos_tokens, device=device)
    chosen: list[Tensor] = []
    over = torch.zeros(len(source), dtype=torch.bool, device=device)
    while longest > 1:
        logits[:, list(config.banned_tokens)] = -torch.inf
        chosen.append(logits.argmax(-1))
        over |= torch.isin(chosen[-1], ends)
        if bool(over.all()) or len(chosen) == longest - 1:
            break
        logits, states = model.step(chosen[-1], states)
    rows, special = torch.stack(chosen, 1).tolist() if chosen else [[]] * len(source), set(config.eos_tokens)
    return [row[: next((n for n, token in enumerate(row) if token in special), len(row))] for row in rows]
