"""Parsing of candidates, missing packages, and files."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import onnx
import pytest

import small
from comparison import engines
from comparison.engines import Candidate, parse
from t2r_export.checkpoints import checkpoint
from t2r_export.config.model import ModelConfig
from t2r_export.errors import CheckFailed
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

pytestmark = pytest.mark.slow


def test_parse_candidate() -> None:
    assert parse("t2r:w4:K=64:block=128") == Candidate(
        "t2r:w4:K=64:block=128", "t2r", "w4", {"K": "64", "block": "128"}
    )


def test_control_shares_files() -> None:
    once, again = parse("t2r:w4:block=32:K=16"), parse("t2r:w4:K=16:block=32:again")
    assert once.name != again.name
    assert once.files_key == again.files_key != parse("t2r:w4:K=16").files_key


@pytest.mark.parametrize("text, constant", [("t2r:w8", True), ("torch:t2r", True), ("torch:softmax", False)])
def test_constant_state_candidates(text: str, constant: bool) -> None:
    assert parse(text).constant is constant


@pytest.mark.parametrize(
    "text, message",
    [
        ("vllm:int4", "an engine of t2r, genai, llama.cpp, torch; received 'vllm:int4'"),
        ("t2r", "one of t2r:float32, t2r:fp16, t2r:int8, t2r:w8, t2r:w4; received 't2r'"),
        ("genai:w4", "one of genai:int4"),
        (
            "t2r:w4:k=3",
            r"options of t2r \(K, rule, .*, provider\) as name=value; received 'k=3'",
        ),
        ("t2r:w4:K=3:K=4", "received 'K=4'"),
        ("t2r:w4:K", "received 'K'"),
    ],
)
def test_invalid_candidates_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(text)


@pytest.mark.parametrize("text", ["genai:int4", "llama.cpp:Q4_0"])
def test_missing_engine_names_extra(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    engines.require_installed([parse("t2r:w4"), parse("torch:softmax")])
    with pytest.raises(UserError, match=r"received no .*; install the extra `peers` .*t2r-export\[peers\]"):
        engines.require_installed([parse("t2r:w4"), parse(text)])


def test_missing_provider_names_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"provider in t2r:w4:provider=t2r; received no .*; install runtimes/provider"):
        engines.require_installed([parse("t2r:w4:provider=t2r")])


def test_files_of_graph(tiny: ModelConfig, tmp_path: Path) -> None:
    files = engines.make(parse("t2r:w4:K=5:target=fused"), "tiny", tmp_path)
    signature = Decoder(files.path).signature
    assert (signature.quantization, signature.target, signature.batch) == ("w4", "fused", 1)
    assert {small.described(layer)["feature_size"] for layer in signature.layers} == {5}
    assert files.bytes == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert files.token_bytes is not None
    assert files.token_bytes.states == 2 * sum(spec.bytes() for spec in signature.states)


def test_block_size_and_dynamic_batch(tiny: ModelConfig, tmp_path: Path) -> None:
    files = engines.make(parse("t2r:w8:block=16:batch=any"), "tiny", tmp_path)
    assert Decoder(files.path).signature.batch is None
    nodes = [node for node in onnx.load(files.path).graph.node if node.op_type == "MatMulNBits"]
    sizes = {attribute.i for node in nodes for attribute in node.attribute if attribute.name == "block_size"}
    assert sizes == {16}


def test_top_k_and_prefill(tiny: ModelConfig, tmp_path: Path) -> None:
    for place in ("plain", "more"):
        (tmp_path / place).mkdir()
    plain = engines.make(parse("t2r:w8:block=16"), "tiny", tmp_path / "plain")
    files = engines.make(parse("t2r:w8:block=16:top_k=2:prefill=1"), "tiny", tmp_path / "more")
    signature = Decoder(files.path).signature
    assert signature.top_k == 2
    assert "prefill" in signature.graphs
    assert files.bytes == sum(file.stat().st_size for file in (tmp_path / "more").iterdir())
    assert files.token_bytes is not None and plain.token_bytes is not None
    assert files.token_bytes.states == plain.token_bytes.states
    assert abs(files.token_bytes.weights - plain.token_bytes.weights) <= 8, "what a step reads is the same, but for a k"


def test_wrong_graph_is_refused(tiny: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(loaded: checkpoint.Checkpoint, path: Path, how: object) -> object:
        weight = loaded.model.blocks[0].parts[1].down.weight
        weight.data += 0.5
        report = export(loaded, path, how)
        weight.data -= 0.5
        return report

    export = engines.export
    monkeypatch.setattr(engines, "export", other)
    with pytest.raises(CheckFailed, match="no speed for graph.onnx"):
        engines.make(parse("t2r:float32"), "tiny", tmp_path)


def test_invalid_number_is_refused(tiny: ModelConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a whole number for K; received 'many' in t2r:w4:K=many"):
        engines.make(parse("t2r:w4:K=many"), "tiny", tmp_path)


def test_files_of_torch(tiny: ModelConfig, tmp_path: Path) -> None:
    files = engines.make(parse("torch:t2r:K=3"), "tiny", tmp_path)
    assert {mixer.feature_size for mixer in small.mixers(checkpoint.load(files.path).config)} == {3}


def test_genai_builder_command() -> None:
    command = engines.genai_command(Path("in"), Path("x/out"), parse("genai:int4:block=128"))
    assert command[1:4] == ["-P", "-m", "onnxruntime_genai.models.builder"]
    assert command[-2:] == ["--extra_options", "block_size=128"]
    assert command[command.index("-p") + 1] == "int4"
