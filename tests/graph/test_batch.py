"""Batches of texts at different positions in exported graphs equal each text alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import small
import t2r_runtime.session.session as session
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.quantize import quantize
from t2r_runtime import Batch, Decoder, Sampling
from t2r_runtime.errors import UserError

PROMPTS = ([1, 5, 16], [3], [2, 2, 9, 4, 11, 7], [8, 0])
NAMES = ("learned", "sinusoidal", "rotary_keep", "rotary_drop", "window_rotary", "lstm", "average", "mixed")
COUNT = 8


def sampling(number: int) -> Sampling:
    """Sampling for one text of PROMPTS; every second one is greedy."""
    return Sampling(0 if number % 2 else 1.5, seed=number, stop_tokens=())


def staggered(decoder: Decoder) -> list[list[int]]:
    """Tokens of a batch to which each step adds a text, and from which the first is removed early."""
    batch, written = Batch(decoder), [[] for _ in PROMPTS]  # type: list[list[int]]
    for number, prompt in enumerate(PROMPTS):
        batch.add(prompt, COUNT, sampling(number))
        for handle, token in batch.step().items():
            written[handle].append(token)
    batch.remove(0)
    while batch.sequences:
        for handle, token in batch.step().items():
            written[handle].append(token)
    return written


def alone(decoder: Decoder, number: int) -> list[int]:
    decoder.reset()
    return decoder.generate(PROMPTS[number], COUNT if number else len(PROMPTS), sampling(number))


@pytest.mark.parametrize("options", [{}, {"target": "fused", "state_layout": "packed"}, {"prefill": True, "top_k": 17}])
@pytest.mark.parametrize("name", NAMES)
def test_each_is_what_it_is_alone(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    if name in ("mixed", "window_rotary"):
        options = {**options, "state_layout": "layers"}  # states of several shapes
    small.graph(tmp_path / "g.onnx", name, **options)
    decoder = Decoder(tmp_path / "g.onnx", threads=1)
    assert staggered(decoder) == [alone(decoder, number) for number in range(len(PROMPTS))]


@pytest.mark.parametrize("scheme", ["fp16", "w8", "w4"])
def test_quantized(scheme: str, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "rotary_drop", target="fused")
    quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme=scheme))
    decoder = Decoder(tmp_path / "q.onnx", threads=1)
    assert staggered(decoder) == [alone(decoder, number) for number in range(len(PROMPTS))]


def test_layers_that_stayed_softmax(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "hybrid")
    with pytest.raises(UserError, match=r"side by side; received a model whose k.1, v.1 grow"):
        Batch(Decoder(tmp_path / "g.onnx", threads=1))


def test_forks_open_a_companion_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, report = small.graph(tmp_path / "g.onnx", prefill=True)
    opens: list[str] = []
    original = session._Opening.open

    def counted(opening: session._Opening, path: Path, *given: Any) -> object:
        opens.append(path.name)
        return original(opening, path, *given)

    monkeypatch.setattr(session._Opening, "open", counted)
    decoder = Decoder(report.files[0], threads=1)
    forks = [decoder.fork() for _ in range(8)]
    start = threading.Barrier(8)

    def first(fork: Decoder) -> list[int]:
        start.wait()
        return fork.generate(PROMPTS[0], 4, Sampling(temperature=0))

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(first, forks))
    assert texts == [texts[0]] * 8
    assert sorted(opens) == sorted(["g.onnx", *decoder.signature.graphs.values()])
