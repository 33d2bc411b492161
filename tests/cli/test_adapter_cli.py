"""Adapters in the verbs that read models: `t2r save` writes one, the others open it with its base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli_models import LETTERS, Output, run


@pytest.fixture(scope="module")
def adapter(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapter") / "t2r.adapter"


def test_every_verb_opens_it(folder: Path, adapter: Path, tmp_path: Path, capsys: Output) -> None:
    base = ["--base", folder / "model.pt"]
    out, err = run(capsys, "save", folder / "t2r.pt", adapter, "--as", "adapter", *base)
    assert out.startswith(f"{adapter}: t2r.adapter, ")
    assert err.startswith("tensors: 12 new, 0 changed by matrices of low rank, 0 changed in full; ")
    described = json.loads(run(capsys, "inspect", adapter, *base, "--json")[0])
    assert described["details"]["adapter"] == f"{adapter.stat().st_size:,} bytes beside model.pt"
    run(capsys, "export", adapter, tmp_path / "x.onnx", *base)
    verified = json.loads(run(capsys, "verify", adapter, tmp_path / "x.onnx", *base, "--steps", 3, "--json")[0])
    assert verified["passed"] and verified["same_checkpoint"]
    (tmp_path / "text.txt").write_text(LETTERS * 9)
    arguments = [tmp_path / "text.txt", "--lengths", 8, "--json"]
    whole, opened = (
        run(capsys, "evaluate", *model, *arguments)[0] for model in ([folder / "t2r.pt"], [adapter, *base])
    )
    nats = [json.loads(one)["lengths"][0]["nats"] for one in (whole, opened)]
    assert nats[0] == pytest.approx(nats[1], abs=1e-3) and nats[0] != nats[1]
    run(capsys, "save", adapter, tmp_path / "again.pt", "--as", "t2r", *base)
    _, err = run(capsys, "save", folder / "t2r.pt", adapter, "--as", "adapter", *base, code=2)
    assert "or pass --force" in err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["inspect", "{t2r.pt}", "--base", "{model.pt}"], "expected an .adapter with --base"),
        (["save", "{t2r.pt}", "x.adapter", "--as", "adapter"], "expected --base FILE with --as adapter; received none"),
        (["save", "{t2r.pt}", "x.pt", "--as", "adapter", "--base", "{model.pt}"], "that ends in .adapter"),
        (["save", "{t2r.pt}", "x.pt", "--as", "t2r", "--base", "{model.pt}"], "with --base"),
        (["convert", "{model.pt}", "x.adapter", "--mixer", "linear"], "that does not end in .adapter"),
        (["export", "x.adapter", "x.onnx", "--base", "{t2r.pt}"], "a checkpoint at x.adapter"),
    ],
)
def test_what_is_refused(arguments: list[str], message: str, folder: Path, capsys: Output) -> None:
    filled = [str(folder / one[1:-1]) if one.startswith("{") else one for one in arguments]
    _, err = run(capsys, *filled, code=2)
    assert message in err and err.count("\n") == 1
