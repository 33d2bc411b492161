"""Token counts for slow providers; without a GPU the suite of the CUDA provider is skipped with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.setups import PROVIDER, SETUP


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if PROVIDER == "cuda" and not Path("/dev/nvidiactl").exists():
        for item in items:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def texts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in SETUP.texts.items():
        monkeypatch.setattr(f"t2r_export.proof.checks.{name}", count)
