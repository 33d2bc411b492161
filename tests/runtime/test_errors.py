"""Every runtime error has a fitting kind of the contract's list."""

from __future__ import annotations

import ast
import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import t2r_runtime
from contract_pages import PAGES
from runtime import graphs
from t2r_runtime import Decoder, Sampling, Signature, Tokenizer, UserError
from t2r_runtime.errors import KINDS
from t2r_runtime.translate.beam import Beam

PAGE = PAGES["CONTRACT"]
RAISING = {"UserError": 3, "require_kind": 3, "require_value": 3, "array_of": 2, "listed": 2}  # index of the kind
GREEDY = Sampling(temperature=0, stop_tokens=())


def test_the_contract_lists_the_kinds() -> None:
    section = PAGE.split("## Errors\n")[1]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)) == KINDS


def test_every_raise_site_has_a_kind() -> None:
    sites = []
    files = Path(t2r_runtime.__file__).parent.rglob("*.py")
    for file in (each for each in files if each.parent.name not in ("cli", "serve")):  # these print errors
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISING:
                kind = node.args[-1 if isinstance(node.args[0], ast.Starred) else RAISING[node.func.id]]
                passed_on = isinstance(kind, ast.Name) and kind.id == "kind" and file.name == "checks.py"
                assert passed_on or (isinstance(kind, ast.Constant) and kind.value in KINDS), (file.name, node.lineno)
                sites.append(kind)
    assert len(sites) > 100


def test_error_pickle_round_trip() -> None:
    error = pickle.loads(pickle.dumps(UserError("a", "b", "c", "token")))
    assert (error.kind, str(error)) == ("token", "expected a; received b; c")


@pytest.fixture
def made(tmp_path: Path) -> Decoder:
    return Decoder(graphs.save(tmp_path / "g.onnx", "constant"), threads=1)


def saved(decoder: Decoder, folder: Path) -> Path:
    decoder.save_state(folder / "state")
    return folder / "state"


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-100])
    return path


def used_by_two(decoder: Decoder) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with decoder.in_use:
            held.set()
            done.wait(10)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(10)
    try:
        decoder.reset()
    finally:
        done.set()
        other.join()


USES: dict[str, tuple[str, Callable[[Decoder, Path], object]]] = {
    "no file": ("file", lambda d, p: Decoder(p / "none.onnx")),
    "a folder": ("file", lambda d, p: d.save_state(p)),
    "no path": ("file", lambda d, p: Decoder(3)),  # type: ignore[arg-type]
    "a damaged graph": ("graph", lambda d, p: Decoder(cut(p / "g.onnx"))),
    "a checkpoint": ("graph", lambda d, p: Decoder(_checkpoint(p))),
    "no top_k outputs": ("graph", lambda d, p: d.top_k([1])),
    "two threads": ("state", lambda d, p: used_by_two(d)),
    "no metadata": ("metadata", lambda d, p: Signature.from_metadata({})),
    "a missing key": ("metadata", lambda d, p: Signature.from_metadata(_without(d, "t2r.states"))),
    "another contract": (
        "version",
        lambda d, p: Signature.from_metadata(d.signature.to_metadata() | {"t2r.contract": "2"}),
    ),
    "states too large": (
        "metadata",
        lambda d, p: Signature.from_metadata(d.signature.to_metadata(), max_state_bytes=8),
    ),
    "no tokenizer": ("tokenizer", lambda d, p: Tokenizer.of(d.signature)),
    "a broken tokenizer": ("tokenizer", lambda d, p: Tokenizer("{}")),
    "no token": ("token", lambda d, p: d.prefill([])),
    "a token out of range": ("token", lambda d, p: d.step([99])),
    "a negative token": ("token", lambda d, p: d.generate([-1], 3, GREEDY)),
    "a stop token out of range": ("token", lambda d, p: d.generate([1], 3, Sampling(stop_tokens=(99,)))),
    "another batch": ("batch", lambda d, p: d.step([1, 2])),
    "no batch": ("batch", lambda d, p: d.reset(0)),
    "generation of two": ("batch", lambda d, p: (d.reset(2), d.generate([1], 3, GREEDY))),
    "rows that are not there": ("batch", lambda d, p: d.reorder([1])),
    "states of another model": ("snapshot", lambda d, p: d.set_state({"x": np.zeros(3)})),
    "a cut snapshot": ("snapshot", lambda d, p: d.load_state(cut(saved(d, p)))),
    "a graph as a snapshot": ("snapshot", lambda d, p: d.load_state(p / "g.onnx")),
    "max_tokens": ("sampling", lambda d, p: d.generate([1], 0, GREEDY)),
    "a temperature": ("sampling", lambda d, p: Sampling(temperature=-1)),
    "a beam": ("sampling", lambda d, p: Beam(width=0)),
    "an unknown provider": ("provider", lambda d, p: Decoder(p / "g.onnx", provider="abacus")),
    "threads": ("provider", lambda d, p: Decoder(p / "g.onnx", threads=0)),
}


def _checkpoint(folder: Path) -> Path:
    (folder / "config.json").write_text("{}")
    return folder


def _without(decoder: Decoder, key: str) -> dict[str, str]:
    return {name: value for name, value in decoder.signature.to_metadata().items() if name != key}


@pytest.mark.parametrize("use", USES)
def test_invalid_use_kind(use: str, made: Decoder, tmp_path: Path) -> None:
    kind, run = USES[use]
    with pytest.raises(UserError) as caught:
        run(made, tmp_path)
    assert caught.value.kind == kind
    assert "\n" not in str(caught.value)
