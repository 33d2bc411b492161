"""Quality of a translator by kind of sentence: the tables of kinds on models/translator-de-en's card.

    python benchmarks/everyday.py models/translator-de-en/model.pt models/translator-de-en/everyday.tsv [--beam 4]
        [--no-copy] [--out TRANSLATIONS.tsv] [--save benchmarks/results/NAME.json]
        [--page models/translator-de-en/README.md]

A line has a source, a reference translation and a kind. The exported graph translates each source sentence by
sentence, as `t2r translate` and the page do. A row per kind and one for all lines: BLEU and chrF (sacrebleu); of the
lines whose source has digits, those whose translation has the same numbers and no others, each as often; of the lines
with names, those that have all; lines that repeat themselves. A name is a capitalized word, no month, that is the same
in source and reference. `--out` writes the translations.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from builds import add_outputs, show
from comparison.tables import Table
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.export import export, read_by_beam
from t2r_runtime import Beam, Tokenizer, Translator
from t2r_runtime.errors import UserError
from t2r_runtime.session.segment import repeats, split_sentences
from t2r_runtime.text.copied import same_words
from t2r_runtime.text.numbers import differing_numbers

MONTHS = {"Jan", "Feb", "Apr", "April", "Aug", "August", "Sep", "Sept", "September", "Nov", "November"}  # in both
HEAD = ["kind", "sentences", "BLEU", "chrF", "numbers", "names", "repeat"]
ALL = "all"


@dataclass(frozen=True)
class Line:
    """A source, its reference translation, and the model's translations."""

    source: str
    given: str
    kind: str
    translation: str = ""
    repeats: bool = False


def read_lines(path: Path) -> list[Line]:
    """The lines of a file. Raises UserError for a line without three columns."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    if not rows or any(len(row) != 3 for row in rows):
        raise UserError(f"a source, a translation and a kind in each line of {path}", "another line", "correct it")
    return [Line(source, given, kind) for source, given, kind in rows]


def translated(graph: Path, lines: Sequence[Line], beam: Beam) -> list[Line]:
    """The lines with a graph's translations, sentence by sentence."""
    translator = Translator(graph)
    source, target = Tokenizer.of_source(translator.signature), Tokenizer.of(translator.signature)
    sentences = [split_sentences(line.source) for line in lines]
    flat = (source.encode(sentence) for each in sentences for sentence in each)
    found = (best.tokens for (best,) in translator.translate(flat, beam))
    done = []
    for line, each in zip(lines, sentences, strict=True):
        tokens = [next(found) for _ in each]
        text = " ".join(map(target.decode, tokens))
        done.append(replace(line, translation=text, repeats=any(map(repeats, tokens))))
    return done


def has_numbers(line: Line) -> bool | None:
    """Whether a translation has the numbers of its source and no others; None if the source has none."""
    return None if not any(map(str.isdigit, line.source)) else not any(differing_numbers(line.source, line.translation))


def has_names(line: Line) -> bool | None:
    """Whether a translation has all names; None if there are none."""
    names = {word for word in same_words(line.source, line.given) if word.istitle() and word not in MONTHS}
    return names <= set(same_words(line.given, line.translation)) if names else None


def share(found: Sequence[bool | None]) -> str:
    """Number of true values among those that are not None, such as `3 of 5`."""
    counted = [one for one in found if one is not None]
    return f"{sum(counted)} of {len(counted)}" if counted else "-"


def cells(kind: str, lines: Sequence[Line]) -> list[str]:
    texts, given = [line.translation for line in lines], [[line.given for line in lines]]
    scores = [metric.corpus_score(texts, given).score for metric in (BLEU(), CHRF())]
    shares = [share([check(line) for line in lines]) for check in (has_numbers, has_names)]
    return [
        kind,
        str(len(lines)),
        *(f"{score:.1f}" for score in scores),
        *shares,
        str(sum(line.repeats for line in lines)),
    ]


def table(lines: Sequence[Line]) -> Table:
    """A row per kind, in order, and one for all."""
    kinds = dict.fromkeys(line.kind for line in lines)
    rows = [cells(kind, [line for line in lines if line.kind == kind]) for kind in kinds]
    return Table("", HEAD, [*rows, cells(ALL, lines)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--no-copy", action="store_true")
    parser.add_argument("--out", type=Path)
    add_outputs(parser)
    options = parser.parse_args()
    lines, loaded = read_lines(options.lines), checkpoint.load(options.model)
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "model.onnx"
        export(loaded, graph, ExportConfig(top_k=read_by_beam(loaded.config, options.beam)))
        lines = translated(graph, lines, Beam(options.beam, copy=not options.no_copy))
    if options.out:
        rows = [f"{line.source}\t{line.given}\t{line.kind}\t{line.translation}\n" for line in lines]
        options.out.write_text("".join(rows), encoding="utf-8")
    show(table(lines), options)


if __name__ == "__main__":
    main()
