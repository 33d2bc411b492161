"""models/tiny is what its command makes, and t2r_runtime reproduces its traces."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden
import numpy as np
import onnx
import pytest

from t2r_export.verify import verify
from t2r_runtime import Decoder, Sampling
from t2r_runtime.signature import Signature

TINY = Path(__file__).parents[2] / "models" / "tiny"
names = pytest.mark.parametrize("name", golden.MODELS)
Trace = dict[str, Any]


def array(entry: dict[str, Any]) -> np.ndarray:
    return np.array(entry["data"]).reshape(entry["shape"])


def read(name: str, folder: Path = TINY) -> Trace:
    trace = json.loads((folder / f"{name}.json").read_text())
    assert isinstance(trace, dict)
    return trace


def assert_close(received: Any, expected: Any, path: str = "trace") -> None:
    """The same structure and texts, integers equal, others within 1e-5."""
    if isinstance(expected, dict):
        assert received.keys() == expected.keys(), path
        for key, value in expected.items():
            assert_close(received[key], value, f"{path}.{key}")
    elif isinstance(expected, list) and any(isinstance(x, float) for x in expected):
        np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-5, err_msg=path)
    else:
        assert received == expected, path


def without_version(path: Path) -> onnx.ModelProto:
    """A graph but for the version of the program that wrote it."""
    model = onnx.load(path)
    model.producer_version = ""
    metadata = {p.key: p.value for p in model.metadata_props if p.key != "t2r.producer"}
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, metadata)
    return model


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    golden.write(folder)
    return folder


def test_the_command_makes_these_files(again: Path) -> None:
    assert {p.name for p in again.iterdir()} == {p.name for p in TINY.iterdir()} - {"README.md"}
    assert {p.stem for p in again.iterdir()} == set(golden.MODELS)
    for path in again.iterdir():
        assert path.stat().st_size < 100_000


@names
def test_made_again_it_is_the_same(name: str, again: Path) -> None:
    assert without_version(again / f"{name}.onnx") == without_version(TINY / f"{name}.onnx")
    assert_close(read(name, again), read(name))


def run(name: str, trace: Trace) -> None:
    """What a runtime's conformance program does."""
    decoder = Decoder(TINY / trace["graph"], threads=1)
    logits_bound = trace["tolerance"]["logits_absolute"]
    state_bound = trace["tolerance"]["state_relative_to_its_largest"]
    dtypes = {s.name: s.dtype for s in decoder.signature.states}
    assert trace["start"].keys() == trace["end"].keys() == dtypes.keys()
    decoder.set_state({key: array(value).astype(dtypes[key]) for key, value in trace["start"].items()})
    expected = array(trace["logits"])
    for t, ids in enumerate(array(trace["ids"]).T):
        assert np.abs(decoder.step(ids) - expected[:, t]).max() <= logits_bound, t
    for key, value in decoder.state().items():
        wanted = array(trace["end"][key])
        assert value.shape == wanted.shape, key
        assert np.abs(value - wanted).max() <= state_bound * np.abs(wanted).max(), key
    decoder.reset(batch=1)
    greedy = trace["greedy"]
    tokens = decoder.generate(greedy["prompt"], len(greedy["tokens"]), Sampling(temperature=0, stop_tokens=()))
    assert tokens == greedy["tokens"]


@names
def test_the_runtime_reproduces_the_trace(name: str) -> None:
    trace = read(name)
    assert array(trace["logits"]).shape == (golden.BATCH, golden.STEPS, 17)
    assert golden.STEPS >= 16
    run(name, trace)


@names
def test_the_trace_is_not_trivial(name: str) -> None:
    trace = read(name)
    assert all((array(value) != 0).all() for value in trace["start"].values())
    assert len(set(trace["start"]["position"]["data"])) == golden.BATCH
    assert len(set(trace["greedy"]["tokens"])) >= 8
    kinds = {layer["fold"].split(":")[0] for layer in signature(name).layers}
    assert kinds == ({"folded"} if name == "tiny" else {"folded", "not folded"})
    assert any(s.grows for s in signature(name).states) == (name == "tiny-hybrid")


def signature(name: str) -> Signature:
    return Signature.from_metadata({p.key: p.value for p in onnx.load(TINY / f"{name}.onnx").metadata_props})


@names
def test_the_graph_is_the_model(name: str) -> None:
    proof = verify(golden.checkpoint(name), TINY / f"{name}.onnx", steps=64)
    assert proof.passed, proof
    assert proof.same_checkpoint


FAULTS: dict[str, Callable[[Trace], None]] = {
    "a logit": lambda t: nudge(t["logits"], 2e-4),
    "a state at the start": lambda t: nudge(t["start"]["S.0"], 0.1),
    "a position": lambda t: nudge(t["start"]["position"], 1),
    "a state at the end": lambda t: nudge(t["end"]["z.2"], 1e-2),
    "a token": lambda t: t["ids"]["data"].reverse(),
    "a greedy token": lambda t: t["greedy"]["tokens"].reverse(),
}


def nudge(entry: dict[str, Any], change: float) -> None:
    entry["data"][0] += change


@names
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_trace_is_seen(name: str, fault: str) -> None:
    right = read(name)
    wrong = copy.deepcopy(right)
    FAULTS[fault](wrong)
    with pytest.raises(AssertionError):
        run(name, wrong)
    with pytest.raises(AssertionError):
        assert_close(wrong, right)
