"""The command line as a person or a program meets it: what it prints where, and how it ends."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import folders
import small
from cli_models import CONFIG, LETTERS, Output, letter_tokenizer, run
from t2r_export.checkpoints import checkpoint
from t2r_export.cli import VERBS, export_main, main
from t2r_export.model.transformer import Transformer
from t2r_export.proof import tolerances
from t2r_runtime import Decoder
from t2r_runtime.cli.providers import split


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A softmax model of random weights, its conversion, and the graph of that."""
    folder = tmp_path_factory.mktemp("cli")
    torch.manual_seed(1)
    checkpoint.save(folder / "model.pt", Transformer(CONFIG.build()), letter_tokenizer(), {"origin": "random weights"})
    assert main(["convert", str(folder / "model.pt"), str(folder / "t2r.pt"), "--mixer", "linear:feature_size=5"]) == 0
    assert export_main([str(folder / "t2r.pt"), str(folder / "t2r.onnx")]) == 0
    return folder


def test_help_lists_the_verbs(capsys: Output) -> None:
    out, err = run(capsys, "--help")
    assert err == ""
    for verb, (_, text) in VERBS.items():
        assert f"  {verb}" in out
        assert text in " ".join(out.split())  # click breaks long lines


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb(verb: str, capsys: Output) -> None:
    out, _ = run(capsys, verb, "--help")
    assert out.startswith(f"Usage: t2r {verb}")


@pytest.mark.parametrize("verb", VERBS)
def test_h_is_help(verb: str, capsys: Output) -> None:
    assert run(capsys, verb, "-h") == run(capsys, verb, "--help")


def test_nothing_is_converted_without_options(folder: Path, tmp_path: Path, capsys: Output) -> None:
    for mixer in ("linear", "window", "hybrid"):
        out, _ = run(capsys, "convert", folder / "model.pt", tmp_path / "n.pt", "--layers", "none", "--mixer", mixer)
        assert "0 of 2 layers" in out
    run(capsys, "convert", folder / "model.pt", tmp_path / "n.pt")
    assert [mixer.feature_size for mixer in small.mixers(checkpoint.load(tmp_path / "n.pt").config)] == [32] * 2


def test_version(capsys: Output) -> None:
    assert run(capsys, "--version") == ("t2r-export 0.1.0, graph contract 1\n", "")
    assert export_main(["--version"]) == 0
    assert capsys.readouterr().out == "t2r-export 0.1.0, graph contract 1\n"


