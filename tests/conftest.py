"""Shared fixtures and hooks: which tests run, allowed skips, NaN-filled uninitialised memory."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Generator

import onnxruntime as ort
import pytest

from selection import data, pytest_addoption, pytest_collection_modifyitems
from t2r_runtime.session import providers

__all__ = ["data", "pytest_addoption", "pytest_collection_modifyitems"]  # hooks and a fixture of selection
NO_GPU = "cannot exist on this machine: a GPU"
STRICT = os.environ.get("T2R_STRICT") == "1"


def pytest_configure() -> None:
    # deterministic mode fills uninitialised tensors with NaN, so that reads before writes are visible
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        import torch
    except ImportError:  # the runtime's tests run without it
        return
    torch.set_deterministic_debug_mode("error")  # as use_deterministic_algorithms, which imports the compiler too


@pytest.fixture
def newest_opset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ONNX Runtime open graphs of an opset that onnx has not released (t2r_export.graph.trial)."""
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip(NO_GPU)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    excused = item.get_closest_marker("gpu") is not None and NO_GPU in str(report.longrepr)
    if report.skipped and not hasattr(report, "wasxfail") and not excused:
        _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _refuse(report)
    return report


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    """With T2R_STRICT=1 a skipped test fails."""
    if STRICT:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"T2R_STRICT=1 allows no skip here: {reason}"


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Cache tokenized texts in a folder of this run."""
    os.environ["T2R_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def pretender(monkeypatch: pytest.MonkeyPatch) -> str:
    """A provider that starts but takes no node, like one whose driver is missing."""
    real = providers.open_session
    known = providers.PROVIDERS
    nowhere = dataclasses.replace(known["cpu"], ort_name="Nowhere", hint="go home")
    monkeypatch.setitem(known, "nowhere", nowhere)
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["Nowhere", providers.CPU])
    monkeypatch.setattr(providers, "open_session", lambda path, _, *rest: real(path, known["cpu"], *rest))
    return "nowhere"
