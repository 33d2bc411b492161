"""A translator: the encoder's states of sources, and their translations by the contract's search, step by step.

t2r_runtime.translate.search is another implementation. Scores that a search compares differ by at least `MARGIN`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from golden.choices import penalized
from golden.computed import Eager
from golden.models import CLAMP, PLAIN, seeded
from golden.texts import Case
from golden.traces import array
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.export import ExportConfig
from t2r_export.config.generation import GenerationOptions
from t2r_export.config.mixers import LinearConfig, SoftmaxConfig
from t2r_export.config.uniform import UniformConfig, UniformEncoder
from t2r_export.export import export
from t2r_export.lab.config.merged import MergeConfig
from t2r_export.proof.tolerances import tolerance
from t2r_runtime.contract.options import BeamOptions
from t2r_runtime.translate.beam import Beam
from t2r_runtime.translate.copies import Copies, copying_of

MARGIN, LENGTHS, ATTEMPTS = 1e-3, (7, 3, 5), 400
LONG = 3  # least tokens of a translation that is not trivial
SOURCE_VOCABULARY = 13
CONFIG = dataclasses.replace(
    PLAIN,
    layers=(LinearConfig(feature_size=5, guard=CLAMP),) * 2,
    crosses=(LinearConfig(feature_size=3, guard=CLAMP), SoftmaxConfig()),
    encoder=UniformEncoder(
        layers=(SoftmaxConfig(),),
        attention=HeadsConfig(heads=2, kv_heads=2, head_size=5, qkv_bias=False),
        ffn_size=9,
        vocab_size=SOURCE_VOCABULARY,
    ),
    start_tokens=(3,),
    banned_tokens=(5, 0),
)
BEAMS: tuple[dict[str, Any], ...] = (
    {"width": 1, "max_tokens": 9},
    {"width": 2, "max_tokens": 8, "n_best": 2},
    {"width": 3, "max_tokens": 8, "n_best": 3, "length_penalty": 0.6, "early_stopping": True},
    {"width": 3, "max_tokens": 7, "length_penalty": 2.0, "early_stopping": "never", "min_tokens": 3},
    {"width": 2, "max_tokens": 6, "forced_end": False, "length_penalty": -0.5},
)
# the options of the graph, and the caller's
OF_GRAPH = GenerationOptions(
    width=2, max_tokens=9, min_tokens=4, length_penalty=0.5, early_stopping="never", forced_end=False
)
GIVEN: tuple[dict[str, Any], ...] = (
    {},
    {"n_best": 2},
    {"width": 1},
    {"max_tokens": 6, "forced_end": True},
    {"min_tokens": 0, "width": 3},
    {"length_penalty": 1, "early_stopping": False},
)
# penalties, which also see forced tokens
PENALTIES: tuple[dict[str, Any], ...] = (
    {"width": 3, "max_tokens": 9, "n_best": 2, "repetition_penalty": 1.7},
    {"width": 2, "max_tokens": 9, "no_repeat_ngram": 1},
    {"width": 1, "max_tokens": 9, "repetition_penalty": 1.4, "no_repeat_ngram": 2},
    {"width": 3, "max_tokens": 8, "n_best": 3, "min_tokens": 4, "repetition_penalty": 0.7, "no_repeat_ngram": 3},
)
# a layer whose states start from the source, two start tokens, and as many encoder positions as the longest source
assert CONFIG.encoder is not None
STARTS = dataclasses.replace(
    CONFIG,
    crosses=(MergeConfig(), CONFIG.crosses[0]),
    start_tokens=(3, 7),
    position="learned",
    max_positions=9,
    encoder=dataclasses.replace(CONFIG.encoder, max_positions=max(LENGTHS)),
)
ENCODED = {"translator-starts": 2}  # sources of different lengths in one batch, if more than one
MODELS = {
    "translator": (CONFIG, BEAMS),
    "translator-options": (dataclasses.replace(CONFIG, generation=OF_GRAPH), GIVEN),
    "translator-starts": (STARTS, PENALTIES),
}


# texts whose numbers and names are copied: one token for each letter of a source, and several for some of a target
TARGET_PIECES = [
    *"ea!12uA30.no:p5748,/69FCHrsNihclOtm", " ", " 1", "12", " An", "pm", " p", "Ano", " t", "wo", " three", " Frau",
    " N", " frau", "8:30", "th", " Ca",
]  # fmt: skip
COPIED: tuple[dict[str, Any], ...] = (
    {"width": 3, "max_tokens": 14, "n_best": 3},
    {"width": 1, "max_tokens": 12},
    {"width": 4, "max_tokens": 16, "n_best": 2, "length_penalty": 0.5},
    {"width": 2, "max_tokens": 13, "min_tokens": 6, "repetition_penalty": 1.2},
    {"width": 3, "max_tokens": 9, "forced_end": False},
    {"width": 2, "max_tokens": 15, "n_best": 2, "early_stopping": True},
    {"width": 2, "max_tokens": 12, "copy": False},
)
# texts of searches with each of these options: of some 300, those that see most changes of one place in the source
COPIED_TEXTS: tuple[tuple[str, ...], ...] = (
    (
        "20:30", "n Anno Cato", "05,5", "5 p.m", "1\u00a0200", "Ann n 12", "Otto Anno", "1:2 2", "Frau Ann",
        "namens Otto", "12 A.M", "2 PM", "05.03.12", "30 2 31", "frau Anos", "2 AM", "AnO Ann", "1.12. n",
        "1'200",
    ),
    (
        "1,200.5", "120000", "00", "12:75", "Tante Otto",
    ),
    (
        "Herr Anno", "00 n",
    ),
    (
        "8.30 n", "1.13. n", "120 12",
    ),
    (
        "3 1:2",
    ),
    (
        "12 Pfund Anno", "der Anno", "1/2 1", "2\u00a0pm", "31.12.20", "1.2. 3", "1.12.2025", "1.200,5",
        "24:00", "heißt Anno", "0123", "am Hano", "drei Pfund Anno", "Otto Anno. Cato", "2 P.M", "20:30 n",
        "2 pma", "24 n",
    ),
    (
        "1.200",
    ),
)  # fmt: skip
SEARCHES = [(text, options) for texts, options in zip(COPIED_TEXTS, COPIED, strict=True) for text in texts]
SOURCE_LETTERS = " !',-./012345678:?ACFHMOPTadefhiklmnoprstuwz\u00a0ß’"
assert CONFIG.encoder is not None
COPYING = dataclasses.replace(
    CONFIG,
    vocab_size=len(TARGET_PIECES),
    encoder=dataclasses.replace(CONFIG.encoder, vocab_size=len(SOURCE_LETTERS)),
)


class TooNear(Exception):
    """Candidates whose order rounding could change."""


def cases(folder: Path) -> Iterator[Case]:
    """The translators' graphs and their cases."""
    for name, (config, given) in MODELS.items():
        yield _case(folder, name, seeded(name, config), config, given, _random_sources(name))
    name = "translator-copies"
    golden = copying()
    beams = [options for _, options in SEARCHES]
    yield _case(folder, name, golden, COPYING, beams, lambda place: [source_of(SEARCHES[place][0])])


