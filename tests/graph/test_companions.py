"""Companions of a step graph: missing, of another model, or opened alone; and an .ort has none."""

from __future__ import annotations

from pathlib import Path

import pytest

import small
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.quantize import quantize
from t2r_runtime import Decoder, Sampling
from t2r_runtime.contract.signature import DRAFT_CHECK, PREFILL, ROLES
from t2r_runtime.errors import UserError

pytestmark = pytest.mark.parametrize("role", [PREFILL, DRAFT_CHECK])


def use(decoder: Decoder, role: str) -> None:
    """Run the companion."""
    if role == PREFILL:
        decoder.prefill([1, 2])
    else:
        decoder.generate([1], 3, Sampling(stop_tokens=()), draft="lookup")


def test_it_is_missing(role: str, tmp_path: Path) -> None:
    _, report = small.graph(tmp_path / "g.onnx", **{role: True})
    name = report.signature.graphs[role]
    (tmp_path / name).unlink()
    with pytest.raises(UserError) as caught:
        Decoder(tmp_path / "g.onnx")
    assert str(caught.value) == (
        f"expected the {ROLES[role]} {name} beside g.onnx; received none; "
        "copy the companions too, or leave its role out of companions"
    )
    Decoder(tmp_path / "g.onnx", companions=()).prefill([1, 2])


def test_it_is_of_another_model(role: str, tmp_path: Path) -> None:
    _, report = small.graph(tmp_path / "g.onnx", **{role: True})
    other = export(small.checkpoint(seed=1), tmp_path / "h.onnx", ExportConfig(**{role: True}))
    (tmp_path / other.signature.graphs[role]).replace(tmp_path / report.signature.graphs[role])
    decoder = Decoder(tmp_path / "g.onnx")
    decoder.step(1)  # needs no companion
    with pytest.raises(UserError) as caught:
        use(decoder, role)
    assert decoder.position == 1
    expected = f"expected {report.signature.graphs[role]} to have the same model as g.onnx"
    assert str(caught.value) == f"{expected}; received another model; export both again"


def test_it_is_opened_by_itself(role: str, tmp_path: Path) -> None:
    _, report = small.graph(tmp_path / "g.onnx", **{role: True})
    with pytest.raises(UserError) as caught:
        Decoder(tmp_path / report.signature.graphs[role])
    received = f"received a {ROLES[role]}; open the step graph that names it"
    assert str(caught.value) == f"expected a step graph; {received}"


def test_no_ort_with_it(role: str, tmp_path: Path) -> None:
    do = f"export without --{role.replace('_', '-')}, or write an .onnx"
    with pytest.raises(UserError) as caught:
        small.graph(tmp_path / "g.ort", **{role: True})
    expected = f"expected an .onnx, that shares its weights with the {ROLES[role]}"
    assert str(caught.value) == f"{expected}; received {tmp_path / 'g.ort'}; {do}"
    small.graph(tmp_path / "g.onnx", **{role: True})
    before = set(tmp_path.iterdir())
    with pytest.raises(UserError, match=f"received .*q.ort; {do}"):
        quantize(tmp_path / "g.onnx", tmp_path / "q.ort", QuantizeConfig(scheme="w8"))
    assert set(tmp_path.iterdir()) == before
