"""Processes of decoders: results, errors, and runners."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import small
from comparison import runners
from comparison.runners import RUNNERS, T2R, Torch, random_ids, scaled
from comparison.worker import DISCARDED, Measured, Worker
from t2r_export.checkpoints import checkpoint
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

BENCHMARKS = Path(runners.__file__).parents[1]


class Fake:
    """A runner that records its calls."""

    calls: list[Any]

    def __init__(self, path: Path, threads: int, capacity: int, options: dict[str, Any]) -> None:
        if path.name == "missing":
            raise OSError("no such\nmodel")
        Fake.calls = [("open", path.name, threads, capacity, options)]

    def place(self, context: int) -> None:
        self.calls.append(("place", context))

    def back(self) -> None:
        self.calls.append("back")

    def token(self) -> int:
        self.calls.append("token")
        return 0

    def read(self, tokens: int) -> None:
        self.calls.append(("read", tokens))

    def go_on(self, tokens: int) -> int:
        self.calls.append(("go on", tokens))
        return 0


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RUNNERS, "fake", Fake)


@pytest.fixture
def measured() -> Measured:
    return Measured("fake", Path("model"), 2, 99, {"a": 1})


def test_turn_starts_at_placed_context(measured: Measured) -> None:
    measured.place(16)
    seconds = measured.decode(3)
    assert len(seconds) == 3
    assert all(second >= 0 for second in seconds)
    assert Fake.calls == [("open", "model", 2, 99, {"a": 1}), ("place", 16), "back", *["token"] * (DISCARDED + 3)]


def test_prompt_and_first_token(measured: Measured) -> None:
    assert measured.read(7) >= 0
    measured.first_token(5)
    assert Fake.calls[1:] == [("read", 7), ("read", 5), "token"]


def test_message_after_placed_context(measured: Measured) -> None:
    measured.place(16)
    assert measured.turn(7) >= 0
    assert Fake.calls[1:] == [("place", 16), "back", ("go on", 7)]


def test_memory_of_process(measured: Measured) -> None:
    found = measured.memory()
    assert found["peak"] >= found["resident"] > 1 << 20


def test_process_of_graph(tmp_path: Path) -> None:
    small.graph(tmp_path / "graph.onnx", "rotary_drop", batch=1)
    with Worker("t2r", tmp_path / "graph.onnx", 1, 50) as process:
        process.open()
        process.place(20)
        assert len(process.decode(4)) == 4
        assert process.read(6) > 0
        assert process.turn(3) > 0
        process.first_token(3)
        assert process.memory()["resident"] > 1 << 20


def test_engine_error_is_forwarded(tmp_path: Path) -> None:
    small.graph(tmp_path / "graph.onnx", "rotary_drop", batch=1)
    with Worker("t2r", tmp_path / "none.onnx", 1, 50) as process:
        for _ in range(2):
            with pytest.raises(UserError, match=r"expected t2r to init; received .*none.onnx, which does not"):
                process.open()


def test_foreign_error_is_one_line() -> None:
    process = Worker("t2r", Path("x"), 1, 50)
    with (
        process,
        pytest.raises(UserError, match="expected t2r to place; received AttributeError: 'NoneType' .*; leave"),
    ):
        process.place(3)


def test_dead_process_is_error() -> None:
    with Worker("t2r", Path("x"), 1, 50) as process:
        process._process._process.kill()
        process._process._process.wait()
        with pytest.raises(UserError, match="the end of its process: SIGKILL"):
            process.open()


def test_process_threads() -> None:
    for threads in (1, 3):
        with Worker("t2r", Path("x"), threads, 50) as process:
            with pytest.raises(UserError):
                process.open()
            environment = Path(f"/proc/{process._process._process.pid}/environ").read_bytes()
            assert f"OMP_NUM_THREADS={threads}".encode() in environment.split(b"\0")


def test_process_loads_no_torch(tmp_path: Path) -> None:
    small.graph(tmp_path / "graph.onnx", "rotary_drop", batch=1)
    program = (
        f"import sys, pathlib; sys.path.append({str(BENCHMARKS)!r})\n"
        f"from comparison import worker; from comparison.runners import T2R\n"
        f"T2R(pathlib.Path({str(tmp_path / 'graph.onnx')!r}), 1, 9, {{}}).read(2)\n"
        f"assert not {{'torch', 'onnx', 'tokenizers'}} & set(sys.modules), sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_scaled_states() -> None:
    states = {"S.0": np.full((2, 3), 5.0, np.float32), "position": np.array([5], np.int32)}
    after = scaled(states, read=5, context=100)
    assert after["S.0"].dtype == np.float32
    assert (after["S.0"] == 100).all()
    assert after["position"].dtype == np.int32
    assert after["position"] == 100


def test_random_prompts_have_no_special_token() -> None:
    ids = random_ids(500, 7)
    assert ids.shape == (500,)
    assert (ids.min(), ids.max()) == (3, 6)


@pytest.mark.parametrize("config", ["rotary_keep", "rotary_drop", "none"])
def test_t2r_runner_returns_to_context(config: str, tmp_path: Path) -> None:
    small.graph(tmp_path / "graph.onnx", config)
    runner = T2R(tmp_path / "graph.onnx", 1, 50, {"batch": 3})
    runner.place(1000)
    assert runner._decoder.position == 1000
    before = runner._decoder.state()
    for _ in range(4):
        assert 0 <= runner.token() < small.VOCABULARY
    moved = runner._decoder.state()
    assert any(not np.array_equal(before[name], moved[name]) for name in before)
    runner.back()
    assert all(np.array_equal(before[name], value) for name, value in runner._decoder.state().items())


@pytest.mark.parametrize("options", [{}, {"top_k": 1, "prefill": True}])
def test_t2r_runner_decodes_greedily(options: dict[str, Any], tmp_path: Path) -> None:
    small.graph(tmp_path / "graph.onnx", "rotary_drop", batch=1, **options)
    runner = T2R(tmp_path / "graph.onnx", 1, 50, {})
    runner.read(6)
    first = int(runner._ids[0])
    received = [runner.token() for _ in range(5)]
    decoder = Decoder(tmp_path / "graph.onnx")
    decoder.prefill(random_ids(6, small.VOCABULARY))
    expected, token = [], first
    for _ in range(5):
        token = int(decoder.step(token).argmax())
        expected.append(token)
    assert received == expected


@pytest.mark.parametrize("options", [{}, {"top_k": 1, "prefill": True}])
def test_t2r_runner_reads_message_after_context(options: dict[str, Any], tmp_path: Path) -> None:
    small.graph(tmp_path / "graph.onnx", "rotary_drop", batch=1, **options)
    runner = T2R(tmp_path / "graph.onnx", 1, 50, {})
    runner.place(9)
    decoder = Decoder(tmp_path / "graph.onnx", threads=1)
    decoder.set_state(runner._decoder.state(), 9)
    assert runner.go_on(5) == int(decoder.prefill(random_ids(5, small.VOCABULARY)).argmax())
    runner.back()
    assert runner._decoder.position == 9


def test_torch_runner_reads_message_after_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small.model("softmax")
    checkpoint.save(tmp_path / "model.pt", model, None, {})
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    try:
        runner = Torch(tmp_path / "model.pt", 1, 50, {})
        runner.place(9)
        ids = torch.from_numpy(np.concatenate([random_ids(9, small.VOCABULARY), random_ids(5, small.VOCABULARY)]))
        logits, _ = model.prefill(ids[None], model.init_state(1))
        assert runner.go_on(5) == int(logits[0, -1].argmax())
    finally:
        torch.set_grad_enabled(True)


@pytest.mark.parametrize("config, context", [("softmax", 9), ("rotary_drop", 700)])
def test_torch_runs_softmax_and_t2r(config: str, context: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small.model(config)
    checkpoint.save(tmp_path / "model.pt", model, None, {})
    monkeypatch.setattr(runners, "CHUNK", 4)
    threads = torch.get_num_threads()
    try:
        runner = Torch(tmp_path / "model.pt", 1, 50, {})
        runner.place(context)
        first = [runner.token() for _ in range(4)]
        runner.back()
        assert len(first) == 4
        if config == "softmax":
            ids = torch.from_numpy(random_ids(context, small.VOCABULARY))[None]
            _, states = model.prefill(ids, model.init_state(1))
            small.assert_states(runner._states, states, 1e-5)
    finally:
        torch.set_grad_enabled(True)
        torch.set_num_threads(threads)
