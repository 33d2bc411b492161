"""The student of this model in models/: its adapter opens with its base, training helped, its graph is the model."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.cli.reports import parity_text
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_export.verify import verify

ADAPTER = Path(__file__).parents[2] / "models" / "smollm2-135m" / "student.adapter"
STEPS = 40
NEAR = 0.05  # nats above the teacher


def test_student(model: Path, loaded: Checkpoint, tokens: list[int], tmp_path: Path) -> None:
    ids = torch.tensor([tokens[:300]])

    @torch.no_grad()
    def logits(of: Transformer) -> torch.Tensor:
        return of(ids)[0]

    student = checkpoint.load(ADAPTER, base=model)
    untrained = Transformer(student.model.config).eval()
    untrained.load_state_dict(loaded.model.state_dict())  # windows have no parameters of their own
    found = [logits(each) for each in (loaded.model, student.model, untrained)]
    nats = [float(cross_entropy(each[:-1], ids[0, 1:])) for each in found]
    assert nats[1] < nats[0] + NEAR
    assert (found[1] - found[2]).abs().max() > 1  # trained
    export(student, tmp_path / "student.onnx")
    report = verify(student, tmp_path / "student.onnx", steps=STEPS)
    assert report.passed, parity_text(report)
