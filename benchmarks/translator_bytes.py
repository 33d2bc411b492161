"""Bytes of all files of a translator in each precision: the table "Bytes" of docs/translation.md.

    python benchmarks/translator_bytes.py [MODEL.pt]

MODEL is models/translator-de-en/model.pt unless told otherwise. It is exported as it is, and once more with 6 layers
that read, 2 that write, a width of 256 and 4 heads of 64, in random weights, which take as many bytes as trained ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import tempfile
from pathlib import Path

import t2r_export
from t2r_export.cli.output import table
from t2r_export.config.attention import AttentionConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.quantize import QuantizeConfig

MODEL = Path(__file__).parents[1] / "models" / "translator-de-en" / "model.pt"
FORMS = {
    "int8": QuantizeConfig(scheme="int8"),
    "w8": QuantizeConfig(scheme="w8"),
    "w4": QuantizeConfig(scheme="w4"),
    "w4, head bits 4": QuantizeConfig(scheme="w4", head_bits=4),
    "w8, a second table": QuantizeConfig(scheme="w8", embedding_bits=8),
    "w4, a second table": QuantizeConfig(scheme="w4", embedding_bits=8),
    "w4, head bits 4, a second table": QuantizeConfig(scheme="w4", head_bits=4, embedding_bits=8),
}
WIDTH, HEADS, HEAD_SIZE, READING = 256, 4, 64, 6


def widened(config: ModelConfig) -> ModelConfig:
    """The same kinds of layers, wider, and more of them that read."""
    assert config.encoder is not None
    attention = AttentionConfig(heads=HEADS, kv_heads=HEADS, head_size=HEAD_SIZE)
    reading = (config.encoder.layers[0],) * READING
    encoder = dataclasses.replace(config.encoder, layers=reading, attention=attention, ffn_size=4 * WIDTH)
    scale = math.sqrt(WIDTH)
    return dataclasses.replace(
        config, width=WIDTH, attention=attention, encoder=encoder, ffn_size=4 * WIDTH, embedding_scale=scale
    )


def megabytes(model: t2r_export.Model, form: QuantizeConfig) -> float:
    """Of the step graph, the encoder graph and their weights."""
    with tempfile.TemporaryDirectory() as folder:
        model.export(Path(folder) / "model.onnx", form)
        return sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=MODEL)
    trained = t2r_export.load(parser.parse_args().model)
    wide = t2r_export.Model.new(widened(trained.config), trained.checkpoint.tokenizer)
    models = {"as it is": trained, f"{READING} layers that read, width {WIDTH}": wide}
    rows = [[form, *(f"{megabytes(model, how):.2f}" for model in models.values())] for form, how in FORMS.items()]
    counts = (sum(weight.numel() for weight in model.checkpoint.model.parameters()) for model in models.values())
    rows.insert(0, ["parameters, millions", *(f"{count / 1e6:.1f}" for count in counts)])
    print(table(rows, ["MB", *models], markdown=True))


if __name__ == "__main__":
    main()
