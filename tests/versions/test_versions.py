"""Checkpoints, adapters, graphs and saved states of every released version open, and give the logits of that version.

`make.py` wrote each folder with that version.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from t2r_export.checkpoints import checkpoint
from t2r_export.export import export
from t2r_export.version import __version__
from t2r_runtime import Decoder
from versions.make import AFTER, BASE, PROMPT

HERE = Path(__file__).parent
GRAPHS = sorted(path for path in HERE.glob("*/*.onnx") if path.name.count(".") == 1)  # without companions
CHECKPOINTS = sorted([*HERE.glob("*/*.pt"), *HERE.glob("*/*.adapter")])
TOLERANCE = {False: 2e-4, True: 0.02}  # of float32 and quantized graphs, whose kernels differ between processors


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def expected(path: Path) -> dict[str, list[float]]:
    found = json.loads(path.with_name(path.stem.removesuffix("-w8") + ".json").read_text())
    return dict(found[path.stem])


def test_this_version_has_its_files() -> None:
    for made in (GRAPHS, [path for path in CHECKPOINTS if path.suffix == ".adapter"]):
        assert {path.parent.name for path in made} >= {__version__.partition(".dev")[0]}


@pytest.mark.parametrize("path", GRAPHS, ids=name)
def test_graphs_and_states_open(path: Path) -> None:
    whole, resumed, wanted = Decoder(path), Decoder(path), expected(path)
    tolerance = TOLERANCE["-w8" in path.stem]
    np.testing.assert_allclose(whole.prefill(PROMPT), wanted["prompt"], atol=tolerance)
    token = resumed.load_state(path.with_suffix(".state"))
    assert token is not None
    after = [resumed.step([each]) for each in (token, *AFTER)]
    np.testing.assert_allclose(after, wanted["after"], atol=tolerance)


@pytest.mark.parametrize("path", CHECKPOINTS, ids=name)
def test_checkpoints_open(path: Path, tmp_path: Path) -> None:
    graph = tmp_path / path.with_suffix(".onnx").name
    export(checkpoint.load(path, base=path.with_name(BASE) if path.suffix == ".adapter" else None), graph)
    np.testing.assert_allclose(Decoder(graph).prefill(PROMPT), expected(path)["prompt"], atol=TOLERANCE[False])
