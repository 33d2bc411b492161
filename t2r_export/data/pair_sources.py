"""The pairs of a recipe: an archive and further files, deduplicated, without held-out sentences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from t2r_export.config.recipe import MorePairs, PairsPlan
from t2r_export.data.pairs import Pair, bounded_lines, columns, read_archived
from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file


def read_plan(plan: PairsPlan, data: Path, held_out: Path | None) -> tuple[list[Pair], int]:
    """Read the pairs of a plan in the folder `data`. Returns them, and the number of skipped pairs.

    Args:
        held_out: a file with a pair in the first two columns. A pair is skipped if either side equals one of its
            sentences, ignoring case and punctuation.

    Raises:
        UserError: as `read_archived`, for each of the files.
    """
    pairs = read_archived(data / plan.file, plan.member, (plan.source, plan.target))
    for more in plan.more:
        pairs += read_more(more, data / more.file)
    pairs = list(dict.fromkeys(pairs))
    if held_out is None:
        return pairs, 0
    unseen = {words(side) for line, where in lines(held_out) for side in columns(line, where, (0, 1))}
    kept = [pair for pair in pairs if not {words(side) for side in pair} & unseen]
    return kept, len(pairs) - len(kept)


def read_more(more: MorePairs, path: Path) -> list[Pair]:
    """Read the pairs of a file, without the labels to skip."""
    pairs = [
        columns(line, where, (more.source, more.target))
        for line, where in lines(path)
        if more.label is None or columns(line, where, (more.source, more.label))[1] not in more.without
    ]
    if not pairs:
        raise UserError(f"pairs in {path}", "only pairs that `without` skips", "correct `without`")
    return pairs


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """Read lines with their locations. Raises UserError as `pairs.read_pairs`."""
    try:
        with existing_file(path, "a file of pairs").open("rb") as file:
            yield from bounded_lines(file, str(path))
    except OSError as error:
        raise UserError(f"to be able to read {path}", error.strerror or str(error), "name an existing file") from error


def words(text: str) -> str:
    """Normalize a text to lowercase words, separated by spaces."""
    return " ".join("".join(letter if letter.isalnum() else " " for letter in text.casefold()).split())
