"""`t2r sample --chats`: conversations of a checkpoint and of its graph."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Library

from cli_models import CONFIG, LETTERS, Output, letter_tokenizer, run
from t2r_export.checkpoints import checkpoint
from t2r_export.model.transformer import Transformer
from t2r_export.quality.chats import chat_turns
from t2r_runtime import Tokenizer
from t2r_runtime.errors import UserError

TEMPLATE = "{% for m in messages %}{{ ',a' if m.role == 'user' else 'b' }}{{ m.content }}.{% endfor %}"


def tokenizer() -> str:
    """Letters, of which the comma and the full stop are special."""
    found = Library.from_str(letter_tokenizer())
    found.add_special_tokens([",", "."])
    return str(found.to_str())


def write(path: Path, template: str, text: str | None = None) -> Path:
    torch.manual_seed(1)
    origin = {"chat_template": {"template": template, "tokens": {}}}
    checkpoint.save(path, Transformer(CONFIG.build()).eval(), text or tokenizer(), {"origin": origin})
    return path


def test_conversations_of_checkpoint_and_graph_are_equal(tmp_path: Path, capsys: Output) -> None:
    model, graph, out = write(tmp_path / "m.pt", TEMPLATE), tmp_path / "g.onnx", tmp_path / "ids.npy"
    run(capsys, "export", model, graph)
    rows = {}
    for source in (model, graph):
        line, _ = run(
            capsys, "sample", source, out, "--tokens", 390, "--chats", "--length", 50, "--temperature", 3, "--json"
        )
        shown = json.loads(line)
        assert shown["tokens"] == 400 and shown["conversations"] == 8 <= shown["sampled"]
        rows[source] = np.load(out)
    _, err = run(capsys, "sample", graph, out, "--tokens", 9, "--chats", "--provider", "cpu:arena=0", code=2)
    assert "arena" in err  # the graph opens on that provider, which has no such option
    assert np.array_equal(rows[model], rows[graph]) and rows[model].shape == (8, 50)
    comma, stop, a, b = (LETTERS.index(letter) for letter in ",.ab")
    for row in rows[model].tolist():
        assert row[:2] == [comma, a]
        ends = [n for n, token in enumerate(row) if token == stop]
        assert len(ends) >= 2
        for n, end in enumerate(ends):
            expected = [b] if n % 2 == 0 else [comma, a]
            assert row[end + 1 : end + 1 + len(expected)] == expected[: 49 - end]
    student, tuned = tmp_path / "c.pt", tmp_path / "s.pt"
    run(capsys, "convert", model, student, "--mixer", "linear:feature_size=4")
    run(capsys, "finetune", student, tuned, "--data", out, "--steps", 1, "--split", "valid=0.25,test=0.25")
    (done,) = checkpoint.load(tuned).provenance["finetune"]
    assert done["length"] == 49  # a conversation per row


def test_templates_whose_messages_have_no_visible_end_are_refused(tmp_path: Path, capsys: Output) -> None:
    def refused(template: str, text: str | None = None) -> str:
        path = write(tmp_path / "m.pt", template, text)
        return run(capsys, "sample", path, tmp_path / "o.npy", "--tokens", 9, "--chats", code=2)[1]

    assert "expected a chat template that keeps messages; received another" in refused("{{ messages[0].content }}")
    plain = refused(TEMPLATE, letter_tokenizer())
    assert "expected a chat template with a special token after every message; received one without" in plain
    assert not (tmp_path / "o.npy").exists()
    with pytest.raises(UserError, match="a model with a chat template; received one without"):
        chat_turns(Tokenizer(tokenizer()), ())
