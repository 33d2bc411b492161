"""Quality of a translator by kind of sentence: the tables of kinds on models/translator-de-en's card.

    python benchmarks/everyday.py models/translator-de-en/model.pt models/translator-de-en/everyday.tsv [--beam 4]
        [--out TRANSLATIONS.tsv] [--save benchmarks/results/NAME.json] [--page models/translator-de-en/README.md]

A line has a source, a reference translation and a kind. The exported graph translates each source sentence by
sentence, as `t2r translate` does. A row per kind and one for all lines: BLEU and chrF (sacrebleu); of the lines whose
source has digits, those whose translation has all numbers, without and with `--check-numbers`; of the lines with names,
those that have all. A name is a capitalized word, no month, that is the same in source and reference. `--out` writes
the translations.
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
from t2r_export.data.augment import MONTHS
from t2r_export.export import export, read_by_beam
from t2r_runtime import Beam, Tokenizer, Translator
from t2r_runtime.errors import UserError
from t2r_runtime.session.segment import split_sentences
from t2r_runtime.text.copied import missing_numbers, same_words
from t2r_runtime.translate.texts import Texts

HEAD = ["kind", "sentences", "BLEU", "chrF", "numbers", "numbers, checked", "names"]
ALL = "all"


@dataclass(frozen=True)
class Line:
    """A source, its reference translation, and the model's translations."""

    source: str
    given: str
    kind: str
    translation: str = ""
    checked: str = ""  # the translation that --check-numbers chooses


def read_lines(path: Path) -> list[Line]:
    """The lines of a file. Raises UserError for a line without three columns."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    if not rows or any(len(row) != 3 for row in rows):
        raise UserError(f"a source, a translation and a kind in each line of {path}", "another line", "correct it")
    return [Line(*row) for row in rows]


def translated(graph: Path, lines: Sequence[Line], beam: int) -> list[Line]:
    """The lines with a graph's translations, sentence by sentence."""
    translator = Translator(graph)
    source, target = Tokenizer.of_source(translator.signature), Tokenizer.of(translator.signature)
    texts = Texts(source, target, translator.signature, Beam(beam), check=True)
    sentences = [split_sentences(line.source) for line in lines]
    flat = [sentence for each in sentences for sentence in each]
    found = list(translator.translate(map(source.encode, flat), texts.beam))
    first = iter(best[0] for best in found)
    preferred = iter(texts.choose(sentence, best)[0] for sentence, best in zip(flat, found, strict=True))
    return [
        replace(
            line,
            translation=" ".join(target.decode(next(first).tokens) for _ in each),
            checked=" ".join(target.decode(next(preferred).tokens) for _ in each),
        )
        for line, each in zip(lines, sentences, strict=True)
    ]


def has_numbers(line: Line) -> bool | None:
    """Whether a translation has all numbers of its source; None if there are none."""
    return _has_numbers(line.source, line.translation)


def checked_has_numbers(line: Line) -> bool | None:
    """Whether the translation that --check-numbers chooses has all numbers of its source; None if there are none."""
    return _has_numbers(line.source, line.checked)


def _has_numbers(source: str, translation: str) -> bool | None:
    return None if not any(map(str.isdigit, source)) else not missing_numbers(source, translation)


def has_names(line: Line) -> bool | None:
    """Whether a translation has all names; None if there are none."""
    names = {word for word in same_words(line.source, line.given) if word.istitle() and not MONTHS.fullmatch(word)}
    return names <= set(same_words(line.given, line.translation)) if names else None


def share(found: Sequence[bool | None]) -> str:
    """Number of true values among those that are not None, such as `3 of 5`."""
    counted = [one for one in found if one is not None]
    return f"{sum(counted)} of {len(counted)}" if counted else "-"


def cells(kind: str, lines: Sequence[Line]) -> list[str]:
    texts, given = [line.translation for line in lines], [[line.given for line in lines]]
    scores = [metric.corpus_score(texts, given).score for metric in (BLEU(), CHRF())]
    shares = [share([check(line) for line in lines]) for check in (has_numbers, checked_has_numbers, has_names)]
    return [kind, str(len(lines)), *(f"{score:.1f}" for score in scores), *shares]


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
    parser.add_argument("--out", type=Path)
    add_outputs(parser)
    options = parser.parse_args()
    lines, loaded = read_lines(options.lines), checkpoint.load(options.model)
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "model.onnx"
        export(loaded, graph, ExportConfig(top_k=read_by_beam(loaded.config, options.beam)))
        lines = translated(graph, lines, options.beam)
    if options.out:
        rows = [f"{line.source}\t{line.given}\t{line.kind}\t{line.translation}\n" for line in lines]
        options.out.write_text("".join(rows), encoding="utf-8")
    show(table(lines), options)


if __name__ == "__main__":
    main()
