"""Pairs of sentences: reading TSV files, and splitting without shared sentences.

A file of pairs is UTF-8 text with a source, a tab and its translation per line. Corpora translate a sentence in several
ways, so random splits leak sentences from train to test. Pairs that share a source or a target, directly or through
other pairs, form a group, and a group is never split.
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

Pair = tuple[str, str]  # source and translation, both non-empty
MAX_LINE = 1 << 16  # bytes
MAX_PAIRS = 1 << 26
FORMAT = "a source, a tab and its translation in every line"


@dataclass(frozen=True)
class PairParts:
    """The three parts of pairs; see t2r_export.data.corpus for their use."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


def read_pairs(path: Path) -> list[Pair]:
    """Read the pairs of a TSV file, with sentences stripped of white space.

    Raises:
        UserError: a missing or empty file, or a line that is no pair, too long or not UTF-8; the message names the
            line.
    """
    try:
        with existing_file(path, "a file of pairs").open("rb") as file:
            return _read(file, str(path), (0, 1), exact=True)
    except OSError as error:
        raise UserError(f"to be able to read {path}", error.strerror or str(error), "name an existing file") from error


def read_archived(path: Path, member: str, chosen: tuple[int, int]) -> list[Pair]:
    """Read unique pairs from two columns of a text file in a zip archive.

    Args:
        chosen: columns of source and translation, counted from 0.

    Raises:
        UserError: a missing or damaged archive, a missing member, or errors of `read_pairs`.
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
    """Yield the lines of a text with a description of their place.

    Args:
        longest: maximum bytes per line. Default: MAX_LINE.
        most: maximum number of lines. Default: MAX_PAIRS.

    Raises:
        UserError: a line that is too long, or too many lines.
    """
    for number, line in enumerate(decode_lines(_bounded(file, name, longest or MAX_LINE, most or MAX_PAIRS), name), 1):
        yield line, f"line {number} of {name}"


def _bounded(file: IO[bytes], name: str, longest: int, most: float) -> Iterator[bytes]:
    for number, line in enumerate(iter(lambda: file.readline(longest + 1), b""), 1):
        if len(line) > longest:
            raise UserError(f"at most {longest} bytes in line {number} of {name}", "more", "write shorter lines")
        if number > most:
            raise UserError(f"at most {most} lines in {name}", "more", "pass fewer")
        yield line


def columns(line: str, where: str, chosen: tuple[int, int], exact: bool = False) -> Pair:
    """Two columns of a line, as source and translation.

    Args:
        exact: refuse further columns.

    Raises:
        UserError: the wrong number of columns, or an empty sentence.
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
    """Write a TSV file atomically. Sentences must not contain tabs or line breaks."""
    with replacing(path) as part:
        part.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8", newline="\n")


def group(pairs: Sequence[Pair]) -> list[int]:
    """Group number of each pair; groups are numbered by their first pair."""
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
    """Split pairs into three parts without shared sentences; `valid` and `test` are numbers of random groups.

    Pairs keep their order. The split is a function of that order and the seed.

    Raises:
        UserError: too few groups.
    """
    groups = np.array(group(pairs))
    count = int(groups.max(initial=-1)) + 1
    if not 0 < valid < count - test or not test > 0:
        raise UserError(
            f"groups of pairs for each of three parts: {valid} for valid, {test} for test, and some to train on",
            f"{count} groups, which share no sentence",
            "pass more pairs, or other sizes of the parts",
        )
    drawn = np.random.default_rng(seed).permutation(count)
    part_of = np.zeros(count, np.int8)
    part_of[drawn[:valid]], part_of[drawn[valid : valid + test]] = 1, 2
    parts: tuple[list[Pair], list[Pair], list[Pair]] = ([], [], [])
    for pair, part in zip(pairs, part_of[groups], strict=True):
        parts[part].append(pair)
    return PairParts(*parts)


def split_shares(pairs: Sequence[Pair], shares: Shares) -> PairParts:
    """`split_groups` by shares of the groups, at least one group per part."""
    count = max(group(pairs), default=-1) + 1
    return split_groups(pairs, max(1, round(count * shares.valid)), max(1, round(count * shares.test)))