def test_t2r_export_equals_t2r_export_verb(folder: Path, tmp_path: Path, capsys: Output) -> None:
    out, err = run(capsys, "export", folder / "t2r.pt", tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (folder / "t2r.onnx").read_bytes()
    assert "again.onnx: " in out
    assert "2 linear" in out
    assert err == ""


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "Missing command"),
        (["quantise"], "No such command 'quantise'. Did you mean quantize?; see `t2r --help`"),
        (["convert"], "Missing argument 'SOURCE'; see `t2r convert --help`"),
        (["convrt"], "No such command 'convrt'. Did you mean convert?; see `t2r --help`"),
        (["nothing"], "No such command 'nothing'; see `t2r --help`"),
        (["convert", "a", "b", "--mixer", "linaer"], "received 'linaer'; did you mean linear?"),
        (
            ["convert", "a", "b", "--mixer", "linear:feature_size"],
            "expected KIND:NAME=VALUE,NAME=VALUE, each NAME once",
        ),
        (["finetune", "a", "b", "--plan"], "Option '--plan' requires an argument; see `t2r finetune --help`"),
        (["export", "nothing.pt", "out.onnx"], "expected a checkpoint at nothing.pt; received nothing; give"),
        (["generate", "nothing.onnx"], "nothing.onnx, which does not exist; check the path"),
    ],
)
def test_usage_errors(
    arguments: list[str], message: str, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out, err = run(capsys, *arguments, code=2)
    assert out == ""
    assert arguments == [] or err.count("\n") == 1
    assert arguments == [] or (err.startswith("t2r: ") and message in err)
    assert list(tmp_path.iterdir()) == []


def test_convert_describes_itself(folder: Path, tmp_path: Path, capsys: Output) -> None:
    arguments = ["convert", folder / "model.pt", tmp_path / "half.pt", "--layers", "1"]
    out, _ = run(capsys, *arguments, "--mixer", "linear:feature_size=7,guard.kind=add,guard.eps=1e-3", "--json")
    result = json.loads(out)
    assert result["layers"] == ["softmax", "linear"]
    assert result["config"]["layers"][1]["parts"][0]["inside"]["guard"] == {"kind": "add", "eps": 1e-3}
    made = checkpoint.load(tmp_path / "half.pt")
    assert made.config.to_dict() == result["config"]
    assert made.provenance["origin"] == "random weights"
    assert made.provenance["convert"]["source_sha256"] == checkpoint.load(folder / "model.pt").sha256


@pytest.mark.parametrize(
    "verb, rest",
    [
        ("convert", ["out.pt", "--mixer", "linear:update_rule=linear"]),
        ("export", ["out.onnx"]),
        ("inspect", []),
        ("evaluate", ["ids.npy", "--part", "all", "--lengths", "8"]),
    ],
)
def test_import_notes(
    verb: str, rest: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folders.write_llama(tmp_path / "llama", favourite_colour="blue", mood=3, use_cache=True)
    monkeypatch.chdir(tmp_path)
    np.save("ids.npy", np.arange(40) % 5)
    assert main([verb, str(source), *rest, "--json"]) == 0
    done = capsys.readouterr()
    assert done.err == "note: keys of config.json that are not used: favourite_colour, mood\n"
    json.loads(done.out)


def test_convert_notes_chosen_defaults(folder: Path, tmp_path: Path, capsys: Output) -> None:
    rotary = folders.write_llama(tmp_path / "llama")
    gate = "without a gate, linear attention is less accurate and fails on texts longer than those of training"
    behind = "features that rotate after the map can be folded"
    pair = "a gate a pair of rotated features is more accurate than one a head"
    for number, (source, mixer, said) in enumerate(
        [
            (rotary, "linear:feature_size=6", f"update_rule=gated,gate=pair,positions=after ({gate}; {behind}; {pair}"),
            (rotary, "linear:feature_size=6,update_rule=gated,gate=fixed", f"positions=after ({behind}"),
            (rotary, "linear:positions=keep", f"update_rule=gated,gate=data ({gate}"),
            (rotary, "linear:update_rule=linear", None),
            (folder / "model.pt", "linear", f"update_rule=gated,gate=data ({gate}"),
            (folder / "model.pt", "linear:update_rule=linear", None),
            (folder / "model.pt", "window:window=3", None),
            (rotary, "span", None),
        ]
    ):
        layers = "none" if mixer == "span" else "all"
        _, err = run(capsys, "convert", source, tmp_path / f"{number}.pt", "--mixer", mixer, "--layers", layers)
        assert err == ("" if said is None else f"note: default options: {said}; see docs/mixers.md)\n")
    out, _ = run(capsys, "inspect", tmp_path / "0.pt")
    assert "feature_size=6,positions=after,guard.kind=add,guard.eps=1.0,update_rule=gated,gate=pair" in out
    out, _ = run(capsys, "inspect", tmp_path / "4.pt")
    assert "feature_size=32,guard.kind=add,guard.eps=1e-06,update_rule=gated,gate=data" in out


def test_inspect_folder(tmp_path: Path, capsys: Output) -> None:
    source = folders.write_llama(tmp_path / "llama", max_position_embeddings=77)
    out, _ = run(capsys, "inspect", source)
    assert "positions: rotary" in out
    assert "reach: no end; its config.json names 77 positions\n" in out


def test_notes_follow_the_checks(tmp_path: Path, capsys: Output) -> None:
    source = folders.write_llama(tmp_path / "llama", favourite_colour="blue")
    out = tmp_path / "x.pt"
    run(capsys, "convert", source, out, "--mixer", "linear:feature_size=5")
    _, err = run(capsys, "convert", source, out, "--layers", "0,9", code=2)
    assert err.startswith("t2r: expected layers from 0 to ") and err.count("\n") == 1
    _, err = run(capsys, "convert", source, out, "--mixer", "linear:feature_size=3")
    assert f"replacing {out}, an untrained" in err


def spaced(table: str) -> str:
    """With one space between columns."""
    return " ".join(table.split())


def test_convert_to_a_window(folder: Path, tmp_path: Path, capsys: Output) -> None:
    arguments = ["convert", folder / "model.pt", tmp_path / "w.pt", "--mixer", "window:window=5,sinks=2"]
    out, _ = run(capsys, *arguments)
    assert "2 of 2 layers converted to window" in out
    assert out.endswith("; no new parameters\n")
    run(capsys, "export", tmp_path / "w.pt", tmp_path / "w.onnx")
    for file in ("w.pt", "w.onnx"):
        out, _ = run(capsys, "inspect", tmp_path / file)
        assert "memory: constant: all states have a fixed size\n" in out
        assert "0-1 window window=5,sinks=2 dense not folded: window layers have no" in spaced(out)
        assert "sink_v 0-1 float32 B × 3 × 2 × 4 96" in spaced(out)


def test_convert_to_a_gated_hybrid(folder: Path, tmp_path: Path, capsys: Output) -> None:
    mixer = "hybrid:window=3,feature_size=5,sinks=2,update_rule=gated,gate=data"
    run(capsys, "convert", folder / "model.pt", tmp_path / "h.pt", "--mixer", mixer)
    run(capsys, "export", tmp_path / "h.pt", tmp_path / "h.onnx")
    for file in ("h.pt", "h.onnx"):
        out, _ = run(capsys, "inspect", tmp_path / file)
        said = "0-1 hybrid window=3,feature_size=5,guard.kind=add,guard.eps=1e-06,"
        assert said + "update_rule=gated,gate=data,sinks=2,map_scale=0.02 " in spaced(out)
    run(capsys, "verify", tmp_path / "h.pt", tmp_path / "h.onnx", "--steps", 20)


@pytest.mark.parametrize(
    "name, size, more, learns",
    [
        ("elu", 4, ",guard.kind=clamp", False),
        ("rfa", 6, ",sigma=0.5,normalizer=group_norm,redraw=true", True),
        ("favor", 5, ",normalizer=none", False),
        ("dpfp", 16, "", False),
        ("hedgehog", 8, ",normalizer=rms_norm", True),
    ],
)
def test_convert_to_a_feature_map(
    name: str, size: int, more: str, learns: bool, folder: Path, tmp_path: Path, capsys: Output
) -> None:
    mixer = f"linear:feature_map={name},feature_size={size},update_rule=linear{more}"
    out, _ = run(capsys, "convert", folder / "model.pt", tmp_path / "f.pt", "--mixer", mixer)
    assert out.endswith("; train the new parameters with t2r finetune\n" if learns else "; no new parameters\n")
    run(capsys, "export", tmp_path / "f.pt", tmp_path / "f.onnx")
    described = [run(capsys, "inspect", tmp_path / file)[0] for file in ("f.pt", "f.onnx")]
    for out in described:
        assert f" linear feature_size={size}," in spaced(out) and f"feature_map={name}" in spaced(out)
        assert f"S 0-1 float32 B × 3 × {size} × 4" in spaced(out)
        assert (" z 0-1 float32" in spaced(out)) == ("normalizer" not in more)
    assert " dense folded" in spaced(described[1])
    run(capsys, "verify", tmp_path / "f.pt", tmp_path / "f.onnx", "--steps", 20)


@pytest.mark.parametrize(
    "mixer, message",
    [
        ("linear:feature_size=0", "t2r: expected feature_size to be an integer from 1 to "),
        ("window:window=0", "t2r: expected window to be an integer from 1 to "),
        ("window:sinks=2", "t2r: expected window for the mixer window; received none; name window"),
        (
            "lstm:window=2,guard.kind=add",
            "t2r: expected options of lstm (none); received window, guard.kind; leave it out",
        ),
        (
            "linear:feature_map=elu,feature_size=3",
            "t2r: expected feature_size to be the head size, 4, with the feature map elu; received 3; correct ",
        ),
        ("linear:feature_size=3,redraw=true", "t2r: expected redraw only with the feature map rfa or favor; received"),
        ("linear:feature_size=3 --layers 0,9", "t2r: expected layers from 0 to 1; received 0,9; "),
        ("linear:feature_size=3 --layers some", "t2r: expected layers as all, softmax, none, every:N or 0,2,5; "),
        ("linear:feature_size=3,guard.eps=nan", "t2r: expected guard eps to be a finite positive number; "),
        ("linear:feature_size=3,positions=drop", "t2r: expected a model with rotary positions for positions; "),
    ],
)
def test_convert_refuses(mixer: str, message: str, folder: Path, tmp_path: Path, capsys: Output) -> None:
    out, err = run(capsys, "convert", folder / "model.pt", tmp_path / "x.pt", "--mixer", *mixer.split(), code=2)
    assert out == ""
    assert err.startswith(message)
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_export_json(folder: Path, tmp_path: Path, capsys: Output) -> None:
    out, _ = run(capsys, "export", folder / "model.pt", tmp_path / "teacher.onnx", "--batch", 3, "--json")
    result = json.loads(out)
    assert result["files"] == {str(tmp_path / "teacher.onnx"): (tmp_path / "teacher.onnx").stat().st_size}
    assert [fold["folded"] for fold in result["folds"]] == [False, False]


@pytest.mark.parametrize("mixer", ["linear:feature_size=3", "lstm"])
def test_export_for_prompts(
    mixer: str,
    folder: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: Output,
) -> None:
    source = tmp_path_factory.mktemp("converted") / "model.pt"
    run(capsys, "convert", folder / "model.pt", source, "--mixer", mixer)
    out, _ = run(capsys, "export", source, tmp_path / "g.onnx", "--prefill", "--top-k", 2)
    assert "prefill graph: reads many tokens of a prompt per run\n" in out
    assert len(list(tmp_path.iterdir())) == 3
    assert Decoder(tmp_path / "g.onnx").signature.top_k == 2
    out, _ = run(capsys, "quantize", tmp_path / "g.onnx", tmp_path / "q.onnx", "--scheme", "int8")
    assert "no prefill graph: int8 rounds" in out


def test_export_and_generate_with_a_loop(
    folder: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = tmp_path / "g.onnx"
    out, _ = run(capsys, "export", folder / "t2r.pt", graph, "--generate", "--quantize", "w8")
    assert "generation graph: generates a text in one run\n" in out
    assert len(list(tmp_path.iterdir())) == 3
    arguments = ["generate", graph, "--prompt", "one day", "--max-tokens", 9, "--seed", 4]
    runs: list[int] = []
    right = Decoder._generate_in_graph
    monkeypatch.setattr(Decoder, "_generate_in_graph", lambda *given: runs.append(1) or right(*given))
    piped = run(capsys, *arguments)[0]
    assert runs == [1] and len(piped) == 9
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert run(capsys, *arguments)[0] == piped
    assert runs == [1], "token by token, for whoever watches"
    assert json.loads(run(capsys, *arguments, "--json")[0])["text"] == piped
    assert runs == [1, 1]


def test_verify_passes(folder: Path, capsys: Output) -> None:
    arguments = ["verify", folder / "t2r.pt", folder / "t2r.onnx", "--steps", 40]
    out, err = run(capsys, *arguments)
    assert out.startswith("40 steps, cpu  ")
    assert "first greedy mismatch" in out
    assert "FAILED" not in out
    assert err == ""
    result = json.loads(run(capsys, *arguments, "--provider", "cpu", "--json")[0])
    assert (result["passed"], result["steps"], result["same_checkpoint"]) == (True, 40, True)


def test_verify_with_fallback(folder: Path, capsys: Output, pretender: str) -> None:
    arguments = ["verify", folder / "t2r.pt", folder / "t2r.onnx", "--steps", 3, "--provider"]
    _, err = run(capsys, *arguments, pretender, code=2)
    assert err.startswith("t2r: expected every node on nowhere; received ") and err.endswith("or allow fallback\n")
    # nobody has measured a tolerance for it, which is said after its nodes were given away
    _, err = run(capsys, *arguments, f"{pretender}+cpu", code=2)
    assert err.startswith("t2r: expected a provider and quantization with a tolerance (")


def test_verify_reports_a_split(folder: Path, capsys: Output, pretender: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tolerances.TOLERANCES, (pretender, "none"), tolerances.tolerance("cpu", "none"))
    arguments = ["verify", folder / "t2r.pt", folder / "t2r.onnx", "--steps", 3, "--provider", f"{pretender}+cpu"]
    out, err = run(capsys, *arguments)
    nodes = len(onnx.load(folder / "t2r.onnx").graph.node)
    assert out.startswith("3 steps, nowhere ")
    assert err == f"nowhere runs 0 of {nodes} nodes, cpu {nodes}\n"
    assert json.loads(run(capsys, *arguments, "--json")[0])["placement"] == {"cpu": nodes}


def test_verify_fails_with_1(folder: Path, tmp_path: Path, capsys: Output) -> None:
    arguments = ["convert", folder / "model.pt", tmp_path / "other.pt", "--mixer", "linear:feature_size=5", "--seed", 9]
    run(capsys, *arguments)
    arguments = ["verify", tmp_path / "other.pt", folder / "t2r.onnx", "--steps", 5]
    out, err = run(capsys, *arguments, code=1)
    assert "FAILED" in out
    lines = err.splitlines()
    assert lines[0].endswith(f"t2r.onnx was exported from another file than {tmp_path / 'other.pt'}")
    assert lines[1].startswith("t2r: check failed: ")
    assert len(lines) == 2
    assert json.loads(run(capsys, *arguments, "--json", code=1)[0])["passed"] is False


def test_verify_refuses(folder: Path, capsys: Output) -> None:
    _, err = run(capsys, "verify", folder / "model.pt", folder / "t2r.onnx", code=2)
    assert err.startswith("t2r: expected a graph of this model: ")
    _, err = run(capsys, "verify", folder / "t2r.pt", folder / "t2r.onnx", "--provider", "abacus", code=2)
    assert "abacus" in err
    assert err.count("\n") == 1


def test_inspect(folder: Path, capsys: Output) -> None:
    for name in ("model.pt", "t2r.pt", "t2r.onnx"):
        out, err = run(capsys, "inspect", folder / name)
        assert f"{name}: a " in out
        assert err == ""
        result = json.loads(run(capsys, "inspect", folder / name, "--json")[0])
        assert [layer["parts"][0]["inside"]["kind"] for layer in result["layers"]] == [
            "softmax" if name == "model.pt" else "linear"
        ] * 2


class TestGenerate:
    def test_only_text_on_stdout(self, folder: Path, capsys: Output) -> None:
        arguments = ["generate", folder / "t2r.onnx", "--prompt", "one day", "--max-tokens", 9, "--temperature", 0]
        out, err = run(capsys, *arguments)
        assert len(out) == 9
        assert err.startswith("one day\n16 tokens in ")
        result = json.loads(run(capsys, *arguments, "--json")[0])
        assert result["text"] == out
        assert [LETTERS[token] for token in result["tokens"]] == list(out)

    def test_prompt_file(self, folder: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
        arguments = ["generate", folder / "t2r.onnx", "--max-tokens", 9, "--temperature", 0]
        expected = run(capsys, *arguments, "--prompt", "one day")[0]
        (tmp_path / "p.txt").write_text("one day")
        assert run(capsys, *arguments, "--prompt-file", tmp_path / "p.txt")[0] == expected
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one day")))
        assert run(capsys, *arguments, "--prompt-file", "-")[0] == expected
        _, err = run(capsys, *arguments, "--prompt-file", tmp_path / "p.txt", "--ids", "1", code=2)
        assert "expected one of --prompt, --prompt-file and --ids; received several" in err

    @pytest.mark.parametrize("graph", ["t2r.onnx", "loop.onnx"])
    def test_stop_string_excluded(self, graph: str, folder: Path, tmp_path: Path, capsys: Output) -> None:
        path = folder / graph
        if graph == "loop.onnx":
            path = tmp_path / graph
            run(capsys, "export", folder / "t2r.pt", path, "--generate")
        arguments = ["generate", path, "--prompt", "one day", "--max-tokens", 30, "--seed", 1]
        whole = run(capsys, *arguments)[0]
        for stop in (whole[5:7], whole[29], "no such text"):
            out = run(capsys, *arguments, "--stop", "nor this", "--stop", stop)[0]
            assert out == whole.partition(stop)[0]
            result = json.loads(run(capsys, *arguments, "--stop", stop, "--json")[0])
            assert result["text"] == out and len(result["tokens"]) == min(len(out) + len(stop), 30)
        for wrong, message in (
            (["--stop", ""], "expected a text for --stop; received an empty one"),
            (["--stop", "a", "--ids", "1"], "expected a prompt that is text with --stop; received --ids"),
        ):
            given = arguments if "--ids" not in wrong else [*arguments[:2], *arguments[4:]]
            assert message in run(capsys, *given, *wrong, code=2)[1]

    def test_empty_prompt_starts_from_bos(self, folder: Path, capsys: Output) -> None:
        result = json.loads(run(capsys, "generate", folder / "t2r.onnx", "--max-tokens", 3, "--seed", 5, "--json")[0])
        assert result["prompt"] == [CONFIG.bos_token]
        assert len(result["tokens"]) == 3

    def test_seed_and_limits(self, folder: Path, capsys: Output) -> None:
        arguments = ["generate", folder / "t2r.onnx", "--max-tokens", 30, "--threads", 1, "--provider", "cpu"]
        first, again, other = (run(capsys, *arguments, "--seed", seed)[0] for seed in (1, 1, 2))
        assert first == again != other
        greedy = run(capsys, *arguments, "--temperature", 0)[0]
        assert run(capsys, *arguments, "--top-k", 1)[0] == run(capsys, *arguments, "--top-p", 1e-9)[0] == greedy
        assert run(capsys, *arguments, "--min-p", 1)[0] == greedy

    def test_penalties(self, folder: Path, capsys: Output) -> None:
        arguments = ["generate", folder / "t2r.onnx", "--prompt", "it so", "--max-tokens", 12, "--temperature", 0]
        once = run(capsys, *arguments, "--no-repeat-ngram", 1)[0]
        assert len({*once, *"it so"}) == 12 + 5
        assert run(capsys, *arguments, "--repetition-penalty", 100)[0] != run(capsys, *arguments)[0]
        _, err = run(capsys, *arguments, "--repetition-penalty", 0, code=2)
        assert "expected a repetition_penalty from 0.01 to 100 (1 is none); received 0.0; choose another value" in err

    def test_load_state_continues(self, folder: Path, tmp_path: Path, capsys: Output) -> None:
        state, graph = tmp_path / "state.npz", folder / "t2r.onnx"
        tail = ["--temperature", 0, "--max-tokens", 8]
        whole = run(capsys, "generate", graph, "--prompt", "it was so.", *tail)[0]
        assert run(capsys, "generate", graph, "--prompt", "it was", "--max-tokens", 0, "--save-state", state)[0] == ""
        assert run(capsys, "generate", graph, "--load-state", state, "--prompt", " so.", *tail)[0] == whole

    def test_save_state_after_generate(self, folder: Path, tmp_path: Path, capsys: Output) -> None:
        state, graph, greedy = tmp_path / "state.npz", folder / "t2r.onnx", ["--temperature", 0]
        first = run(capsys, "generate", graph, "--prompt", "it", "--max-tokens", 5, *greedy, "--save-state", state)[0]
        tail = ["--max-tokens", 4, *greedy]
        whole = run(capsys, "generate", graph, "--prompt", f"it{first} so", *tail)[0]
        assert run(capsys, "generate", graph, "--load-state", state, "--prompt", " so", *tail)[0] == whole

    def test_load_state_without_prompt(self, folder: Path, tmp_path: Path, capsys: Output) -> None:
        state, graph, greedy = tmp_path / "state.npz", folder / "t2r.onnx", ["--temperature", 0]
        whole = run(capsys, "generate", graph, "--prompt", "it", "--max-tokens", 9, *greedy)[0]
        first = run(capsys, "generate", graph, "--prompt", "it", "--max-tokens", 5, *greedy, "--save-state", state)[0]
        then = ["generate", graph, "--load-state", state, "--max-tokens", 4, *greedy]
        assert first + run(capsys, *then)[0] == whole
        assert first + run(capsys, *then, "--ids", "")[0] != whole  # as numbers
        assert run(capsys, "generate", graph, "--prompt", "it", "--max-tokens", 0, "--save-state", state)[0] == ""
        assert run(capsys, *then[:-4], "--max-tokens", 9, *greedy)[0] == whole

    def test_saved_state_without_a_token_needs_a_prompt(self, folder: Path, tmp_path: Path, capsys: Output) -> None:
        state, graph = tmp_path / "state.npz", folder / "t2r.onnx"
        decoder = Decoder(graph)
        decoder.prefill([1, 2])
        decoder.save_state(state)
        _, err = run(capsys, "generate", graph, "--load-state", state, code=2)
        assert err == (
            "t2r: expected a prompt to continue a saved state with; received an empty one; give one with --prompt\n"
        )

    def test_token_numbers(self, folder: Path, capsys: Output) -> None:
        arguments = ["generate", folder / "t2r.onnx", "--ids", "3,1", "--max-tokens", 4, "--temperature", 0]
        numbers = [int(number) for number in run(capsys, *arguments)[0].split()]
        result = json.loads(run(capsys, *arguments, "--json")[0])
        assert (result["prompt"], result["tokens"], result["text"]) == ([3, 1], numbers, None)
        _, err = run(capsys, "generate", folder / "t2r.onnx", "--ids", "3,x", code=2)
        assert err == "t2r: expected token ids as 1,2,3; received '3,x'; correct --ids\n"

    def test_reports_a_split(self, folder: Path, capsys: Output, pretender: str) -> None:
        arguments = ["generate", folder / "t2r.onnx", "--max-tokens", 4, "--seed", 1, "--provider"]
        _, err = run(capsys, *arguments, pretender, code=2)
        assert err.startswith("t2r: expected every node on nowhere; received ")
        arguments.append(f"{pretender}+cpu")
        _, err = run(capsys, *arguments)
        nodes = len(onnx.load(folder / "t2r.onnx").graph.node)
        assert err.endswith(f" tokens/s\nnowhere runs 0 of {nodes} nodes, cpu {nodes}\n")
        assert json.loads(run(capsys, *arguments, "--json")[0])["placement"] == {"cpu": nodes}

    def test_streams(self, folder: Path) -> None:
        """Text comes while it is written, Ctrl-C ends it with one line, and a closed pipe with none."""
        command = [
            sys.executable,
            "-m",
            "t2r_export",
            "generate",
            str(folder / "t2r.onnx"),
            "--max-tokens",
            "100000000",
        ]
        for send, code, last in ((signal.SIGINT, 130, b"t2r: interrupted\n"), (None, 141, b"")):
            before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is ignored here is ignored there
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            signal.signal(signal.SIGINT, before)
            assert process.stdout
            assert process.stderr
            assert len(process.stdout.read(50)) == 50
            if send is not None:
                process.send_signal(send)
                process.stdout.read()
            process.stdout.close()
            assert process.stderr.read() == last
            process.stderr.close()
            assert process.wait() == code


def test_split() -> None:
    assert split("dnnl", {"cpu": 12, "dnnl": 5}) == "dnnl runs 5 of 17 nodes, cpu 12"


def test_module_runs() -> None:
    done = subprocess.run([sys.executable, "-m", "t2r_export"], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Usage: t2r [OPTIONS]")
