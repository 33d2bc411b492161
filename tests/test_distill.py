"""`t2r distill`, from a small model to its verified graphs; stages that are complete are not repeated."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import texts
from cli_models import Output, run
from t2r_export import distill
from t2r_export.batches.batch import Batch
from t2r_export.batches.windows import WindowBatches
from t2r_export.checkpoints import checkpoint
from t2r_export.cli import main
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.errors import CheckFailed
from t2r_export.quantizers import quality
from t2r_export.training.fit import PROGRAM, fit
from t2r_export.training.plan import StagePlanned
from t2r_export.verify import verify
from t2r_runtime import Decoder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a teacher, a text and a complete run; verification and checks take few steps."""
    place = tmp_path_factory.mktemp("distill")
    texts.write_teacher(place / "teacher.pt")
    texts.write_text(place / "text.txt", 200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distill, "verify", functools.partial(verify, steps=7))
        patch.setattr(quality, "CHAIN", 5)
        patch.setattr(quality, "WINDOWS", 2)
        assert main(arguments(place)) == 0
        yield place


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """The same teacher and text, without the run."""
    for name in ("teacher.pt", "text.txt"):
        shutil.copy(finished / name, tmp_path)
    return tmp_path


@pytest.fixture
def complete(finished: Path, place: Path) -> Path:
    """A copy of the complete run."""
    shutil.copytree(finished / "out", place / "out")
    return place


def arguments(place: Path, *more: str) -> list[str]:
    usual = ["--steps", "2,3", "--length", "16", "--split", "valid=0.2"]
    return ["distill", f"{place / 'teacher.pt'}", f"{place / 'out'}", "--data", f"{place / 'text.txt'}", *usual, *more]


