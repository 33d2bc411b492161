"""Parse and format sets of layer numbers."""

from __future__ import annotations

from collections.abc import Sequence

from t2r_runtime.errors import UserError


def choose_layers(text: str, softmax: Sequence[bool]) -> set[int]:
    """The layers to convert, selected by `all`, `softmax`, `none`, `every:N` or `0,2,5`.

    `every:N` converts all but every Nth: of eight layers, `every:4` leaves 3 and 7.

    Args:
        softmax: whether each layer is full softmax attention.

    Raises:
        UserError: another form, or numbers that the model lacks.
    """
    count = len(softmax)
    everything = set(range(count))
    step, chosen = read_layers(text)
    if text == "softmax":
        return {number for number in everything if softmax[number]}
    if chosen is None:
        return everything - (set(range(step - 1, count, step)) if step else set())
    if not chosen <= everything:
        raise UserError(f"layers from 0 to {count - 1}", text, "choose layers that the model has")
    return chosen


def read_layers(text: str) -> tuple[int, set[int] | None]:
    """Parse a selection into the N of `every:N` (else 0) and layer numbers (None for all, softmax and every:N).

    Raises:
        UserError: another form.
    """
    try:
        if text in ("all", "softmax", "none"):
            return 0, set() if text == "none" else None
        if not text.startswith("every:"):
            return 0, {int(number) for number in text.split(",")}
        step = int(text.removeprefix("every:"))
        if step < 1:
            raise ValueError
        return step, None
    except ValueError:
        expected = "layers as all, softmax, none, every:N or 0,2,5"
        raise UserError(expected, repr(text), "write it in one of those forms") from None


def ranges(numbers: Sequence[int]) -> str:
    """Format ascending integers: 0, 1, 2, 5 -> '0-2, 5'."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
