"""Models for Triton: its schema parses the configuration, and its sequences give a Decoder's logits."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import small
from t2r_export.checkpoints import checkpoint
from t2r_export.cli import main
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.providers import triton
from t2r_export.providers.triton import export_triton
from t2r_export.quantize import export_quantized
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

DTYPES = {"TYPE_FP32": np.float32, "TYPE_INT32": np.int32, "TYPE_INT64": np.int64}


def model_config(path: Path) -> Any:
    """The configuration, parsed with tritonclient's schema; the package itself needs an older protobuf."""
    [file] = [file for file in metadata.files("tritonclient") or [] if file.match("grpc/model_config_pb2.py")]
    spec = importlib.util.spec_from_file_location("model_config_pb2", file.locate())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text_format = importlib.import_module("google.protobuf.text_format")
    return text_format.Parse(path.read_text(), module.ModelConfig()), module.DataType.Name


class Sequences:
    """Emulates Triton's sequence batcher: states per sequence, batched runs of several sequences."""

    def __init__(self, folder: Path) -> None:
        self.config, name_of = model_config(folder / "config.pbtxt")
        self.session = ort.InferenceSession(folder / "1" / "model.onnx", providers=["CPUExecutionProvider"])
        inputs = sorted(one.name for one in self.session.get_inputs())
        said = self.config.sequence_batching.state
        # the ONNX backend needs every graph input, and pairs states by sorted name
        assert inputs == sorted([one.name for one in self.config.input] + [one.input_name for one in said])
        self.past = sorted(one.input_name for one in said)
        self.present = sorted(one.output_name for one in said)
        self.first = {}
        for one in said:
            [start] = one.initial_state
            assert [one.data_type, *one.dims] == [start.data_type, *start.dims]
            kind = DTYPES[name_of(one.data_type)]
            content = (folder / "initial_state" / start.data_file).read_bytes() if start.data_file else None
            zero = np.zeros(one.dims, kind)
            self.first[one.input_name] = zero if content is None else np.frombuffer(content, kind).reshape(one.dims)
        self.states: dict[int, dict[str, np.ndarray]] = {}

    def run(self, requests: dict[int, list[int]]) -> dict[str, np.ndarray]:
        """One or several tokens of each sequence, by sequence number."""
        [ids] = self.config.input
        rows = [self.states.get(number, self.first) for number in requests]
        given = {name: np.stack([row[name] for row in rows]) for name in self.past}
        tokens = np.array(list(requests.values()))
        given[ids.name] = tokens[:, 0] if ids.HasField("reshape") else tokens
        wanted = [one.name for one in self.config.output]
        found = self.session.run([*wanted, *self.present], given)
        for row, number in enumerate(requests):
            after = found[len(wanted) :]
            self.states[number] = {name: state[row] for name, state in zip(self.past, after, strict=True)}
        answers = dict(zip(wanted, found, strict=False))
        for one in self.config.output:
            assert answers[one.name].shape == (len(requests), *one.dims)
        return answers


def decoder(path: Path, tokens: list[int]) -> np.ndarray:
    """A Decoder's logits after these tokens."""
    one = Decoder(path, threads=1)
    return [one.step(np.array([token])) for token in tokens][-1]


@pytest.mark.parametrize(
    "name", ["none", "gated", "window", "window_rotary", "mamba2", "gated_delta", "lstm", "average"]
)
def test_sequences_give_the_logits_of_a_decoder(name: str, tmp_path: Path) -> None:
    loaded = small.checkpoint(name)
    config = ExportConfig(past_end="clamp", context="3:slide" if name in ("mamba2", "gated_delta") else None)
    export_triton(loaded, tmp_path / "model", config)
    export(loaded, tmp_path / "g.onnx", config)
    sequences = Sequences(tmp_path / "model")
    texts = {7: [3, 1, 4, 1], 5: [2, 7, 1, 5], 6: [6]}
    sequences.run({7: [3], 5: [2]})
    sequences.run({5: [7]})
    sequences.run({6: [6], 7: [1]})
    sequences.run({5: [1], 7: [4]})
    found = sequences.run({7: [1], 5: [5]})["logits"]
    for row, number in zip(found, (7, 5), strict=True):
        np.testing.assert_allclose(row, decoder(tmp_path / "g.onnx", texts[number])[0], atol=1e-5)


