"""Exported graphs of published checkpoints behave as documented."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.convert import convert
from t2r_export.export import export
from t2r_runtime import Decoder, Sampling, Tokenizer
from t2r_runtime.errors import UserError

DIGITS, LENGTH = 3, 6
END = 11  # positions of gpt-nano-sort: six input digits and six outputs, the last of which is not read
GREEDY = Sampling(temperature=0, stop_tokens=())


@pytest.fixture(scope="module")
def stories(data: Path) -> Path:
    return data / "checkpoints" / "stories260K"


@pytest.fixture(scope="module")
def teller(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """stories260K, exported unconverted."""
    loaded = checkpoint.load(stories)
    made = convert(loaded.model, LinearConfig(16), "none")
    path = tmp_path_factory.mktemp("stories") / "teacher.onnx"
    export(checkpoint.Checkpoint(made.config, made, loaded.tokenizer, {}, loaded.sha256), path)
    return path


def test_stories_teacher_continues_as_expected(stories: Path, teller: Path) -> None:
    expected = json.loads((stories / "expected_greedy_ids.json").read_text())["greedy_ids"]
    assert len(expected) == 200
    decoder = Decoder(teller, threads=1)
    assert expected[0] == decoder.signature.bos_token
    assert decoder.generate(expected[:1], 199, GREEDY) == expected[1:]
    # again from a state saved midway
    decoder.reset()
    decoder.prefill(expected[:99])
    states, position = decoder.state(), decoder.position
    decoder.reset()
    decoder.set_state(states, position)
    assert decoder.generate([expected[99]], 100, GREEDY) == expected[100:]


def test_stories_teacher_generates_text(stories: Path, teller: Path) -> None:
    decoder = Decoder(teller, threads=1)
    text = Tokenizer.of(decoder.signature)
    ids = decoder.generate(text.encode(""), 200, GREEDY)
    expected = (stories / "expected_greedy_200.txt").read_text().strip()
    assert text.decode(ids).strip() == expected
    assert expected.startswith("Once upon a time")


@pytest.fixture(scope="module")
def sorter(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gpt-nano-sort, exported unconverted."""
    path = tmp_path_factory.mktemp("sort") / "sort.onnx"
    export(checkpoint.load(data / "checkpoints" / "gpt-nano-sort"), path)
    return path


def all_inputs() -> np.ndarray:
    return np.array(list(itertools.product(range(DIGITS), repeat=LENGTH)))


def test_nano_sort_sorts_all_in_one_batch(sorter: Path) -> None:
    inputs = all_inputs()
    assert len(inputs) == 729
    decoder = Decoder(sorter, threads=1)
    decoder.reset(batch=len(inputs))
    tokens = decoder.prefill(inputs).argmax(-1)
    columns = [tokens]
    for _ in range(LENGTH - 1):
        tokens = decoder.step(tokens).argmax(-1)
        columns.append(tokens)
    np.testing.assert_array_equal(np.stack(columns, 1), np.sort(inputs, 1))
    assert decoder.position == END


def test_nano_sort_past_end_is_refused(sorter: Path) -> None:
    decoder = Decoder(sorter, threads=1)
    assert decoder.signature.max_positions == END
    decoder.prefill([2, 1, 0] * 3 + [1, 1])
    before = decoder.state()
    with pytest.raises(UserError) as caught:
        decoder.step(0)
    assert str(caught.value) == (
        "expected at most 11 tokens, where this model's positions end; received 1 more after 11; "
        "reset, read fewer tokens, or export with --past-end clamp or wrap:N"
    )
    for name, value in decoder.state().items():
        np.testing.assert_array_equal(value, before[name])


def test_nano_sort_clamped_continues(data: Path, tmp_path: Path) -> None:
    export(checkpoint.load(data / "checkpoints" / "gpt-nano-sort"), tmp_path / "g.onnx", ExportConfig(past_end="clamp"))
    decoder = Decoder(tmp_path / "g.onnx", threads=1)
    assert np.isfinite(decoder.prefill([2, 1, 0] * 7)).all()
    assert decoder.position == 21
