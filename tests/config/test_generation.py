"""Generation options in a model's config: checked, kept by every stage, and absent if unset."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import small
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.generation import GenerationOptions
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.convert import convert
from t2r_export.describe import describe
from t2r_export.export import export
from t2r_export.fold import fold
from t2r_export.model.transformer import Transformer
from t2r_export.quantize import export_quantized, quantize
from t2r_runtime import UserError
from t2r_runtime.contract.options import DECODER, TRANSLATOR

SAID = GenerationOptions(temperature=0.5, top_k=7, no_repeat_ngram=3)
SEARCH = GenerationOptions(width=2, early_stopping="never", forced_end=False)


def of(config: UniformConfig, generation: GenerationOptions | None) -> UniformConfig:
    return dataclasses.replace(config, generation=generation)


@pytest.mark.parametrize("name", ["decoder", "translator"])
def test_every_stage_keeps_them(name: str, tmp_path: Path) -> None:
    translates = name == "translator"
    base, said = (small.TRANSLATORS["softmax"], SEARCH) if translates else (small.CONFIGS["softmax"], SAID)
    model = Transformer(of(base, said).build()).eval()
    checkpoint.save(tmp_path / "m.pt", model, None, {})
    loaded = checkpoint.load(tmp_path / "m.pt")
    assert loaded.config.generation == said and loaded.config == model.config
    linear = LinearConfig(8, guard=small.CLAMP)
    student = convert(loaded.model, linear, cross=linear if translates else None)
    folded, _ = fold(student)
    assert student.config.generation == folded.config.generation == said
    made = dataclasses.replace(loaded, model=student, config=student.config)
    float32 = export(made, tmp_path / "g.onnx").signature
    assert float32.generation == said.to_dict()
    export_quantized(made, tmp_path / "w8.onnx", ExportConfig(), QuantizeConfig(scheme="w8"))
    quantize(tmp_path / "g.onnx", tmp_path / "fp16.onnx", QuantizeConfig(scheme="fp16"))
    for path in (tmp_path / "w8.onnx", tmp_path / "fp16.onnx"):
        assert describe(path).details["generation"] == said.to_dict()


@pytest.mark.parametrize(
    ("options", "translates"),
    [({"width": 2}, False), ({"temperature": 1.0}, True), ({"top_p": 0.0}, False), ({"early_stopping": 1}, True)],
)
def test_impossible_options(options: dict[str, Any], translates: bool) -> None:
    base = small.TRANSLATORS["softmax"] if translates else small.GPT2
    with pytest.raises(UserError, match="generation options within their ranges"):
        of(base, GenerationOptions(**options))
    with pytest.raises(UserError, match="generation to have the keys"):
        ModelConfig.from_dict({**base.build().to_dict(), "generation": {"seed": 1}})


def test_the_fields_are_the_contracts() -> None:
    assert {field.name for field in dataclasses.fields(GenerationOptions)} == {*DECODER, *TRANSLATOR}
