"""The pairs of a recipe: from an archive and further files, each pair once, without those that are to stay unseen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from t2r_export.config.recipe import MorePairs, PairsPlan
from t2r_export.data.pairs import Pair, bounded_lines, columns, read_archived
from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file


def read_plan(plan: PairsPlan, data: Path, held_out: Path | None) -> tuple[list[Pair], int]:
    """The pairs that a plan names in the folder `data`, and how many were left out.

    Args:
        held_out: lines with a pair in their first two columns. Left out is a pair of which either side has the words of
            one of theirs, whatever their case and marks.

    Raises:
        UserError: what `read_archived` raises, of any of the files; a column that is not there.
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
    """The pairs of a file, but those with a label that the recipe leaves out."""
    pairs = [
        columns(line, where, (more.source, more.target))
        for line, where in lines(path)
        if more.label is None or columns(line, where, (more.source, more.label))[1] not in more.without
    ]
    if not pairs:
        raise UserError(f"pairs in {path}", "none that the recipe does not leave out", "correct `without` of [pairs]")
    return pairs


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file, and of each where it stands. Raises UserError as `pairs.read_pairs` does."""
    try:
        with existing_file(path, "a file of pairs").open("rb") as file:
            yield from bounded_lines(file, str(path))
    except OSError as error:
        raise UserError(f"to be able to read {path}", error.strerror or str(error), "name an existing file") from error


def words(text: str) -> str:
    """Letters and digits of a text, in small letters and with a space in the place of all between."""
    return " ".join("".join(letter if letter.isalnum() else " " for letter in text.casefold()).split())
