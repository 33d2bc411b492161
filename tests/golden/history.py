"""A text longer than the history of penalties: tokens inside the history count, older ones do not.

The model is a single window, so its results depend on the first and the last tokens only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from golden.choices import ATTEMPTS, MARGIN, penalized
from golden.computed import Eager
from golden.models import PLAIN, WINDOW, seeded
from golden.texts import Case
from t2r_export.config.export import ExportConfig
from t2r_export.export import export

LOOKED_BACK_ON = 1 << 16  # tokens
FILLING = (3, 4, 5, 6, 7, 8)
OTHERS = (0, 9, 10, 11, 12, 13, 14, 15, 16)
OPTIONS = {"temperature": 0, "no_repeat_ngram": 1, "stop_tokens": []}


def cases(folder: Path) -> Iterator[Case]:
    """A prompt whose first token is outside the history and whose second leaves it with the next token."""
    golden = seeded("history", replace(PLAIN, layers=(WINDOW,)))
    export(golden, folder / "history.onnx", ExportConfig(prefill=True))
    made, random = Eager(golden), np.random.default_rng(3)
    for _ in range(ATTEMPTS):
        forgotten, kept = random.choice(OTHERS, 2, replace=False).tolist()
        last = random.choice(FILLING, WINDOW.window).tolist()
        tokens = [forgotten, kept]
        if _chosen(made, [*tokens, *last], FILLING) != [kept, forgotten]:
            continue
        if _chosen(made, [*tokens, *last, forgotten], FILLING)[0] != kept:
            continue
        filling = [FILLING[n % len(FILLING)] for n in range(LOOKED_BACK_ON + 1 - len(tokens) - len(last))]
        text = {"prompt": [*tokens, *filling, *last], "max_tokens": 2, "options": OPTIONS, "tokens": [forgotten, kept]}
        yield "sampling-history", "sampling", {"graph": "history.onnx", "texts": [text]}
        return
    raise AssertionError("too few attempts")


def _chosen(made: Eager, tokens: list[int], banned: tuple[int, ...]) -> list[int]:
    """The two best tokens after a text that are not in `banned`; none if the best three are not `MARGIN` apart."""
    states = made.initial(1)
    for token in tokens:
        logits, states = made.step(np.array([token]), states)
    values = np.array(penalized(logits[0].tolist(), banned, 1, 1))
    order = np.argsort(-values)[:3]
    return order[:2].tolist() if np.diff(-values[order]).min() > MARGIN else []
