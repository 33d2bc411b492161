"""The chat template of a Hugging Face folder, from its files into a graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import folders
from cli_models import letter_tokenizer
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.importers.chat import LIMIT
from t2r_export.convert import provenance
from t2r_export.export import export
from t2r_runtime import Decoder
from t2r_runtime.contract import chat
from t2r_runtime.contract.chat import MAX_TEMPLATE, MAX_TOKEN
from t2r_runtime.errors import UserError

TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m.content }}{% endfor %}"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return folders.write_llama(tmp_path / "llama")


def told(folder: Path, **config: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_it_travels_into_the_graph(llama: Path, tmp_path: Path) -> None:
    told(llama, chat_template=TEMPLATE, bos_token="<s>", eos_token={"content": "</s>", "lstrip": False}, pad_token=None)
    expected = {"template": TEMPLATE, "tokens": {"bos_token": "<s>", "eos_token": "</s>"}}
    found = checkpoint.load(llama)
    assert found.chat_template == expected
    assert "tokenizer_config.json" in found.provenance["origin"]["files"]
    checkpoint.save(tmp_path / "m.pt", found.model, None, provenance(found, mixer="none"))  # as a stage passes it on
    again = checkpoint.load(tmp_path / "m.pt")
    assert again.chat_template == expected
    export(again, tmp_path / "g.onnx")
    assert Decoder(tmp_path / "g.onnx").signature.chat_template == expected


def test_where_it_stands(llama: Path) -> None:
    assert checkpoint.load(llama).chat_template is None
    told(llama, chat_template=[{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}])
    assert checkpoint.load(llama).chat_template == {"template": "b", "tokens": {}}
    (llama / "chat_template.jinja").write_text("c")
    assert checkpoint.load(llama).chat_template == {"template": "c", "tokens": {}}
    (llama / "tokenizer_config.json").unlink()
    assert checkpoint.load(llama).chat_template == {"template": "c", "tokens": {}}


def test_files_of_templates_replace_those_of_the_config(llama: Path) -> None:
    """As AutoTokenizer: test_special.py compares the tokens."""
    from transformers import AutoTokenizer

    (llama / "tokenizer.json").write_text(letter_tokenizer("abc"))
    told(llama, chat_template="a", tokenizer_class="PreTrainedTokenizerFast")
    others = llama / "additional_chat_templates"
    others.mkdir()
    (others / "tool_use.jinja").write_text("b")

    def loaded() -> checkpoint.Checkpoint:
        found = checkpoint.load(llama)
        theirs = AutoTokenizer.from_pretrained(llama).chat_template
        ours = None if found.chat_template is None else found.chat_template["template"]
        assert ours == theirs.get("default")
        assert "chat templates beside the default one are not read: tool_use" in found.notes
        return found

    loaded()
    (llama / "chat_template.jinja").write_text("c")
    loaded()
    (others / "default.jinja").write_text("d")
    assert "additional_chat_templates/default.jinja" in loaded().provenance["origin"]["files"]


def test_templates_outside_the_folder_are_not_read(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "default.jinja").write_text("a")
    (llama / "additional_chat_templates").symlink_to(tmp_path / "outside")
    assert checkpoint.load(llama).chat_template is None
    (llama / "additional_chat_templates").unlink()
    (llama / "additional_chat_templates").mkdir()
    (llama / "additional_chat_templates" / "default.jinja").symlink_to(tmp_path / "outside" / "default.jinja")
    with pytest.raises(UserError, match="default.jinja to be inside .*; received a link that leads out of it"):
        checkpoint.load(llama)


@pytest.mark.parametrize("value", [3, None, [3], [{"name": "tools", "template": "a"}], {}, [{"name": "default"}]])
def test_none_that_talks(value: Any, llama: Path) -> None:
    told(llama, chat_template=value, bos_token=3, eos_token={"content": 3})
    assert checkpoint.load(llama).chat_template is None


def test_bounds(llama: Path) -> None:
    told(llama, chat_template="a" * MAX_TEMPLATE, bos_token="b" * (MAX_TOKEN + 1), eos_token="e")
    assert checkpoint.load(llama).chat_template == {"template": "a" * MAX_TEMPLATE, "tokens": {"eos_token": "e"}}
    told(llama, chat_template="a" * (MAX_TEMPLATE + 1))
    found = checkpoint.load(llama)
    assert found.chat_template is None
    assert any("its chat template has 65537 characters, more than 65536" in note for note in found.notes)
    (llama / "chat_template.jinja").write_bytes(b" " * (LIMIT + 1))
    with pytest.raises(UserError, match="at most .* bytes in .*chat_template.jinja; received more"):
        checkpoint.load(llama)


@pytest.mark.parametrize(
    "template, why",
    [
        ("{% for m in messages %}{{ m.content }}", "Unexpected end of template"),
        ("{{ messages | nothing }}", "No filter named 'nothing'"),
    ],
)
def test_a_template_that_is_not_valid(template: str, why: str, llama: Path) -> None:
    note = passed_over(llama, template)
    assert note.startswith("its chat template is not valid jinja2 (") and why in note
    assert note.isprintable()


def passed_over(folder: Path, template: str) -> str:
    """The note on an ignored template."""
    told(folder, chat_template=template)
    found = checkpoint.load(folder)
    assert found.chat_template is None
    [note] = [note for note in found.notes if "chat template" in note]
    return note


def test_a_template_that_takes_long(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling the template evaluates its constants."""
    monkeypatch.setattr(chat, "SECONDS", 1)
    assert "longer than 1 s" in passed_over(llama, "{{ (10 ** (10 ** 10)) | string | length }}")


def test_a_damaged_config(llama: Path) -> None:
    (llama / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match="expected JSON in .*tokenizer_config.json"):
        checkpoint.load(llama)
