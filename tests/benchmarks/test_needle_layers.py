"""Needles by layer: what a window costs, and the table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import needle_layers
import small
from needle_layers import log_probability, measure, prompt, windowed
from questions import Question
from t2r_export.checkpoints import checkpoint
from t2r_export.config.mixers import WindowConfig
from t2r_runtime import Tokenizer
from texts import letter_tokenizer

LETTERS = "0123456789abcdef .\n?"
CHAT = {"template": "{{ messages[0].content }}", "tokens": {}}
CONFIG = dataclasses.replace(small.LLAMA, layers=(small.SOFTMAX,) * 2, vocab_size=len(LETTERS))


def test_the_prompt_begins_the_answer() -> None:
    tokenizer = Tokenizer(letter_tokenizer(LETTERS), chat_template=CHAT)
    ids, number = prompt(Question("bad ace is 12.\nabc\nfee?", ("12",), "3"), tokenizer)
    assert tokenizer.decode(number) == "12"
    assert tokenizer.decode(ids) == "bad ace  12.\nabc\nfee?bad ace  "  # there is no i and no s


@torch.no_grad()
def test_log_probability_is_of_the_last_tokens() -> None:
    model, (ids,) = small.model(CONFIG).eval(), small.ids(1, 9).tolist()
    logits = model(torch.tensor([ids]))[0].log_softmax(-1)
    expected = sum(float(logits[n - 1, ids[n]]) for n in (6, 7, 8))
    assert log_probability(model, ids, 6) == pytest.approx(expected, abs=1e-5)


def test_layers_named_get_the_short_window() -> None:
    model, ids = small.model(CONFIG).eval(), small.ids(3, 12).tolist()
    made, asked = windowed(model, [1], (30, 3)), [(row[:-2], row[-2:]) for row in ids]
    assert [mixer.window for mixer in small.mixers(made.config) if isinstance(mixer, WindowConfig)] == [30, 3]
    whole = measure(model, asked, ids)
    assert measure(windowed(model, [], (30, 3)), asked, ids) == pytest.approx(whole, abs=1e-5)
    assert measure(made, asked, ids) != pytest.approx(whole, abs=1e-4)


@pytest.mark.parametrize(
    "more, names", [([], ["0", "1"]), (["--wide", "0", "--wide", "0,1"], ["all but 0", "all but 0,1"])]
)
def test_table(more: list[str], names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin = {"chat_template": CHAT}
    checkpoint.save(tmp_path / "m.pt", small.model(CONFIG), letter_tokenizer(LETTERS), {"origin": origin})
    (tmp_path / "text").write_text("abcdefabba" * 9)
    options = [str(tmp_path / "m.pt"), str(tmp_path / "text"), "--length", "5", "--windows", "399,2"]
    needle_layers.main([*options, *more])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[0] for row in rows] == ["none", *names]
    assert float(rows[0][1]) < 0 < float(rows[0][2])
    assert all(cell.startswith(("+", "-")) for row in rows[1:] for cell in row[1:])
    assert float(rows[1][1]) != 0 and (not more or rows[2][1:] == ["+0.00", "+0.0000"])
