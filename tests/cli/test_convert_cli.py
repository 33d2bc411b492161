"""`t2r convert`: its notes on the conversion, defaults and sources; results; refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import folders
import small
from cli_models import Output, run
from t2r_export.checkpoints import checkpoint
from t2r_export.cli import main


def test_nothing_is_converted_without_options(folder: Path, tmp_path: Path, capsys: Output) -> None:
    for mixer in ("linear", "window", "hybrid"):
        out, _ = run(capsys, "convert", folder / "model.pt", tmp_path / "n.pt", "--layers", "none", "--mixer", mixer)
        assert "0 of 2 layers" in out
    run(capsys, "convert", folder / "model.pt", tmp_path / "n.pt")
    assert [mixer.feature_size for mixer in small.mixers(checkpoint.load(tmp_path / "n.pt").config)] == [32] * 2


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
    behind = "rotation after the feature map lets export merge the map into the projections"
    pair = "a gate for every two features was more accurate than one for every head"
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
        where = "see 'linear: the defaults' in docs/mixers.md"
        assert err == ("" if said is None else f"note: default options: {said}; {where})\n")
    out, _ = run(capsys, "inspect", tmp_path / "0.pt")
    assert "feature_size=6,positions=after,guard.kind=add,guard.eps=1.0,update_rule=gated,gate=pair" in out
    out, _ = run(capsys, "inspect", tmp_path / "4.pt")
    assert "feature_size=32,guard.kind=add,guard.eps=1e-06,update_rule=gated,gate=data" in out


def test_notes_follow_the_checks(tmp_path: Path, capsys: Output) -> None:
    source = folders.write_llama(tmp_path / "llama", favourite_colour="blue")
    out = tmp_path / "x.pt"
    run(capsys, "convert", source, out, "--mixer", "linear:feature_size=5")
    _, err = run(capsys, "convert", source, out, "--layers", "0,9", code=2)
    assert err.startswith("t2r: expected layers from 0 to ") and err.count("\n") == 1
    _, err = run(capsys, "convert", source, out, "--mixer", "linear:feature_size=3")
    assert f"replacing {out}, an untrained" in err


def spaced(table: str) -> str:
    """The table with one space between columns."""
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
    assert out.endswith("; untrained: train it with t2r finetune\n")
    assert ("; no new parameters; " in out) != learns
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
