"""Pairs of sentences: read from TSV files, grouped where they share a sentence, and divided into parts by groups.

A file of pairs is UTF-8 with a pair a line, the source and its translation with a tab between them. A corpus says the
same sentence in many ways, so that a pair drawn at random for a test would often have its source, or its translation,
among the pairs that taught. So pairs that share a sentence on either side are one group, as are those that others
link, and a group is in one part alone.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from t2r_export.config.finetune import Shares
from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import existing_file, replacing
from t2r_runtime.text.texts import decode_lines

Pair = tuple[str, str]  # a source and its translation, neither of them empty
MAX_LINE = 1 << 16  # bytes
MAX_PAIRS = 1 << 26
FORMAT = "a source, a tab and its translation in every line"


@dataclass(frozen=True)
class PairParts:
    """The parts of pairs of texts. What each is for says t2r_export.data.corpus."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a TSV file, without white space around a sentence.

    Raises:
        UserError: no such file, a line that is no pair, is too long or is not UTF-8, or no line at all; the message
            names the file and the line.
    """
    try:
        with existing_file(path, "a file of pairs").open("rb") as file:
            return _read(file, str(path), (0, 1), exact=True)
    except OSError as error:
        raise UserError(f"to be able to read {path}", error.strerror or str(error), "name an existing file") from error


def read_archived(path: Path, member: str, chosen: tuple[int, int]) -> list[Pair]:
    """The pairs in two columns of a text in a zip archive, each once, whatever other columns say of them.

    Args:
        chosen: the columns of the source and of its translation, counted from 0.

    Raises:
        UserError: no such archive, or one that is damaged, or no such text in it, and what `read_pairs` raises.
    """
    try:
        with zipfile.ZipFile(existing_file(path, "an archive of pairs")) as archive, archive.open(member) as file:
            pairs = _read(file, f"{member} in {path}", chosen)
    except KeyError as error:
        raise UserError(f"{printable(member)} in {path}", "no such file in it", "name a file of the archive") from error
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise UserError(f"a whole zip archive in {path}", printable(error), "download it again") from error
    return list(dict.fromkeys(pairs))


def _read(file: IO[bytes], name: str, chosen: tuple[int, int], exact: bool = False) -> list[Pair]:
    pairs = [columns(line, where, chosen, exact) for line, where in bounded_lines(file, name)]
    if not pairs:
        raise UserError(f"pairs in {name}", "an empty file", f"write {FORMAT}")
    return pairs


def bounded_lines(
    file: IO[bytes], name: str, longest: int | None = None, most: float | None = None
) -> Iterator[tuple[str, str]]:
    """The lines of a text, and of each where it stands.

    Args:
        longest: bytes of a line. most: lines. None: as of pairs.

    Raises:
        UserError: a line that is too long, or too many.
    """
    for number, line in enumerate(decode_lines(_bounded(file, name, longest or MAX_LINE, most or MAX_PAIRS), name), 1):
        yield line, f"line {number} of {name}"


def _bounded(file: IO[bytes], name: str, longest: int, most: float) -> Iterator[bytes]:
    for number, line in enumerate(iter(lambda: file.readline(longest + 1), b""), 1):
        if len(line) > longest:
            raise UserError(f"at most {longest} bytes in line {number} of {name}", "more", "write shorter lines")
        if number > most:
            raise UserError(f"at most {most} lines in {name}", "more", "give fewer")
        yield line


def columns(line: str, where: str, chosen: tuple[int, int], exact: bool = False) -> Pair:
    """Two columns of a line, as source and translation.

    Args:
        exact: the line has no others.

    Raises:
        UserError: it has too few, or others, or one of the two is empty.
    """
    found = line.split("\t")
    least = max(chosen) + 1
    if len(found) < least or exact and len(found) > least:
        expected = f"{least} columns with a tab between them" if exact else f"at least {least} columns"
        raise UserError(f"{expected} in {where}", f"{len(found)}", f"write {FORMAT}")
    source, target = (found[column].strip() for column in chosen)
    if not source or not target:
        raise UserError(f"two sentences in {where}", "an empty one", "leave that line out")
    return source, target


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write a TSV file, whole or not at all. No sentence has a tab or a line's end in it."""
    with replacing(path) as part:
        part.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8", newline="\n")


def group(pairs: Sequence[Pair]) -> list[int]:
    """The number of each pair's group, from 0 in the order of their first pairs."""
    parent = list(range(len(pairs)))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for side in (0, 1):
        first: dict[str, int] = {}
        for place, pair in enumerate(pairs):
            one, other = root(first.setdefault(pair[side], place)), root(place)
            parent[max(one, other)] = min(one, other)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(root(place), len(numbers)) for place in range(len(pairs))]


def split_groups(pairs: Sequence[Pair], valid: int, test: int, seed: int = 0) -> PairParts:
    """Pairs in three parts that share no sentence: so many groups, drawn at random, for valid and for test.

    Pairs keep their order. What is drawn is a function of the pairs' order and the seed.

    Raises:
        UserError: too few groups for that.
    """
    groups = np.array(group(pairs))
    count = int(groups.max(initial=-1)) + 1
    if not 0 < valid < count - test or not test > 0:
        raise UserError(
            f"groups of pairs for each of three parts: {valid} for valid, {test} for test, and some to train on",
            f"{count} groups, which share no sentence",
            "give more pairs, or other sizes of the parts",
        )
    drawn = np.random.default_rng(seed).permutation(count)
    part_of = np.zeros(count, np.int8)
    part_of[drawn[:valid]], part_of[drawn[valid : valid + test]] = 1, 2
    parts: tuple[list[Pair], list[Pair], list[Pair]] = ([], [], [])
    for pair, part in zip(pairs, part_of[groups], strict=True):
        parts[part].append(pair)
    return PairParts(*parts)


def split_shares(pairs: Sequence[Pair], shares: Shares) -> PairParts:
    """`split_groups` with shares of the groups, at least one group each."""
    count = max(group(pairs), default=-1) + 1
    return split_groups(pairs, max(1, round(count * shares.valid)), max(1, round(count * shares.test)))
