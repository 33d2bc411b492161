"""Translator engines and their files, from a recipe's teacher and student.

Candidates are written as in comparison.engines: `t2r:w4`, `t2r:float32:model=teacher`, `ctranslate2:int8`. t2r graphs
are the student's unless `model=teacher`, and run on `cpu` unless `provider=NAME`; other engines do not support
recurrent models and run the softmax teacher.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from comparison import timing
from comparison.data import data_folder
from comparison.engines import Candidate, Engine, Engines, Files, require_parity, whole
from t2r_export.batches.pair_batches import Tokenizers
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.hub import save_translator
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.config.recipe import read_recipe
from t2r_export.data.pairs import read_archived, split_groups
from t2r_export.export import export
from t2r_export.paths import existing_model
from t2r_export.python import ARGUMENTS
from t2r_export.quantize import export_quantized
from t2r_runtime.errors import UserError

MODELS = ("student", "teacher")


@dataclass(frozen=True)
class Models:
    """A softmax translator and its recurrent student."""

    teacher: Checkpoint
    student: Checkpoint
    positions: int  # minimum size of sinusoidal tables

    @classmethod
    def load(cls, teacher: Path, student: Path, positions: int) -> Models:
        """Load both files. Raises UserError unless they are translators with the same tokenizer."""
        softmax, linear = (checkpoint.load(existing_model(path)) for path in (teacher, student))
        translators = softmax.config.encoder is not None and linear.config.encoder is not None
        if not translators or softmax.tokenizer != linear.tokenizer:
            raise UserError("two translators with one tokenizer", f"{teacher} and {student}", "correct the plan")
        return cls(softmax, linear, positions)


def test_sources(recipe: Path, loaded: Checkpoint) -> list[list[int]]:
    """Token ids of the sources in the test part of a recipe's pairs.

    Raises:
        UserError: a recipe without pairs, or missing files.
    """
    pairs = read_recipe(recipe).pairs
    if pairs is None:
        raise UserError(f"a recipe of pairs in {recipe}", "one of a text", "correct the plan")
    found = read_archived(data_folder() / pairs.file, pairs.member, (pairs.source, pairs.target))
    parts = split_groups(found, pairs.valid_groups, pairs.test_groups)
    return Tokenizers(loaded.tokenizer, loaded.source_tokenizer).sources([source for source, _ in parts.test])


def make(candidate: Candidate, models: Models, folder: Path) -> Files:
    """Write a candidate's files into the empty `folder`.

    Raises:
        CheckFailed: a t2r graph fails parity, or a converter fails.
        UserError: an invalid option, or an unsupported teacher.
    """
    return ENGINES[candidate.engine].make(candidate, models, folder)


def of_teacher(candidate: Candidate) -> bool:
    """Whether the candidate runs the softmax model."""
    return candidate.engine != "t2r" or candidate.options.get("model") == "teacher"


def _make_t2r(candidate: Candidate, models: Models, folder: Path) -> Files:
    if (model := candidate.options.get("model", "student")) not in MODELS:
        raise UserError(f"model of {', '.join(MODELS)}", repr(model), f"correct {candidate.name}")
    loaded, path = models.teacher if of_teacher(candidate) else models.student, folder / "graph.onnx"
    if candidate.form == "float32":
        files = export(loaded, path).files
    else:
        block, head_bits = (whole(candidate, name, 0) or None for name in ("block", "head_bits"))
        bits = QuantizeConfig(scheme=candidate.form, block_size=block, head_bits=head_bits)
        files = export_quantized(loaded, path, ExportConfig(), bits)[1].files
    require_parity(loaded, path, provider=candidate.options.get("provider", "cpu"))
    return Files(path, sum(file.stat().st_size for file in files), options=dict(candidate.options))


def _make_transformers(candidate: Candidate, models: Models, folder: Path) -> Files:
    save_translator(models.teacher, folder, "pegasus")
    config = folder / "config.json"
    options = json.loads(config.read_text(encoding="utf-8"))
    options["max_position_embeddings"] = max(options["max_position_embeddings"], models.positions)
    config.write_text(json.dumps(options), encoding="utf-8")
    return Files(folder, _bytes(folder))


def _make_ctranslate2(candidate: Candidate, models: Models, folder: Path) -> Files:
    source, made = folder / "source", folder / "model"
    _make_transformers(candidate, models, source)
    program = [*ARGUMENTS, "-m", "ctranslate2.converters.transformers", "--model", str(source)]
    timing.run([*program, "--output_dir", str(made), "--quantization", candidate.form])
    return Files(made, _bytes(made), options={"compute_type": candidate.form})


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


ENGINES: Engines[Models] = {
    "t2r": Engine(("float32", "int8", "w8", "w4"), ("model", "block", "head_bits", "provider"), (), _make_t2r),
    "transformers": Engine(("float32",), (), ("transformers",), _make_transformers),
    "ctranslate2": Engine(("float32", "int8"), (), ("ctranslate2", "transformers"), _make_ctranslate2),
}
