"""An option that requires another one is refused without it; every other option stands alone."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from cli.command_line import commands
from t2r_export.cli import main
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.needs import NEEDS
from t2r_export.config.options import within
from t2r_export.config.stages import parse_plan
from t2r_runtime.errors import UserError

FREE = {  # options that require no other option; what a model requires is checked where the model is known
    "finetune": """data pairs teacher stages steps learning_rates length eval_tokens scheme optimizer split loss
        every seed device precision resume force teraflops as_json""",
    "export": """batch state_layout past_end target float16_safe inputs_embeds output_hidden source_length
        top_k prefill draft_check context
        how form base adapters download draft_head as_json""",
    "evaluate": "as_json",
    "sample": "tokens sources as_json",
    "save": "form force as_json",
}
LINES = {  # command lines that lack what the options in NEEDS require
    "finetune": ["m.pt", "o.pt", "--data", "t.txt", "--stages", "transfer"],
    "export": ["m.pt", "o.onnx"],
    "evaluate": ["m.pt", "t.tsv"],
    "sample": ["m.pt", "o.tsv", "--sources", "t.txt"],
    "save": ["m.pt", "o", "--as", "marian"],
}
OTHERS = {  # command lines for these options instead
    **dict.fromkeys(["finetune batch", "finetune start_positions"], ["m.pt", "o.pt", "--pairs", "t.tsv"]),
    "evaluate bleu": ["m.pt", "t.txt"],
    "evaluate eval_tokens": ["g.onnx", "t.txt"],
    "sample beam": ["m.pt", "o.npy", "--tokens", "3"],
}
VALUES = {"lora": "rank=3", "split": "test=0.1", "start_positions": "4"}
WITHIN = within(FinetuneConfig)  # options inside others


def options(verb: str) -> dict[str, click.Option]:
    return {str(p.name): p for p in commands()[verb].params if isinstance(p, click.Option)}


@pytest.mark.parametrize("verb", NEEDS)
def test_needs_table_covers_options(verb: str) -> None:
    assert sorted(options(verb)) == sorted([*(name for name in NEEDS[verb] if name not in WITHIN), *FREE[verb].split()])


def value(option: click.Option) -> list[str]:
    """The option's default if it has one: given explicitly, it is refused all the same."""
    if option.is_flag:
        return []
    if isinstance(option.type, click.Choice):
        return [str(option.type.choices[0])]
    default = option.to_info_dict()["default"]
    usual = "0.5" if option.type is click.FLOAT else "5"
    return [VALUES.get(str(option.name)) or (usual if default in (None, (), 0) else str(default))]


@pytest.mark.parametrize(
    "verb, name", [(verb, name) for verb, needs in NEEDS.items() for name in needs if name not in WITHIN]
)
def test_option_without_required_option(
    verb: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    option = options(verb)[name]
    line = OTHERS.get(f"{verb} {name}", LINES[verb])
    assert main([verb, *line, option.opts[0], *value(option)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("t2r: expected ") and err.count("\n") == 1
    missing = "(none; add it|other files; name such files)"
    found = "one; leave it out" if err.startswith("t2r: expected no ") else missing
    assert re.search(f" with {option.opts[0]}; received {found}, or leave {option.opts[0]} out", err), err


@pytest.mark.parametrize(
    "given, stages",
    [
        ({"lora_rank": 4}, "distill"),
        ({"lora": True}, "transfer"),
        ({"hidden": 1.0}, "task"),
        ({"dropout": 0.1}, "align"),
    ],
)
def test_jsonl_matches_python_api(given: dict[str, object], stages: str) -> None:
    config = {"model": Path("m"), "output": Path("o"), "data": (Path("t"),), "plan": parse_plan(stages)}
    name = next(iter(given))
    with pytest.raises(UserError, match=f"with {WITHIN.get(name, f'--{name}')}; received none"):
        FinetuneConfig(**config, **given)  # type: ignore[arg-type]
