"""Commands and programs in README.md and the docs run, and documented options exist."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest
import torch

import t2r_export
from cli.command_line import commands
from cli_models import CONFIG, letter_tokenizer
from t2r_export.checkpoints import checkpoint
from t2r_export.cli import export_main, main
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.stages import parse_plan
from t2r_export.model.transformer import Transformer

ROOT = Path(__file__).parents[1]
PYTHON = (ROOT / "docs/python.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "models").glob("*/README.md"))]
SHORTER = {  # options that shorten the README's defaults for the test
    "finetune": ["--steps", "1,1", "--batch", "2", "--length", "16", "--device", "cpu"],
    "generate": ["--max-tokens", "20"],
    "evaluate": ["--lengths", "16"],
    "bench": ["--measure", "steps=2,rounds=1,starts=0,prompt=4"],
}


def fenced(page: str, language: str = "") -> list[str]:
    """The fenced blocks of a language; "": those without one."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    return [text for name, text in blocks if name == language]


def typed(block: str) -> list[list[str]]:
    """Our commands in a shell block, without # comments."""
    lines = [
        shlex.split(line, comments=True) for line in block.splitlines() if line.startswith(("t2r ", "t2r-export "))
    ]
    return [line for line in lines if line]


def run(words: list[str]) -> int:
    if words[0] == "t2r-export":
        return export_main(words[1:])
    return main([*words[1:], *SHORTER.get(words[1], [])])


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small model and texts, named as in the pages."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    checkpoint.save(Path("SRC"), Transformer(CONFIG.build()), letter_tokenizer(), {"origin": "random weights"})
    for name in ("text.txt", "held_out.txt"):
        Path(name).write_text("once upon a time, there was a recipe.\n<|endoftext|>\n" * 40)
    return tmp_path


def test_pipeline(newcomer: Path) -> None:
    """All commands of the quickstart's block in order, and the program after them."""
    text = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    [block] = [block for block in fenced(text) if "t2r convert" in block]
    lines = typed(block)
    assert {"convert", "finetune", "verify", "quantize", "generate"} <= {words[1] for words in lines}
    for words in lines:
        assert run(words) == 0, words
    assert {"tuned.pt", "out.onnx", "small.onnx"} <= {path.name for path in newcomer.iterdir()}
    [program] = fenced(text, "python")
    exec(program, {})
    assert (newcomer / "story.state").is_file()


@pytest.mark.parametrize("page", sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("runtimes/*/README.md")]), ids=str)
def test_streams_keep_their_spaces(page: Path) -> None:
    """In a tokenizer such as Llama's, decoding a single token loses its leading space."""
    assert "decode([token])" not in page.read_text(encoding="utf-8")


def test_program_of_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "models" / "storyteller", "models/storyteller")
    [program] = fenced((ROOT / "README.md").read_text(encoding="utf-8"), "python")
    exec(program, {})
    assert "Once upon a time, there was a little girl named Lily." in capsys.readouterr().out


def test_quickstart_training_steps() -> None:
    """The token counts of its two trainings, from which its minutes and hours follow."""
    page = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    lines = [words for block in fenced(page) for words in typed(block) if words[1] == "finetune"]
    first, real = [dict(zip(line[4::2], line[5::2], strict=True)) for line in lines]
    tokens = []
    for options in (first, real):
        plan = parse_plan(None, options.get("--steps"))
        config = FinetuneConfig(
            model=Path("m"), output=Path("o.pt"), data=(Path("t"),), plan=plan, length=int(options["--length"])
        )
        tokens.append(config.trained_tokens)
    assert f"trains on {tokens[0]:,} tokens" in page and tokens[0] < 250_000  # a minute and a half at 2,200 tokens/s
    assert f"{tokens[1] / 1e6:.1f} million tokens" in page


def test_python_example(newcomer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its training makes the model better, in each of its stages."""
    untrained = t2r_export.load("SRC")
    rate = {"learning_rates": "0.1", "optimizer": "muon"}
    untrained.finetune("teacher.pt", "text.txt", stages="task", steps=60, length=16, batch=4, **rate)
    Path("teacher.pt").rename("SRC")
    capsys.readouterr()
    program, _ = fenced(PYTHON, "python")
    exec(program, {})
    assert capsys.readouterr().out == "portable 5 states\n13 checks, reference float32\n"
    [_, run] = checkpoint.load("tuned.pt").provenance["finetune"]
    teacher, before, after = (run["evaluation"][name] for name in ("teacher", "student", "finetuned"))
    assert run["kept_steps"] == [40, 40]
    assert after < before - 0.5 and after < teacher + 0.03  # with the rate for 1,024 tokens: 0.05 above the teacher
    assert {"tuned.pt", "out.onnx", "small.onnx"} <= {path.name for path in newcomer.iterdir()}


def test_genai_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/embedding.md").read_text(encoding="utf-8").partition("## onnxruntime-genai")[2]
    [command] = [line for line in typed(re.sub("^    ", "", page, flags=re.MULTILINE)) if "genai" in line]
    [program, *_] = fenced(page, "python")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "models" / "storyteller", "models/storyteller")
    assert run(command) == 0
    capsys.readouterr()
    exec(program, {})
    assert "Once upon a time, there was a little girl named Lily." in capsys.readouterr().out


def test_example_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The program prints the output that the page shows."""
    _, program = fenced(PYTHON, "python")
    [printed] = [block for block in fenced(PYTHON) if "StateSpec(" in block]
    [command] = re.findall(r"^after `(t2r-export .*?)` prints$", PYTHON, flags=re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    shutil.copytree(ROOT / "models" / "storyteller", "models/storyteller")
    assert run(shlex.split(command)) == 0
    capsys.readouterr()
    exec(program, {})
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_documented_commands_exist(page: Path) -> None:
    """Commands and options in blocks and backticks exist, and so do programs of benchmarks/."""
    text = page.read_text(encoding="utf-8")
    wrong = [line for line in written(text) if unknown(line)]
    assert wrong == []
    programs = re.findall(r"python (benchmarks/\w+\.py)", text)
    assert [name for name in programs if not (ROOT / name).is_file()] == []


def written(text: str) -> list[str]:
    """Commands that begin with t2r or t2r-export, on their own line or in backticks."""
    spans = re.findall(r"`((?:t2r|t2r-export) [^`]+)`", text.replace("\n", " "))
    return spans + re.findall(r"^(?: {4})?((?:t2r|t2r-export) [^\n`]+)$", text, flags=re.MULTILINE)


def unknown(line: str) -> list[str]:
    """The unknown verb or options of a command."""
    program, *words = line.partition("#")[0].split()
    verb = "export" if program == "t2r-export" else words[0]
    if verb not in commands():
        return [] if verb.startswith("--") or verb.isupper() else [verb]
    known = {name for p in commands()[verb].params if isinstance(p, click.Option) for name in p.opts}
    return [word for word in words if word.startswith("--") and word.split("=")[0] not in {*known, "--help"}]


@pytest.mark.parametrize(
    "line, found",
    [
        ("t2r bench layouts --threads 3", []),  # a graph named layouts
        ("t2r bench --size huge", ["--size"]),
        ("t2r benchmark", ["benchmark"]),
        ("t2r-export model.pt out.onnx --target npu  # --fast", []),
        ("t2r-export model.pt out.onnx --fast", ["--fast"]),
        ("t2r VERB", []),
    ],
)
def test_unknown_command_is_detected(line: str, found: list[str]) -> None:
    assert unknown(line) == found
    assert written(f"Type\n\n    {line}\n\nor `{line}`.") == [line, line]