def written(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def test_second_run_repeats_nothing(complete: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, before = complete / "out", written(complete / "out")
    for stage in ("_loaded", "finetune", "export", "verify", "quantize", "student_card"):
        monkeypatch.setattr(distill, stage, None)
    out = json.loads(run(capsys, *arguments(complete, "--json"))[0])
    assert written(folder) == before
    assert out["training"]["tokens"] == 5 * 16 * 16
    assert out["verified"]["passed"] and out["verified"]["steps"] == 7
    assert [stage["stage"] for stage in checkpoint.load(folder / "tuned.pt").provenance["finetune"][0]["stages"]] == [
        "transfer",
        "distill",
    ]
    scheme = out["quantized"]["tried"][-1]["scheme"]
    assert Decoder(folder / out["quantized"]["graph"]).signature.quantization == scheme
    assert Decoder(folder / "model.onnx").signature.quantization == "none"
    card = (folder / "README.md").read_text("utf-8")
    for name, nats in (("teacher", "teacher"), ("student", "after")):
        assert f"| {name} | {out['training'][nats]['nats']:.4f} |" in card
    text, err = run(capsys, *arguments(complete))
    assert f"teacher    {out['training']['teacher']['nats']:.4f}" in text and "6/6 card" in err
    _, err = run(capsys, *arguments(complete, "--mixer", "linear:feature_size=7"), code=2)
    assert "as this recipe makes it; received one made of [mixer] feature_size None; " in err
    assert written(folder) == before


def test_only_incomplete_stages_are_repeated(complete: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a kill: the record names the files of the stage that was running, and they are not there."""
    folder, before = complete / "out", written(complete / "out")
    monkeypatch.setattr(distill, "_loaded", None)
    for stage, file in ((None, "training.json"), ("finetune", "model.onnx"), ("export", "verify.json")):
        if stage is not None:
            monkeypatch.setattr(distill, stage, None)
        (folder / file).unlink()
        run(capsys, *arguments(complete))
        assert (folder / file).read_bytes() == before[file][1]
    monkeypatch.setattr(distill, "verify", None)
    for file in ("quantize.json", "README.md"):
        (folder / file).unlink()
    run(capsys, *arguments(complete))
    after = written(folder)
    assert {name: content for name, (_, content) in after.items()} == {n: content for n, (_, content) in before.items()}
    assert {name for name in before if after[name][0] == before[name][0]} >= {"plan.json", "student.pt", "tuned.pt"}


@pytest.mark.slow
def test_interrupted_training_is_resumed(
    finished: Path, place: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_step = WindowBatches.__call__

    def stopping(self: WindowBatches, step: int) -> Batch:
        if step == 3 and (place / "out/tuned.pt.training").exists():
            os.kill(os.getpid(), signal.SIGINT)
        return of_step(self, step)

    def stopped(*_: object) -> None:
        raise CheckFailed("the next stage")

    with monkeypatch.context() as patch:
        patch.setattr(WindowBatches, "__call__", stopping)
        _, err = run(capsys, *arguments(place), code=130)
    assert "the same t2r distill continues" in err
    assert not (place / "out/tuned.pt").exists()
    monkeypatch.setattr(distill, "export", stopped)
    _, err = run(capsys, *arguments(place), code=1)
    assert "tuned.pt, resumed" in err
    assert (place / "out/tuned.pt").read_bytes() == (finished / "out/tuned.pt").read_bytes()


def test_plan_writes_nothing(place: Path, capsys: Output) -> None:
    before = sorted(place.rglob("*"))
    plan = json.loads(run(capsys, *arguments(place, "--plan", "--json"))[0])
    assert plan["fit"]["steps"] == {"transfer": 2, "distill": 3}
    assert plan["fit"]["tokens"] == 5 * 16 * 16 and plan["fit"]["seconds"] > 0
    student = checkpoint.load(place / "teacher.pt").model
    assert plan["parameters"] - plan["added"] == sum(weight.numel() for weight in student.parameters())
    text = run(capsys, *arguments(place, "--plan"))[0]
    assert "training: transfer 2 steps, distill 3 steps; 1,280 tokens, about " in text
    assert f"state of a text: {plan['state_bytes']:,} bytes, constant\n" in text
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda place: (place / "text.txt").write_text("a b c."),
            "expected a text whose train part has 1024 tokens or",
        ),
        (lambda place: (place / "text.txt").unlink(), "expected a text or a .npy to read; "),
        (lambda place: (place / "teacher.pt").unlink(), "expected a checkpoint at "),
        (lambda place: [(place / "out").mkdir(), (place / "out/mine").touch()], "expected a new or empty folder"),
    ],
    ids=["short", "text", "model", "folder"],
)
def test_unusable_input_is_refused(change: Callable[[Path], object], message: str, place: Path, capsys: Output) -> None:
    change(place)
    before = sorted(place.rglob("*"))
    assert run(capsys, *arguments(place), code=2)[1].splitlines()[-1].startswith(f"t2r: {message}")
    assert sorted(place.rglob("*")) == before


def test_output_in_the_folder_of_the_text_is_refused(place: Path, capsys: Output) -> None:
    words = [f"{place}" if word.endswith("text.txt") else word for word in arguments(place)]
    assert "expected an output outside of input folders; " in run(capsys, *words, code=2)[1]


def needs(stage: str, steps: int, seconds: float, activations: int) -> StagePlanned:
    return StagePlanned(stage, steps, 1000 * steps, 5, {"student": 300, "activations": activations}, 1, seconds)


def test_fit_into_time_and_memory(tmp_path: Path) -> None:
    stages = [needs("transfer", 300, 600.0, 1000), needs("distill", 3000, 13500.0, 16000)]
    config = FinetuneConfig(model=tmp_path / "m.pt", output=tmp_path / "o.pt", data=(tmp_path / "t",))
    whole = fit(config, stages, None, None)
    assert (whole.steps, whole.left_out, whole.accumulate) == ({"transfer": 300, "distill": 3000}, 0, 1)
    assert whole.tokens == 3_300_000 and whole.eval_tokens == 330_000
    assert whole.seconds == pytest.approx(14100 * (1 + 3 / 10 / 4))
    assert whole.memory == PROGRAM + 16300
    assert whole.checkpoint_every == 600 / 4.5 // 1
    half = fit(config, stages, (whole.seconds + 1) / 3600 / 2, PROGRAM + 300 + 4000)
    assert (half.steps, half.left_out) == ({"transfer": 150, "distill": 1500}, 1650)
    assert half.seconds == pytest.approx(whole.seconds / 2, rel=1e-3)
    assert (half.accumulate, half.memory) == (4, PROGRAM + 4300)
    assert fit(config, stages, 1.0, 0).accumulate == config.batch  # the least that there is
