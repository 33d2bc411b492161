"""The length test before a page is packed: a model that fails past its training length, and one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import small
from t2r_export.cli import main
from t2r_export.config.export import ExportConfig
from t2r_export.export import export
from t2r_export.providers import lengths
from t2r_export.providers.lengths import check_lengths, decay
from t2r_export.providers.pack import pack
from t2r_runtime.errors import UserError


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("<title>a page</title>")
    return tmp_path / "page"


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    """A graph whose positions are noise in the last half of them."""
    made = small.checkpoint("learned")
    (table,) = [
        weight for name, weight in made.model.named_parameters() if weight.shape == (small.POSITIONS, small.WIDTH)
    ]
    with torch.no_grad():
        table[small.POSITIONS // 2 :] *= 100
    export(made, tmp_path / "lost.onnx", ExportConfig())
    return tmp_path / "lost.onnx"


def test_a_sound_model_passes(tmp_path: Path) -> None:
    small.graph(tmp_path / "sound.onnx", "learned")
    found = decay(tmp_path / "sound.onnx")
    assert found.tokens == small.POSITIONS
    assert 0 < found.near
    assert found.nats < lengths.MOST
    check_lengths(tmp_path / "sound.onnx")


def test_a_lost_model_gets_no_page(lost: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert decay(lost).nats > lengths.MOST
    with pytest.raises(UserError, match=r"loses at most 0\.5 nats/token within 40 tokens; received one that loses \d"):
        pack(lost, tmp_path / "web", page)
    assert not (tmp_path / "web").exists()
    save = ["save", str(lost), str(tmp_path / "web"), "--as", f"web:page={page}"]
    assert main(save) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*save, "--force"]) == 0
    assert (tmp_path / "web" / "index.html").exists()


def test_no_number_is_no_pass(lost: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "decay", lambda graph: lengths.Decay(1.0, float("nan"), 40))
    with pytest.raises(UserError, match="received one that loses nan"):
        check_lengths(lost)


def test_a_graph_without_a_page_is_not_measured(lost: Path, tmp_path: Path) -> None:
    assert pack(lost, tmp_path / "web").graph == "lost.onnx"


def test_a_translator_is_not_measured(page: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "translator.onnx", "translator_merged")
    assert pack(tmp_path / "translator.onnx", tmp_path / "web", page).graph == "translator.onnx"
