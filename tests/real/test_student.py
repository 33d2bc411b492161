"""The student of this model in models/: its adapter opens with its base, its sums help, its graph is the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.mixers import WindowConfig
from t2r_export.convert import convert
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_runtime import Decoder

ADAPTER = Path(__file__).parents[2] / "models" / "smollm2-135m" / "student.adapter"
WINDOW = WindowConfig(64, 4)
STEPS = 100


def test_student(model: Path, loaded: Checkpoint, tokens: list[int], tmp_path: Path) -> None:
    ids = torch.tensor([tokens])

    @torch.no_grad()
    def logits(of: Transformer) -> torch.Tensor:
        return of(ids)[0]

    student = checkpoint.load(ADAPTER, base=model)
    found = [logits(each) for each in (loaded.model, student.model, convert(loaded.model, WINDOW))]
    nats = [float(cross_entropy(each[:-1], ids[0, 1:])) for each in found]
    assert nats == sorted(nats)  # the teacher, the student, its window alone
    export(student, tmp_path / "student.onnx")
    decoder = Decoder(tmp_path / "student.onnx")
    steps = np.concatenate([decoder.step([token]) for token in tokens[:STEPS]])
    np.testing.assert_allclose(steps, found[1][:STEPS].numpy(), rtol=0, atol=1e-3)  # 9.1e-5 on an AMD EPYC