def test_prompts_are_read_in_one_request(tmp_path: Path) -> None:
    loaded = small.checkpoint("gated")
    export_triton(loaded, tmp_path / "model", ExportConfig(prefill=True, top_k=3, past_end="clamp"))
    export(loaded, tmp_path / "g.onnx", ExportConfig(past_end="clamp"))
    sequences = Sequences(tmp_path / "model")
    sequences.run({1: [3, 1, 4], 2: [1, 5, 9]})
    found = sequences.run({2: [2]})
    logits = decoder(tmp_path / "g.onnx", [1, 5, 9, 2])[0]
    assert found["top_tokens"][0].tolist() == np.argsort(-logits)[:3].tolist()
    np.testing.assert_allclose(found["top_logits"][0], -np.sort(-logits)[:3], atol=1e-5)


def test_states_that_do_not_start_as_zeros_have_a_file(tmp_path: Path) -> None:
    loaded = small.checkpoint("lstm")
    states = export(loaded, tmp_path / "g.onnx", ExportConfig()).signature.states
    changed = [dataclasses.replace(spec, initial=-2.5) for spec in states[:1]]
    assert triton.initial_files(changed) == {
        f"initial_state/{changed[0].name}": np.full(changed[0].dims(1)[1:], -2.5, np.float32).tobytes()
    }
    assert f'data_file: "{changed[0].name}"' in triton.config_text(loaded_signature(tmp_path), changed, prompts=False)


def loaded_signature(folder: Path) -> Any:
    return Decoder(folder / "g.onnx", threads=1).signature


def test_quantized_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    loaded, how = small.checkpoint("gated"), QuantizeConfig(scheme="w8")
    config = ExportConfig(past_end="clamp")
    report = export_triton(loaded, tmp_path / "model", config, how, external_bytes=1000)
    assert sorted(file.relative_to(tmp_path).as_posix() for file in report.files) == sorted(
        path.relative_to(tmp_path).as_posix() for path in (tmp_path / "model").rglob("*") if path.is_file()
    )
    assert len(report.files) == 3
    export_quantized(loaded, tmp_path / "g.onnx", config, how)
    found = Sequences(tmp_path / "model").run({1: [5]})["logits"]
    np.testing.assert_allclose(found, decoder(tmp_path / "g.onnx", [5]), atol=1e-5)


@pytest.mark.parametrize(
    "name, config, message",
    [
        ("softmax", ExportConfig(), "states of fixed size for --format triton"),
        ("learned", ExportConfig(), "positions without an end for --format triton"),
        ("translator_softmax", ExportConfig(), "a decoder alone for --format triton; received a translator"),
        ("none", ExportConfig(batch=2), "with --format triton; received --batch"),
        ("none", ExportConfig(draft_check=True), "with --format triton; received --draft-check"),
        ("none", ExportConfig(target="npu"), "with --format triton; received --target"),
    ],
)
def test_what_triton_cannot_run_is_refused(name: str, config: ExportConfig, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        export_triton(small.checkpoint(name), tmp_path / "model", config)
    assert message in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_rows_of_a_batch_are_rounded_on_their_own(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--quantize fp16, w8, w4 or keep with --format triton; received --quantize"):
        export_triton(small.checkpoint("none"), tmp_path / "model", None, QuantizeConfig(scheme="int8"))


def test_the_command_writes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = small.checkpoint("none")
    checkpoint.save(tmp_path / "m.pt", loaded.model, None, {})
    assert main(["export", str(tmp_path / "m.pt"), str(tmp_path / "repository"), "--format", "triton"]) == 0
    said = capsys.readouterr()
    assert str(tmp_path / "repository" / "config.pbtxt") in said.out
    assert "Triton has to run it with onnxruntime 1.18 or later" in said.err
    assert main(["export", str(tmp_path / "m.pt"), str(tmp_path / "repository"), "--format", "triton"]) == 2
    assert "expected a new or empty folder" in capsys.readouterr().err
