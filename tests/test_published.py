"""Recompute published figures that take a command only seconds.

The pages of other figures, which take hours or an idle machine, name the command and the machine.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from quantized import ROUNDING
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.cli.demo import BEAM, SENTENCES
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import SCHEMES, QuantizeConfig
from t2r_export.export import ExportReport, export
from t2r_export.quantize import quantize
from t2r_runtime import Beam, Tokenizer, Translator

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "models" / "storyteller" / "model.pt"
TRANSLATOR = ROOT / "models" / "translator-de-en" / "model.pt"
QUANTIZATION = (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def storyteller() -> Checkpoint:
    return checkpoint.load(MODEL)


@pytest.fixture(scope="module")
def exported(storyteller: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportReport]:
    path = tmp_path_factory.mktemp("storyteller") / "story.onnx"
    return path, export(storyteller, path)


def megabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.2f} MB"


@pytest.mark.parametrize("name", ["storyteller", "stories3M", "stories6M"])
def test_model_card(name: str, tmp_path: Path) -> None:
    model = ROOT / "models" / name / "model.pt"
    card = (model.parent / "README.md").read_text(encoding="utf-8").replace("\n", " ")
    loaded, path = checkpoint.load(model), tmp_path / "story.onnx"
    report = export(loaded, path)
    weights = sum(p.numel() for p in loaded.model.parameters())
    assert f"| parameters | {weights:,} in model.pt, {report.parameters:,} folded in the graph |" in card
    size = f"{sum(file.stat().st_size for file in report.files) / 1e6:.2f} MB"
    assert f"`model.pt` {megabytes(model)}" in card and f"from which `t2r-export` makes a graph of {size} |" in card
    state = sum(4 * int(np.prod(spec.dims(1))) for spec in report.signature.states)
    assert f"ts state is {state:,} bytes" in card


@pytest.mark.parametrize("scheme", ROUNDING)
def test_sizes_of_files(scheme: str, exported: tuple[Path, ExportReport], tmp_path: Path) -> None:
    text = tmp_path / "ids.npy" if SCHEMES[scheme].calibrated else None
    if text is not None:
        np.save(text, np.arange(2048) % 1000)
    config = QuantizeConfig(scheme=scheme, calibrate=text)
    quantize(exported[0], tmp_path / "small.onnx", config)
    share = (tmp_path / "small.onnx").stat().st_size / exported[0].stat().st_size
    table = QUANTIZATION.partition("The storyteller (1.05 million parameters")[2].partition("\n\nstories260K")[0]
    [row] = re.findall(rf"^\| {scheme} \|.*", table, flags=re.MULTILINE)
    assert row.split("|")[6].strip() == f"{share:.0%}"


# -- the translator


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Path, ExportReport]:
    loaded, path = checkpoint.load(TRANSLATOR), tmp_path_factory.mktemp("translator") / "de-en.onnx"
    return loaded, path, export(loaded, path, ExportConfig())


@pytest.mark.slow
def test_translator_card(translator: tuple[Checkpoint, Path, ExportReport], tmp_path: Path) -> None:
    loaded, path, report = translator
    card = (TRANSLATOR.parent / "README.md").read_text(encoding="utf-8")
    weights = sum(p.numel() for p in loaded.model.parameters())
    assert f"| parameters | {weights:,} in model.pt, {report.parameters:,} folded in the graphs |" in card
    state = sum(spec.bytes() for spec in report.signature.chained)
    token = sum(spec.bytes(source=9) - spec.bytes(source=8) for spec in report.signature.constant)
    said = card.replace("\n", " ")
    assert f"Its state is {state:,} bytes per hypothesis, however long the translation gets;" in said
    assert f"of the source it keeps {token:,} bytes per token" in said
    sizes = {"": path}
    for scheme in ("int8", "w8", "w4"):
        (tmp_path / scheme).mkdir()
        sizes[f"in {scheme} "] = tmp_path / scheme / "q.onnx"
        quantize(path, sizes[f"in {scheme} "], QuantizeConfig(scheme=scheme))
    told = [
        f"{name}{sum(file.stat().st_size for file in graph.parent.iterdir()) / 1e6:.2f} MB"
        for name, graph in sizes.items()
    ]
    files = f"`model.pt` {megabytes(TRANSLATOR)}; `t2r-export` makes three files of {', '.join(told)} |"
    assert files in card
    opened = Translator(path, threads=1)
    source_of, target = Tokenizer.of_source(opened.signature), Tokenizer.of(opened.signature)
    for sentence, (best,) in zip(
        SENTENCES, opened.translate(map(source_of.encode, SENTENCES), Beam(BEAM)), strict=True
    ):
        assert f"    {sentence}\n        {target.decode(best.tokens)}\n" in card
