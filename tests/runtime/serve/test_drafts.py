"""A server with drafts answers as one without, with a form, beside other texts and after kept states too."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import small
from cli_models import LETTERS, letter_tokenizer
from runtime.clock import set_even
from runtime.serve.server import Client, within
from t2r_export.config.export import ExportConfig
from t2r_export.export import export
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

FORM = {"guided_regex": "(abcd)*"} if importlib.util.find_spec("llguidance") else {}
ASKED: list[dict[str, Any]] = [
    {"prompt": [1, 5, 3], "max_tokens": 90, "temperature": 0},
    {"prompt": [4, 4, 2, 9], "max_tokens": 70, "temperature": 0.3, "seed": 3, "logprobs": 2},
    {"prompt": [7], "max_tokens": 60, "temperature": 0, "repetition_penalty": 1.2, "frequency_penalty": 0.5},
    {"prompt": [1, 5, 3], "max_tokens": 50, "temperature": 0.7, "seed": 5, "n": 2},
    {"prompt": [3, 8], "max_tokens": 47, "temperature": 0, "stop": ["q"], **FORM},
]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = dataclasses.replace(
        small.checkpoint("gated_rotary"), tokenizer=letter_tokenizer(LETTERS[: small.VOCABULARY])
    )
    path = tmp_path_factory.mktemp("drafts") / "g.onnx"
    export(made, path, ExportConfig(prefill=True, draft_check=True))
    return path


@pytest.fixture(params=["lookup", "model"])
def drafting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, graph: Path) -> Iterator[Client]:
    """Drafts by lookup, or by a model, whose guesses are right because it is the same."""
    set_even(monkeypatch)
    draft = "lookup" if request.param == "lookup" else Decoder(graph, threads=1)
    with within(graph, draft=draft) as client:
        yield client


def answers(client: Client, **fields: Any) -> list[tuple[str, str, list[int]]]:
    found = client.complete(**fields, ignore_eos=True)["choices"]
    return [(choice["text"], choice["finish_reason"], choice["tokens"]) for choice in found]


def test_answers_are_the_same(drafting: Client, graph: Path) -> None:
    with within(graph) as plain:
        expected = [answers(plain, **each) for each in ASKED]
        assert plain.metric("t2r_draft_tokens_total") == 0
    assert [answers(drafting, **each) for each in ASKED] == expected
    checked, right = (drafting.metric(f"t2r_draft_tokens_{name}total") for name in ("", "right_"))
    assert checked >= right > 60
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda each: answers(drafting, **each), ASKED)) == expected


def test_kept_states_are_those_of_the_answer(drafting: Client, graph: Path) -> None:
    """The second request continues from the states after the first answer, which ended among draft tokens."""
    text, found = [1, 5, 3], []
    for number in range(3):
        [(_, _, tokens)] = answers(drafting, prompt=text, max_tokens=41 + number, temperature=0)
        text = [*text, *tokens]
        answer = drafting.complete([*text, 6], max_tokens=1)
        found.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"] - len(text))
    assert found == [-1, -1, -1]
    with within(graph, keep_bytes=0) as plain:
        whole = answers(plain, prompt=[1, 5, 3], max_tokens=len(text) - 3, temperature=0)[0][2]
    assert text[3:] == whole


def test_a_model_with_other_tokens(tmp_path: Path, graph: Path) -> None:
    small.graph(tmp_path / "other.onnx", small.with_layers(small.GPT2, small.LINEAR, vocab_size=19))
    with (
        pytest.raises(UserError, match="a draft model of a decoder with the same 17 tokens"),
        within(graph, draft=Decoder(tmp_path / "other.onnx", threads=1)),
    ):
        pass