def copying() -> Checkpoint:
    """The translator of texts."""
    golden = seeded("translator-copies", COPYING, _of_letters(TARGET_PIECES))
    return dataclasses.replace(golden, source_tokenizer=_of_letters([*SOURCE_LETTERS]))


def source_of(text: str) -> list[int]:
    return [SOURCE_LETTERS.index(letter) for letter in text]


def _random_sources(name: str) -> Callable[[int], Iterable[list[int]]]:
    random = np.random.default_rng(list(name.encode()))
    return lambda place: (
        random.integers(0, SOURCE_VOCABULARY, LENGTHS[place % len(LENGTHS)]).tolist() for _ in range(ATTEMPTS)
    )


def _of_letters(pieces: Sequence[str]) -> str:
    """A byte-level tokenizer of these pieces, which encodes letter by letter."""
    vocabulary = {piece.replace(" ", "Ġ"): token for token, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return str(made.to_str())


def _case(
    folder: Path,
    name: str,
    golden: Checkpoint,
    config: UniformConfig,
    beams: Sequence[dict[str, Any]],
    sources_of: Callable[[int], Iterable[list[int]]],
) -> Case:
    signature = export(golden, folder / f"{name}.onnx", ExportConfig()).signature
    made, copies = Eager(golden), copying_of(signature)
    searches = []
    for place, options in enumerate(beams):
        beam = Beam(**options).resolved(signature.generation)
        for source in sources_of(place):
            try:
                found = _search(made, config, source, beam, copies.of(source) if copies and beam.copy else None)
            except TooNear:
                continue
            if len(found[-1][1]) < LONG:
                continue
            translations = [{"tokens": tokens, "score": float(f"{score:.9g}")} for score, tokens in found]
            searches.append({"source": source, "beam": options, "translations": translations})
            break
    assert len(searches) == len(beams), "too few attempts"
    sources = [search["source"] for search in searches[: ENCODED.get(name, 1)]]
    encoded = _encoded(made, sources)
    given = [*(spec.name for spec in signature.constant), *(signature.source.start_states if signature.source else ())]
    bound = tolerance("cpu", "none")
    return (
        name,
        "translator",
        {
            "graph": f"{name}.onnx",
            "tolerance": {"logits_absolute": bound.logits, "state_relative_to_its_largest": bound.states},
            "sources": sources,
            "states": {name: array(encoded[name]) for name in given},
            "searches": searches,
        },
    )


@torch.no_grad()
def _encoded(made: Eager, sources: Sequence[list[int]]) -> dict[str, Any]:
    lengths = [len(source) for source in sources]
    ids = torch.tensor([[*source, *[0] * (max(lengths) - len(source))] for source in sources])
    states = made.model.start(ids, torch.tensor(lengths))
    return {name: value.numpy() for name, value in states.items()}


def _search(
    made: Eager, config: UniformConfig, source: list[int], beam: BeamOptions, copies: Copies | None
) -> list[tuple[float, list[int]]]:
    """The n best (score, tokens), by "The search" of the contract, one hypothesis at a time."""
    ends, last, width = config.eos_tokens, beam.max_tokens or 1, beam.width
    (start, *forced), states = config.start_tokens, _encoded(made, [source])
    for token in config.start_tokens:
        logits, states = made.step(np.array([token]), states)
    going = [(copies.debt if copies else 0.0, forced, states, logits[0])]
    finished: list[tuple[float, list[int]]] = []
    for n in range(len(forced), last):
        candidates = [
            (total + added, place, token)
            for place, (total, text, _, row) in enumerate(going)
            for token, added in enumerate(_copied(_added(row, [start, *text], beam), text, config, beam, copies))
            if added > -math.inf
        ]
        candidates.sort(key=lambda c: (-c[0], c[1], c[2]))
        most = 1 if width == 1 else max(2, 1 + len(ends)) * width
        if any(a[0] - b[0] < MARGIN for a, b in zip(candidates[: most + 1], candidates[1 : most + 1], strict=False)):
            raise TooNear
        candidates = candidates[:most]
        ended = [c for c in candidates if c[2] in ends or n + 1 == last]
        for total, place, token in (c for c in candidates[:width] if c in ended):
            finished.append((total / (n + 1) ** beam.length_penalty, [*going[place][1], token]))
        finished = sorted(finished, key=lambda f: -f[0])[:width]
        if any(a[0] - b[0] < MARGIN for a, b in zip(finished, finished[1:], strict=False)):
            raise TooNear
        kept = [c for c in candidates if c not in ended][:width]
        if not kept or _done(finished, kept[0][0], n + 1, beam):
            break
        before, going = going, []
        for total, place, token in kept:
            logits, states = made.step(np.array([token]), before[place][2])
            going.append((total, [*before[place][1], token], states, logits[0]))
    return finished[: beam.n_best]


def _added(logits: Any, occurred: Sequence[int], beam: BeamOptions) -> list[float]:
    """What each token adds to the score of a hypothesis; `occurred` is the start token and the hypothesis."""
    n = len(occurred) - 1
    if beam.forced_end and n + 1 == beam.max_tokens:
        return [0.0 if token == CONFIG.eos_tokens[0] else -math.inf for token in range(len(logits))]
    log_sum = float(np.log(np.exp(logits).sum()))
    of_all = 0.0 if beam.width == 1 else log_sum  # a greedy search's penalties act on logits
    never = {*CONFIG.banned_tokens, *(CONFIG.eos_tokens if n < beam.min_tokens else ())}
    values = [-math.inf if token in never else float(value) - of_all for token, value in enumerate(logits)]
    penalties = beam.repetition_penalty, beam.no_repeat_ngram
    return [value + of_all - log_sum for value in penalized(values, occurred, *penalties)]


def _copied(
    added: list[float], text: list[int], config: UniformConfig, beam: BeamOptions, copies: Copies | None
) -> list[float]:
    """`_added` of a hypothesis whose translation copies its source."""
    if copies is None:
        return added
    ends, states = config.eos_tokens, copies.read(text)
    others = [token for token, piece in enumerate(TARGET_PIECES) if not any(map(str.isdigit, piece))]
    most = 1 if beam.width == 1 else max(2, 1 + len(ends)) * beam.width
    most += len(config.banned_tokens) + (len(ends) if beam.min_tokens else 0)
    likely = sorted(others, key=lambda token: -added[token])[:most]
    found = [-math.inf] * len(added)
    for token in {*likely, *copies.pieces(states), *ends}:
        after, gain = copies.advance(states, token)
        if after:
            ended = token in ends or len(text) + 1 == beam.max_tokens
            found[token] = added[token] + gain - (copies.cost_of_ending(after, [*text, token]) if ended else 0.0)
    return found if max(found) > -math.inf else added


def _done(finished: list[tuple[float, list[int]]], best: float, n: int, beam: BeamOptions) -> bool:
    if len(finished) < beam.width:
        return False
    if beam.width == 1 or beam.early_stopping is True:
        return True
    never = beam.early_stopping == "never" and beam.length_penalty > 0
    length = (beam.max_tokens or 1) if never else n
    score = best / length**beam.length_penalty
    if abs(score - finished[-1][0]) < MARGIN:
        raise TooNear
    return bool(score <= finished[-1][0])
