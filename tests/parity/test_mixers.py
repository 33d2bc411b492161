"""Every mixer and feed-forward equals its eager model on the provider, or has a known reason."""

from __future__ import annotations

from pathlib import Path

import pytest

import small
from parity.setups import SETUP, SETUPS, wanted
from parity.test_parity import NAMES, config, fits, saved, verified
from t2r_export.cli.reports import parity_text
from t2r_export.config.uniform import LAYERS as KINDS
from t2r_export.export import export
from t2r_runtime import UserError


def expected(name: str) -> object:
    """The test's argument, marked as a strict failure if the provider cannot do it, so that a fix is noticed."""
    reason = SETUP.cannot.get(name)
    failing = pytest.mark.xfail(reason=reason, raises=(AssertionError, UserError), strict=True)
    return pytest.param(name, marks=[failing] if reason else [])


# norms of less than 16 numbers; delta_wide and gated_delta_wide replace them
NARROW = ("delta", "delta_rotary", "gated_delta")
MIXERS = [name for name in small.MODELS if name not in (*NAMES, *NARROW)]
TESTED = [name for name in MIXERS if fits(name)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [expected(name) for name in TESTED])
def test_mixer_is_model(name: str, tmp_path: Path) -> None:
    loaded = saved(name, tmp_path / "model.pt")
    # most have no sums that float16 would round off, and in a few steps the others lose little
    export(loaded, tmp_path / "model.onnx", wanted(loaded.config, float16_safe=False))
    report = verified(loaded, tmp_path / "model.onnx", SETUP.mixer_steps)
    assert report.passed, parity_text(report)


def test_every_kind_of_mixer_is_in_table() -> None:
    assert {layer.kind for name in (*NAMES, *MIXERS) for layer in config(name).layers} == KINDS.keys()
    for setup in SETUPS.values():
        assert setup.cannot.keys() <= set(MIXERS)
