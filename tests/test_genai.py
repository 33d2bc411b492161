"""Folders for onnxruntime-genai generate the same tokens; unsupported models are refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_genai
import pytest

import small
from quantized import ROUNDING
from small import GPT2, LLAMA, MODELS, SOFTMAX, linear, with_layers
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint, made
from t2r_export.cli import main
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.quantize import SCHEMES, QuantizeConfig
from t2r_export.convert import convert
from t2r_export.errors import CheckFailed
from t2r_export.export import export
from t2r_export.fold import fold
from t2r_export.graph import genai as graph
from t2r_export.proof.tolerances import tolerance
from t2r_export.providers.genai import export_genai
from t2r_export.quantize import export_quantized
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError
from t2r_runtime.text.tokenizer_file import Library

STORYTELLER = Path(__file__).parents[1] / "models" / "storyteller" / "model.pt"
TOKENS = 500


def storyteller(_: Path) -> Checkpoint:
    return checkpoint.load(STORYTELLER)


def stories(data: Path, layers: str = "all") -> Checkpoint:
    """stories260K with untrained T2R layers: a greedy text needs no good model."""
    teacher = checkpoint.load(data / "checkpoints" / "stories260K")
    return made(convert(teacher.model, LinearConfig(16, positions="drop"), layers), teacher.tokenizer, {})


def with_softmax(data: Path) -> Checkpoint:
    return stories(data, "0,1,3,4")


def texts(folder: Path, ids: np.ndarray, tokens: int) -> np.ndarray:
    """genai's greedy tokens after ids (B, N), ignoring end tokens: (B, tokens)."""
    model = onnxruntime_genai.Model(str(folder))
    parameters = onnxruntime_genai.GeneratorParams(model)
    length = ids.shape[1] + tokens
    parameters.set_search_options(max_length=length, min_length=length, batch_size=len(ids))
    generator = onnxruntime_genai.Generator(model, parameters)
    generator.append_tokens(ids.astype(np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return np.stack([generator.get_sequence(row)[ids.shape[1] :] for row in range(len(ids))])


def ours(decoder: Decoder, ids: np.ndarray, tokens: int) -> np.ndarray:
    """The same with a step graph; genai excludes end tokens before `min_length`."""
    decoder.reset(len(ids))
    written = []
    for column in ids.T:
        logits = decoder.step(column)
    for _ in range(tokens):
        logits[:, list(decoder.signature.eos_tokens)] = -np.inf
        written.append(logits.argmax(1))
        logits = decoder.step(written[-1])
    return np.stack(written, 1)


@pytest.mark.parametrize("source", [storyteller, stories, with_softmax])
def test_genai_generates_same_text(source: Any, data: Path, tmp_path: Path) -> None:
    loaded = source(data)
    export(loaded, tmp_path / "ours.onnx")
    export_genai(loaded, tmp_path / "folder")
    decoder, random = Decoder(tmp_path / "ours.onnx"), np.random.default_rng(3)
    for batch, length in ((1, 1), (1, 7), (1, 300), (3, 7)):
        ids = random.integers(0, loaded.config.vocab_size, (batch, length))
        expected = ours(decoder, ids, TOKENS)
        assert (texts(tmp_path / "folder", ids, TOKENS) == expected).all(), (batch, length)


def test_genai_continues_text(tmp_path: Path) -> None:
    """Positions and states are right after generated tokens and after another part of the prompt."""
    loaded = small.checkpoint("sinusoidal")
    export(loaded, tmp_path / "ours.onnx")
    export_genai(loaded, tmp_path / "folder")
    model = onnxruntime_genai.Model(str(tmp_path / "folder"))
    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(max_length=30, min_length=30)
    generator = onnxruntime_genai.Generator(model, parameters)
    decoder = Decoder(tmp_path / "ours.onnx")
    for part in ([3, 1, 4], [1], [5, 9, 2, 6]):
        generator.append_tokens(np.array(part, np.int32))
        decoder.reset()
        for token in generator.get_sequence(0):
            logits = decoder.step(int(token))
        np.testing.assert_allclose(generator.get_logits().ravel(), np.ravel(logits), rtol=2e-5, atol=2e-5)
        for _ in range(2):
            generator.generate_next_token()
        generator.get_logits()  # genai reads the last token only here; append_tokens would skip it


def runs(folder: Path, ids: np.ndarray, cuts: list[int]) -> list[np.ndarray]:
    """Logits (B, vocabulary) of the folder's graph after each part of ids (B, N), called like genai."""
    session = ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    kept = {
        value.name: np.zeros([{"B": len(ids), "T": 0}.get(d, d) for d in value.shape], np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past_")
    }
    names, found, read = [value.name for value in session.get_outputs()], [], 0
    for cut in cuts:
        places = np.tile(np.arange(read, read + cut), (len(ids), 1))
        fed = {"input_ids": ids[:, read : read + cut], "position_ids": places}
        given = {value.name: fed[value.name] for value in session.get_inputs() if value.name in fed}
        results = dict(zip(names, session.run(None, {**given, **kept}), strict=True))
        assert results["logits"].shape[:2] == (len(ids), 1)
        found.append(results.pop("logits")[:, 0])
        kept = {f"past_{name.removeprefix('present_')}": value for name, value in results.items()}
        read += cut
    return found


def refused(loaded: Checkpoint) -> str | None:
    """Pattern of the refusal: the first layer with states other than sums or growing caches; None: accepted."""
    if loaded.config.encoder is not None:
        return "a translator"
    specs = fold(loaded.model)[0].state_spec()
    for number in range(len(loaded.config.layers)):
        states = [spec for spec in specs if spec.name.endswith(f".{number}")]
        names = ", ".join(spec.name.partition(".")[0] for spec in states)
        if names not in ("", "S", "S, z") and not (names == "k, v" and states[0].grows):
            return rf"layer {number}, \w+, with {names};"
    return None


@pytest.mark.parametrize("name", MODELS)
def test_genai_equals_graph_or_is_refused(name: str, tmp_path: Path) -> None:
    loaded = small.checkpoint(name)
    if (named := refused(loaded)) is not None:
        with pytest.raises(UserError, match=f"for onnxruntime-genai; received {named}"):
            export_genai(loaded, tmp_path / "folder")
        assert list(tmp_path.iterdir()) == []
        return
    export(loaded, tmp_path / "ours.onnx")
    export_genai(loaded, tmp_path / "folder")
    ids, decoder = small.ids(3, 9).numpy(), Decoder(tmp_path / "ours.onnx")
    decoder.reset(3)
    wanted = [decoder.step(column) for column in ids.T]
    cuts = [1, 1, 5, 1, 1]
    for at, found in zip(np.cumsum(cuts), runs(tmp_path / "folder", ids, cuts), strict=True):
        scale = max(1.0, float(np.abs(wanted[at - 1]).max()))
        np.testing.assert_allclose(found, wanted[at - 1], rtol=0, atol=1e-4 * scale)


@pytest.mark.parametrize(
    "layers, named",
    [
        ((linear(5), linear(6)), r"S\.0 \['B', 3, 5, 4\] and S\.1 \['B', 3, 6, 4\]"),
        ((SOFTMAX, dataclasses.replace(small.WINDOW, sinks=0)), "layer 1, window, with k, v"),
    ],
)
def test_layers_of_two_shapes_are_refused(layers: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"of one shape.*received {named}"):
        export_genai(small.checkpoint(with_layers(GPT2, *layers)), tmp_path / "folder")


def test_model_without_eos_is_refused(tmp_path: Path) -> None:
    endless = dataclasses.replace(with_layers(LLAMA, linear(5), linear(5)), eos_tokens=())
    with pytest.raises(UserError, match="a token that ends a text, for onnxruntime-genai; received none"):
        export_genai(small.checkpoint(endless), tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def test_layers_with_and_without_z(tmp_path: Path) -> None:
    loaded = small.checkpoint(with_layers(LLAMA, linear(5), linear(5, normalizer="none", positions="drop")))
    export(loaded, tmp_path / "ours.onnx")
    export_genai(loaded, tmp_path / "folder")
    ids = small.ids(2, 6).numpy()
    assert (texts(tmp_path / "folder", ids, 20) == ours(Decoder(tmp_path / "ours.onnx"), ids, 20)).all()


def test_crossed_states_are_detected(tmp_path: Path) -> None:
    loaded = small.checkpoint(with_layers(LLAMA, linear(5), linear(5)))
    export_genai(loaded, tmp_path / "folder")
    ids = small.ids(1, 6).numpy()
    before = texts(tmp_path / "folder", ids, 20)
    file = tmp_path / "folder" / "model.onnx"
    model, crossed = onnx.load(file), {"present_S.0": "present_S.1", "present_S.1": "present_S.0"}
    for node in model.graph.node:
        node.output[:] = [crossed.get(name, name) for name in node.output]
    onnx.save(model, file)
    assert (texts(tmp_path / "folder", ids, 20) != before).any()


@pytest.mark.parametrize("scheme", [name for name in ROUNDING if SCHEMES[name].row_wise])
@pytest.mark.parametrize("target", ["portable", "fused"])
def test_quantized_folders(scheme: str, target: str, tmp_path: Path) -> None:
    loaded, how = storyteller(tmp_path), QuantizeConfig(scheme=scheme)
    export_quantized(loaded, tmp_path / "ours.onnx", ExportConfig(target=target), how)
    export_genai(loaded, tmp_path / "folder", ExportConfig(target=target), how)
    ids, decoder = (
        np.random.default_rng(1).integers(0, loaded.config.vocab_size, (1, 9)),
        Decoder(tmp_path / "ours.onnx"),
    )
    wanted = [decoder.step(int(token)) for token in ids[0]]
    for at, found in zip((0, 1, 7, 8), runs(tmp_path / "folder", ids, [1, 1, 6, 1]), strict=True):
        np.testing.assert_allclose(found[0], np.ravel(wanted[at]), rtol=0, atol=tolerance("cpu", scheme).logits)
    written, alone = (sum(f.stat().st_size for f in place) for place in (
        [tmp_path / "folder" / "model.onnx"], tmp_path.glob("ours.onnx*")
    ))  # fmt: skip
    assert written < alone + 400_000, "both branches share the weights"


def test_external_weights(tmp_path: Path) -> None:
    loaded = storyteller(tmp_path)
    report = export_genai(loaded, tmp_path / "folder", external_bytes=1000)
    assert [file.suffix for file in report.files] == [".onnx", ".data", ".json", ".json", ".json"]
    assert report.files[0].stat().st_size < 400_000 < report.files[1].stat().st_size
    export_genai(loaded, tmp_path / "whole")
    ids = np.array([[0, 5, 7]])
    assert (texts(tmp_path / "folder", ids, 30) == texts(tmp_path / "whole", ids, 30)).all()


def test_folder_contents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["export", str(STORYTELLER), str(tmp_path / "empty"), "--format", "genai", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    files = sorted(file.name for file in (tmp_path / "empty").iterdir())
    assert files == ["genai_config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(Path(file).name for file in report["files"]) == files
    assert [file.name for file in tmp_path.iterdir()] == ["empty"]
    config = json.loads((tmp_path / "empty" / "genai_config.json").read_text())
    assert config["model"]["type"] == "decoder"
    assert config["search"]["num_beams"] == 1
    session = ort.InferenceSession(tmp_path / "empty" / "model.onnx", providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata["t2r.checkpoint_sha256"] == json.dumps(checkpoint.load(STORYTELLER).sha256)
    with pytest.raises(UserError, match=r"t2r\.contract"):
        Decoder(tmp_path / "empty" / "model.onnx")


def test_tokenizer_adds_no_bos(tmp_path: Path) -> None:
    loaded = storyteller(tmp_path)
    export_genai(loaded, tmp_path / "folder")
    assert loaded.tokenizer is not None
    library = Library(loaded.tokenizer).tokenizer
    theirs = onnxruntime_genai.Tokenizer(onnxruntime_genai.Model(str(tmp_path / "folder")))
    for text in ("Once upon a time", " Tim saw\n\na 🦜.", ""):
        plain = library.encode(text, add_special_tokens=False).ids
        assert list(theirs.encode(text)) == plain
        assert theirs.decode(np.array(plain, np.int32)) == text


def test_limited_positions_set_context_length(tmp_path: Path) -> None:
    export_genai(small.checkpoint("learned"), tmp_path / "refuse")
    export_genai(small.checkpoint("learned"), tmp_path / "clamp", ExportConfig(past_end="clamp"))
    lengths = [
        json.loads((tmp_path / name / "genai_config.json").read_text())["model"]["context_length"]
        for name in ("refuse", "clamp")
    ]
    assert lengths == [small.POSITIONS, 1 << 20]


@pytest.mark.parametrize(
    "options, named",
    [
        (["--batch", "2"], "--batch"),
        (["--prefill"], "--prefill"),
        (["--draft-check"], "--draft-check"),
        (["--top-k", "3"], "--top-k"),
        (["--state-layout", "packed"], "--state-layout"),
        (["--float16-safe"], "--float16-safe"),
        (["--target", "npu"], "--target"),
        (["--target", "standard"], "--target"),
        (["--quantize", "int8"], "--quantize"),
    ],
)
def test_unsupported_options_are_refused(
    options: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(STORYTELLER), str(tmp_path / "out"), "--format", "genai", *options]) == 2
    assert f"with --format genai; received {named}; leave it out" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stands", ["file", "folder", "link"])
def test_existing_folder_is_refused(stands: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    if stands == "file":
        out.write_text("mine")
    elif stands == "folder":
        (out / "mine").mkdir(parents=True)
    else:
        (tmp_path / "other").mkdir()
        out.symlink_to(tmp_path / "other")
    assert main(["export", str(STORYTELLER), str(out), "--format", "genai"]) == 2
    assert "expected a new or empty folder to write to" in capsys.readouterr().err


def test_failed_trial_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "_before", lambda positions: [])
    monkeypatch.setattr(graph, "made_of", lambda step, made: graph.helper.make_model(made))
    with pytest.raises(CheckFailed, match="does not run, and was not kept"):
        export_genai(small.checkpoint("none"), tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []
