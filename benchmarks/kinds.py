"""Label the lines of a translator's test file by source, for benchmarks/everyday.py.

    python benchmarks/kinds.py BUILD/test.tsv BUILD/train.tsv MORE.tsv OUT.tsv

MORE.tsv is the second file of pairs of models/translator-de-en/recipe.toml. Its third column names the source of each
pair, and KINDS maps sources to kinds. All other lines are "Tatoeba, near" or "Tatoeba, far": near if the source differs
from a training source by at most one replaced, inserted or omitted word, ignoring punctuation and capitals.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from t2r_export.data.pair_sources import words

Words = tuple[str, ...]
KINDS = {
    "dialogues": "bcontrast",
    "newer Tatoeba": "tatoeba-newer",
    "encyclopedic": "mlqe-pe xquad",
    "examples of a dictionary": "wiktionary-examples",
    "apps": "corona-warn-app home-assistant inaturalist wikipedia-android thunderbird-android integreat uptime-kuma "
    "rocketchat-mobile dotnet-winforms element-ios mattermost-mobile duckduckgo-ios",
    "tutorials and handbooks": "rust-book opensource.guide raspberrypi-projects privacyguides djangogirls 12factor "
    "sonic-pi-tutorial bitcoin.org",
}


def pairs(path: Path) -> Iterator[list[str]]:
    """The columns of each line."""
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield line.rstrip("\n").split("\t")


def split(text: str) -> Words:
    """Words of a text, in lower case and without punctuation."""
    return tuple(words(text).split())


class Near:
    """A set of sentences, and the sentences that differ from one of them by one word."""

    def __init__(self) -> None:
        self._whole, self._shorter, self._gaps = set[Words](), set[Words](), set[tuple[int, Words]]()

    def add(self, sentence: Words) -> None:
        self._whole.add(sentence)
        for place in range(len(sentence)):
            rest = sentence[:place] + sentence[place + 1 :]
            self._shorter.add(rest)
            self._gaps.add((place, rest))

    def __contains__(self, sentence: Words) -> bool:
        rests = [sentence[:place] + sentence[place + 1 :] for place in range(len(sentence))]
        return (
            sentence in self._whole
            or sentence in self._shorter
            or not self._whole.isdisjoint(rests)
            or not self._gaps.isdisjoint(enumerate(rests))
        )


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("test", "train", "more", "out"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args(given)
    kinds = {label: kind for kind, labels in KINDS.items() for label in labels.split()}
    found = {(source, target): kinds[label] for source, target, label in pairs(arguments.more)}
    near = Near()
    for source, _ in pairs(arguments.train):
        near.add(split(source))
    with arguments.out.open("w", encoding="utf-8", newline="\n") as out:
        for source, target in pairs(arguments.test):
            kind = found.get((source, target)) or ("Tatoeba, near" if split(source) in near else "Tatoeba, far")
            out.write(f"{source}\t{target}\t{kind}\n")


if __name__ == "__main__":
    main()
