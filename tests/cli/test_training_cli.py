"""`t2r finetune` from the command line, on small models."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from cli_models import CONFIG, Output, letter_tokenizer, run
from t2r_export.checkpoints import checkpoint
from t2r_export.model.transformer import Transformer

SMALL = ["--steps", "2,3", "--length", 16, "--batch", 2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    torch.manual_seed(1)
    checkpoint.save(folder / "model.pt", Transformer(CONFIG.build()), letter_tokenizer(), {})
    (folder / "text.txt").write_text("the cat sat on the mat. the dog sat on the cat.\n<|endoftext|>\n" * 20)
    return folder


@pytest.fixture
def converted(folder: Path, capsys: Output) -> Path:
    run(capsys, "convert", folder / "model.pt", folder / "t2r.pt", "--mixer", "linear:feature_size=16")
    return folder / "t2r.pt"


def test_finetune(converted: Path, folder: Path, tmp_path: Path, capsys: Output) -> None:
    arguments = ["finetune", converted, tmp_path / "tuned.pt", "--data", folder / "text.txt", *SMALL]
    out, err = run(capsys, *arguments, "--lr", "1e-2,1e-3", "--device", "cpu", "--lora", "rank=2")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["test", "teacher", "student", "student"]
    assert "tokens in" in lines[4]
    assert "transfer" in err
    assert checkpoint.load(tmp_path / "tuned.pt").provenance["finetune"][0]["lora_rank"] == 2
    again = run(capsys, *[tmp_path / "again.pt" if a == tmp_path / "tuned.pt" else a for a in arguments], "--json")[0]
    result = json.loads(again)
    assert result["teacher"]["perplexity"] > 1
    assert result["student"]["nats"] > 0
    assert result["tokens"] == 5 * 16 * 2


@pytest.mark.parametrize(
    "options, message",
    [
        (
            ["--stages", "dream"],
            "t2r: expected stage to be one of transfer, align, distill, round, task; received 'dream'; ",
        ),
        (
            ["--steps", "1,2,3"],
            "t2r: expected 2 steps, one for each of transfer, distill, or one for all; ",
        ),
        (["--device", "abacus"], "t2r: expected --device to be one of auto, cpu, cuda; received 'abacus'; "),
        (["--batch", "0"], "t2r: expected batch to be an integer from 1 to 1048576; received 0; "),
        (["--teacher", "nobody.pt"], "t2r: expected a checkpoint at nobody.pt; received nothing; "),
    ],
)
def test_finetune_refuses(
    options: list[str], message: str, converted: Path, folder: Path, tmp_path: Path, capsys: Output
) -> None:
    arguments = ["finetune", converted, tmp_path / "tuned.pt", "--data", folder / "text.txt", *options]
    out, err = run(capsys, *arguments, code=2)
    assert out == ""
    assert err.startswith(message)
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_finetune_on_sampled_tokens(converted: Path, folder: Path, tmp_path: Path, capsys: Output) -> None:
    teacher, ids = folder / "model.pt", tmp_path / "ids.npy"
    out, err = run(capsys, "sample", teacher, ids, "--tokens", 700, "--length", 40, "--seed", 1)
    assert out.startswith(f"{ids}: 700 tokens, 2.93 kB")
    assert err == ""
    run(capsys, "finetune", converted, tmp_path / "tuned.pt", "--data", ids, *SMALL)
    result = json.loads(run(capsys, "evaluate", tmp_path / "tuned.pt", ids, "--lengths", "8,16", "--json")[0])
    assert [(row["length"], row["tokens"]) for row in result["lengths"]] == [(8, 32), (16, 32)]
    parts = {}
    for part in ("train", "valid", "test", "all"):
        shares = ("--part", part, *(() if part == "all" else ("--split", "valid=0.2,test=0.3")))
        result = json.loads(run(capsys, "evaluate", teacher, ids, "--lengths", 4, *shares, "--json")[0])
        assert result["part"] == part
        parts[part] = result["lengths"][0]["tokens"]
    assert parts == {"train": 348, "valid": 136, "test": 208, "all": 696}  # of 350, 140, 210 and 700 tokens
    out, _ = run(capsys, "evaluate", teacher, ids, "--part", "all", "--windows", 3, "--lengths", "10")
    assert out.splitlines()[0].split()[:3] == ["length", "nats/token", "perplexity"]
    words = out.splitlines()[1].split()
    assert (words[0], words[2], words[-1]) == ("10", "±", "30")
    paired = ["evaluate", tmp_path / "tuned.pt", ids, "--lengths", "8", "--teacher", teacher]
    nats = [
        json.loads(run(capsys, "evaluate", each, *paired[2:5], "--json")[0])["lengths"][0]
        for each in (paired[1], teacher)
    ]
    beside = json.loads(run(capsys, *paired, "--json")[0])["lengths"][0]
    assert beside["above"] == pytest.approx(nats[0]["nats"] - nats[1]["nats"], abs=1e-9) != 0
    assert 0 < beside["above_standard_error"] < sum(each["standard_error"] for each in nats)
    assert f"{beside['above']:+.4f} ± " in run(capsys, *paired)[0].splitlines()[1]
    _, err = run(capsys, "sample", teacher, tmp_path / "ids.txt", "--tokens", 9, code=2)
    assert err.startswith("t2r: expected a name for a file of token ids that ends in .npy; ")
    _, err = run(capsys, "evaluate", teacher, ids, "--lengths", "8;16", code=2)
    assert err.startswith("t2r: expected lengths as integers from 4, separated by commas; received '8;16'; ")


def test_choose(folder: Path, tmp_path: Path, capsys: Output) -> None:
    auto = ["choose", folder / "model.pt", tmp_path / "auto.pt", "--data", folder / "text.txt"]
    options = [
        "--mixer",
        "linear:feature_size=3",
        "--mixer",
        "window:window=5,sinks=1",
        "--trial-steps",
        2,
        "--state-length",
        90,
    ]
    text = folder / "long.txt"
    text.write_text("the cat sat on the mat. the dog sat on the cat. " * 200)
    auto[-1] = text
    # the budget allows a window in one layer at most: the others train
    result = json.loads(run(capsys, *auto, "--budget", "1k", *options, "--json")[0])
    made = checkpoint.load(tmp_path / "auto.pt")
    assert made.config.to_dict() == result["config"]
    assert result["state_bytes"] == sum(s.bytes(1, 90) for s in made.model.state_spec()) <= 1000
    chosen = [result["options"][i]["mixer"] for i in result["chosen"]]
    assert chosen == [layer["parts"][0]["inside"] for layer in result["config"]["layers"]]
    assert made.provenance["convert"]["auto"]["budget"] == 1000
    assert len(result["options"]) == 2 * 3
    out, err = run(capsys, *auto, "--budget", "1k", *options)
    assert out.splitlines()[0].split() == ["layer", "softmax", *(str(option) for option in options[1:4:2]), "chosen"]
    assert "nats/token before finetuning" in out
    assert err.count("transfer loss") == 2
    run(capsys, "finetune", tmp_path / "auto.pt", tmp_path / "tuned.pt", "--data", text, *SMALL)  # like any conversion


@pytest.mark.parametrize(
    "options, message",
    [
        ([], "t2r: expected --budget; received none; see `t2r choose --help`"),
        (["--budget", "1kk", "--data", "x"], "t2r: expected a budget in bytes: 4096, 64k or 1.5M; received"),
        (["--budget", "nan", "--data", "x"], "t2r: expected a budget in bytes: 4096, 64k or 1.5M; received"),
        (["--budget", "9", "--data", "x", "--mixer", "linear:8"], "t2r: expected KIND:NAME=VALUE,NAME=VALUE, each"),
        (["--budget", "9", "--data", "x", "--mixer", "dream"], "t2r: expected a mixer of softmax, linear, window"),
        (["--budget", "9", "--data", "TEXT"], "t2r: expected a budget of at least "),
    ],
)
def test_choose_refuses(options: list[str], message: str, folder: Path, tmp_path: Path, capsys: Output) -> None:
    text = tmp_path / "text"
    text.write_text("the cat sat on the mat. " * 300)
    options = [str(text) if option == "TEXT" else option for option in options]
    if str(text) in options:
        options += ["--trial-steps", "1", "--mixer", "window:window=3"]
    _, err = run(capsys, "choose", folder / "model.pt", tmp_path / "x.pt", *options, code=2)
    assert err.splitlines()[-1].startswith(message)
    assert not (tmp_path / "x.pt").exists()


def test_finetune_needs_text(converted: Path, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "empty.txt").touch()
    _, err = run(capsys, "finetune", converted, tmp_path / "x.pt", "--data", tmp_path / "empty.txt", code=2)
    assert err.startswith("t2r: expected text in ")
    _, err = run(capsys, "finetune", converted, tmp_path / "x.pt", code=2)
    assert "expected --data, or --pairs for a translator; received neither" in err


def test_default_length_limited_by_context(folder: Path, tmp_path: Path, capsys: Output) -> None:
    short = dataclasses.replace(CONFIG, position="learned", max_positions=32)
    checkpoint.save(tmp_path / "short.pt", Transformer(short.build()), letter_tokenizer(), {})
    text, ids = folder / "text.txt", tmp_path / "ids.npy"
    line = "using windows of 32 tokens, the model's context\n"
    assert run(capsys, "sample", tmp_path / "short.pt", ids, "--tokens", 700)[1] == line
    out, err = run(capsys, "evaluate", tmp_path / "short.pt", text, "--json")
    assert err == line and [row["length"] for row in json.loads(out)["lengths"]] == [32]
    run(capsys, "convert", tmp_path / "short.pt", tmp_path / "t2r.pt", "--mixer", "linear:feature_size=4")
    tuned = ["finetune", tmp_path / "t2r.pt", tmp_path / "tuned.pt", "--data", text, "--steps", 1, "--batch", 2]
    _, err = run(capsys, *tuned)
    assert err.startswith("windows of 32 tokens, the model's context\n")
    (done,) = checkpoint.load(tmp_path / "tuned.pt").provenance["finetune"]
    assert done["length"] == 32 and [stage["steps"] for stage in done["stages"]] == [1, 1]
    _, err = run(capsys, *tuned, "--force", "--length", 256, code=2)
    assert "expected a length of at most 32" in err


def test_positions_wrap(folder: Path, tmp_path: Path, capsys: Output) -> None:
    short = dataclasses.replace(CONFIG, position="learned", max_positions=16)
    checkpoint.save(tmp_path / "short.pt", Transformer(short.build()), letter_tokenizer(), {})
    text, ids, model = folder / "text.txt", tmp_path / "ids.npy", tmp_path / "short.pt"
    long = ["sample", model, ids, "--tokens", 90, "--length", 40]
    assert "expected a length from 1 to 16; received 40" in run(capsys, *long, code=2)[1]
    found = {}
    for past_end in ("wrap:16", "wrap:5", "clamp"):
        measured = ["evaluate", model, text, "--lengths", "16,40", "--part", "all", "--past-end", past_end, "--json"]
        found[past_end] = [row["nats"] for row in json.loads(run(capsys, *measured)[0])["lengths"]]
    plain = json.loads(run(capsys, "evaluate", model, text, "--lengths", 16, "--part", "all", "--json")[0])
    assert found["wrap:16"][0] == found["clamp"][0] == plain["lengths"][0]["nats"] != found["wrap:5"][0]
    assert len({nats[1] for nats in found.values()}) == 3
    _, err = run(capsys, "evaluate", model, text, "--past-end", "wrap:17", code=2)
    assert "expected past_end wrap:N with N of at most 16, where this model's positions end; received wrap:17" in err
    _, err = run(capsys, "export", model, tmp_path / "g.onnx", "--past-end", "round", code=2)
    assert "expected past_end of refuse, clamp or wrap:N, N of at least 1; received 'round'" in err
