"""Builds that the tests share, and a fixture that runs their programs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest
from cpp_build import CHECKED, SANITIZERS, STRICT, Run, build
from t2r_library import Library

from selection import data, pytest_collection_modifyitems

__all__ = ["data", "pytest_collection_modifyitems"]  # a fixture and a hook of selection


# a finished build that counts lines and branches, in place of the following two: .ci/covered.py
COUNTED = os.environ.get("T2R_COUNTED")


@pytest.fixture(scope="session")
def release() -> Path:
    return Path(COUNTED) if COUNTED else build("release", "-DCMAKE_INSTALL_LIBDIR=lib")


@pytest.fixture(scope="session")
def checked() -> Path:
    """A build with AddressSanitizer and UndefinedBehaviorSanitizer."""
    targets = ["t2r", "t2r_conformance", "api_calls", "misuse_c", "misuse_cpp", "header", "torture"]
    return Path(COUNTED) if COUNTED else build("address", "-DT2R_SANITIZE=address", *CHECKED, targets=targets)


@pytest.fixture(scope="session")
def raced() -> Path:
    """A build with ThreadSanitizer."""
    return build("thread", "-DT2R_SANITIZE=thread", *CHECKED, targets=["threads", "cancels", "handles"])


@pytest.fixture(scope="session")
def run() -> Run:
    """Run a program and return its exit code and output."""

    def runs(
        *command: object, status: int | None = 0, text: str | None = None, timeout: int = 300
    ) -> subprocess.CompletedProcess[str]:
        environment, words = {**os.environ, **SANITIZERS}, [str(part) for part in command]
        done = subprocess.run(words, capture_output=True, text=True, input=text, timeout=timeout, env=environment)
        assert status is None or done.returncode == status, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
        return done

    return runs


@pytest.fixture(scope="session")
def library(release: Path) -> Library:
    """libt2r, or the sanitized one that the environment names."""
    return Library(Path(os.environ.get("T2R_LIBRARY") or release / "libt2r.so"))


@pytest.fixture(scope="session")
def plugin() -> str:
    """The library's path."""
    if importlib.util.find_spec("onnxruntime_ep_t2r") is None:
        (pytest.fail if STRICT else pytest.skip)("onnxruntime_ep_t2r is not installed: pip install ./runtimes/provider")
    import onnxruntime_ep_t2r

    return onnxruntime_ep_t2r.get_library_path()


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of vectors of 5 with a growing cache, with and without a prefill graph; one of tokens in both forms."""
    import dataclasses

    from t2r_export.checkpoints import checkpoint
    from t2r_export.config.attention import HeadsConfig
    from t2r_export.config.export import ExportConfig
    from t2r_export.config.mixers import LinearConfig, SoftmaxConfig
    from t2r_export.config.uniform import UniformConfig
    from t2r_export.export import export
    from t2r_export.model.initialize import initialize

    folder = tmp_path_factory.mktemp("vectors")
    heads = HeadsConfig(heads=2, kv_heads=1, head_size=4)
    config = UniformConfig(
        vocab_size=7,
        width=8,
        layers=(LinearConfig(3), SoftmaxConfig()),
        attention=heads,
        ffn_size=6,
        position="rotary",
        tied_head=False,
    )
    for name, size in (("ear", 5), ("words", None)):
        made = dataclasses.replace(config, input_size=size)
        checkpoint.save(folder / f"{name}.pt", initialize(made.build(), seed=2), None, {})
    ear, words = (checkpoint.load(folder / f"{name}.pt") for name in ("ear", "words"))
    export(ear, folder / "steps.onnx")
    export(ear, folder / "ear.onnx", ExportConfig(prefill=True))
    export(words, folder / "embeds.onnx", ExportConfig(inputs_embeds=True, prefill=True))
    export(words, folder / "words.onnx", ExportConfig(prefill=True))
    return folder


@pytest.fixture(scope="session")
def in_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of caches and windows, in float32 and 8 bits, of which a hybrid layer reads the oldest rows."""
    from t2r_export.checkpoints import checkpoint
    from t2r_export.config.attention import HeadsConfig
    from t2r_export.config.export import ExportConfig
    from t2r_export.config.mixers import HybridConfig, SoftmaxConfig, WindowConfig
    from t2r_export.config.uniform import UniformConfig
    from t2r_export.export import export
    from t2r_export.model.initialize import initialize

    folder = tmp_path_factory.mktemp("in_place")
    config = UniformConfig(
        vocab_size=17,
        width=12,
        layers=(
            WindowConfig(5, sinks=2, cache_bits=8),
            SoftmaxConfig(cache_bits=8),
            HybridConfig(3, feature_size=4),
            WindowConfig(9, sinks=0),
        ),
        attention=HeadsConfig(heads=4, kv_heads=2, head_size=6),
        ffn_size=10,
        position="rotary",
        tied_head=False,
    )
    checkpoint.save(folder / "in_place.pt", initialize(config.build(), seed=2), None, {})
    export(checkpoint.load(folder / "in_place.pt"), folder / "in_place.onnx", ExportConfig(prefill=True))
    return folder / "in_place.onnx"
