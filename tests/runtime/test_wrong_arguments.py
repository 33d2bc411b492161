"""The public API with arguments of wrong types: always a UserError, never numpy's TypeError or an OSError."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import graphs
from runtime.test_tokenizer import pieces
from t2r_runtime import (
    Batch,
    Beam,
    Decoder,
    PrefixCache,
    Sampler,
    Sampling,
    Signature,
    StateSpec,
    StreamingDetokenizer,
    Tokenizer,
    UserError,
)

RAGGED = [[1], [1, 2]]
PATHS: list[Any] = [None, 3, b"x", "a\0b", "x" * 300, ".", [], "no/such/folder/x"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graphs.save(tmp_path_factory.mktemp("wrong") / "g.onnx", top_k=3, tokenizer=pieces())


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(UserError) as caught:
        call()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("wrong", PATHS, ids=repr)
def test_paths(wrong: Any, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    decoder = Decoder(path, threads=1)
    for call in (Decoder, decoder.load_state, decoder.save_state):
        refused(lambda call=call: call(wrong))  # type: ignore[misc]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [3, b"x", [], {}, "a\0b", "x" * 300], ids=repr)
def test_folders_of_a_prefix_cache(wrong: Any, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    decoder = Decoder(path, threads=1)
    refused(lambda: PrefixCache(decoder, folder=wrong).read([1, 2]))
    assert list(tmp_path.iterdir()) == []


def test_pipes_rejected(path: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    decoder = Decoder(path, threads=1)
    for call in (Decoder, decoder.load_state, decoder.save_state):
        refused(lambda call=call: call(pipe))  # type: ignore[misc]
    assert pipe.is_fifo()


OPTIONS: list[dict[str, Any]] = [
    {"provider": None},
    {"provider": []},
    {"threads": "2"},
    {"threads": 1 << 40},
    {"provider_options": [1]},
    {"provider_options": {1: 2}},
    {"provider_options": np.zeros(2)},
    {"prefill_from": -(10**5000)},
    {"companions": 3},
    {"companions": "prefill"},
    {"max_state_bytes": "1"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options))
def test_open_arguments(options: dict[str, Any], path: Path) -> None:
    refused(lambda: Decoder(path, **options))


CALLS: dict[str, list[tuple[Any, ...]]] = {
    "step": [(None,), ("a",), (RAGGED,), (object(),), (1.5,), (1 << 70,), ({},), (1j,)],
    "prefill": [(RAGGED,), ({1, 2},), ((x for x in (1, 2)),)],
    "top_k": [(None,)],
    "reset": [("a",), ([1],)],
    "reorder": [(None,), (RAGGED,), ("a",), ([],)],
    "take": [(None,), ([],), ([(3, [0])],), ([3],), (3,), ("ab",)],
    "set_state": [(None,), ([1],), ({"S.0": "a"},), ({"S.0": RAGGED},), ({3: np.zeros(1)},)],
    "generate": [
        (None, 3),
        ([1], "3"),
        ([1], 1 << 63),
        ([1], 3, None),
        ([1], 3, 0.5),
        ([1], 3, Sampling(), 3),
        *(([1], 3, Sampling(stop_tokens=stop)) for stop in (3, ["a"], [[1]], "ab", [True, 99], np.array(1))),  # type: ignore[arg-type]
    ],
    "stream": [([1], 3, None)],
}


def without_address(value: object) -> str:
    """A test name that is equal in every process."""
    return re.sub(" at 0x[0-9a-f]+", "", str(value))


@pytest.mark.parametrize(
    "method, given", [(name, given) for name, all_ in CALLS.items() for given in all_], ids=without_address
)
def test_a_decoder(method: str, given: tuple[Any, ...], path: Path) -> None:
    decoder = Decoder(path, threads=1)
    refused(lambda: getattr(decoder, method)(*given))
    assert decoder.position == 0


@pytest.mark.parametrize("position", ["x", -1, 1 << 70, 1.0, True])
def test_a_position(position: Any, path: Path) -> None:
    decoder = Decoder(path, threads=1)
    refused(lambda: decoder.set_state(decoder.state(), position))


def test_rows_of_another_graph(path: Path) -> None:
    refused(lambda: Decoder(path, threads=1).take([(Decoder(path, threads=1), [0])]))


OTHERS: list[Callable[[], object]] = [
    lambda: Sampling("x"),  # type: ignore[arg-type]
    lambda: Sampling(10**400),
    lambda: Sampling(top_k=1 << 63),
    lambda: Sampling(seed=-(10**5000)),
    lambda: Beam(early_stopping=np.zeros(2)),  # type: ignore[arg-type]
    lambda: Tokenizer(pieces()).encode_documents(None),  # type: ignore[arg-type]
    lambda: StateSpec("a", np.zeros(2), ("B",)),  # type: ignore[arg-type]
    lambda: StateSpec("a", "float32", ("B",)).bytes("x"),  # type: ignore[arg-type]
    lambda: Sampling(seed=1.5),  # type: ignore[arg-type]
    lambda: Sampler(None),  # type: ignore[arg-type]
    *(
        lambda wrong=wrong: Sampler(Sampling()).pick(wrong)
        for wrong in ("a", None, [1.0], np.zeros(0), np.zeros((2, 2)))
    ),
    lambda: Batch(None),  # type: ignore[arg-type]
    lambda: Tokenizer(None),  # type: ignore[arg-type]
    lambda: Tokenizer(pieces(), bos_token="x"),  # type: ignore[arg-type]
    lambda: Tokenizer.of(None),  # type: ignore[arg-type]
    lambda: Tokenizer(pieces()).stream(3),  # type: ignore[arg-type]
    lambda: Tokenizer(pieces()).stream().feed("a"),  # type: ignore[arg-type]
    lambda: StreamingDetokenizer(None),  # type: ignore[arg-type]
    lambda: StateSpec("a", "float32", None),  # type: ignore[arg-type]
    lambda: StateSpec("a", "float32", ("B", 1.5)),  # type: ignore[arg-type]
    lambda: StateSpec(3, "float32", ("B",)),  # type: ignore[arg-type]
    lambda: StateSpec("a", "float32", (None,)),  # type: ignore[arg-type]
    lambda: Signature.from_metadata(None),  # type: ignore[arg-type]
    lambda: Signature.from_metadata({"t2r.contract": 3}),  # type: ignore[dict-item]
]


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_other_wrong_arguments(number: int) -> None:
    refused(OTHERS[number])


@pytest.mark.parametrize("handle", [[1], {}, None, 1.0, True])
def test_handles_of_a_batch(handle: Any, path: Path) -> None:
    batch = Batch(Decoder(path, threads=1))
    batch.add([1], 3)
    batch.add([2], 3)
    refused(lambda: batch.remove(handle))
    refused(lambda: batch.add([1], 3, 0.5))  # type: ignore[arg-type]
    assert batch.sequences == (0, 1)


@pytest.mark.parametrize(
    "header",
    ["{'descr': '<f4', 'fortran_order': False, 'shape': (1, '2')}", "((((", "{'descr': [1], 'shape': 3}", "3", "\0"],
)
def test_snapshots_with_odd_headers(header: str, path: Path, tmp_path: Path) -> None:
    decoder = Decoder(path, threads=1)
    decoder.save_state(tmp_path / "s.npz")
    with zipfile.ZipFile(tmp_path / "s.npz") as old, zipfile.ZipFile(tmp_path / "odd.npz", "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename == "S.0.npy":
                text = header.encode().ljust(118) + b"\n"
                content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content[128:]
            new.writestr(info, content)
    refused(lambda: decoder.load_state(tmp_path / "odd.npz"))
