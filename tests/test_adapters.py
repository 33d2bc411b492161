"""Low-rank adapters beside a graph: every row computes the model that has its adapter merged."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file

import folders
import small
from cli_models import run
from runtime.serve.server import within
from small import CONFIGS, TRANSLATORS, B
from t2r_export.checkpoints.checkpoint import Checkpoint, load, save, save_adapter
from t2r_export.checkpoints.weights import assemble
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_export.quantize import export_quantized
from t2r_runtime import Batch, Decoder, Sampling
from t2r_runtime.errors import UserError

PRODUCTS = ("q", "k", "v", "o", "qkv", "z", "gate", "up", "down")
RANKS = {"one": 1, "two": 2}
Made = tuple[Checkpoint, list[Transformer], Decoder]


def changed(model: Transformer, rank: int, products: tuple[str, ...] = PRODUCTS) -> Transformer:
    """The model with random adapters of a rank; two products of each block are left as they are."""
    generator, weights = torch.Generator().manual_seed(rank), dict(model.state_dict())
    for name, weight in model.state_dict().items():
        *_, part, kind = name.split(".")
        if part in products and kind == "weight" and weight.ndim == 2 and (rank, part) not in ((1, "k"), (2, "up")):
            rows, columns = weight.shape
            outer = 0.2 * torch.randn(rows, rank, generator=generator)
            weights[name] = weight + outer @ torch.randn(rank, columns, generator=generator)
    return assemble(model.config, weights)


def written(path: Path, name: str = "gated_rotary", **options: Any) -> Made:
    """A checkpoint, the models without and with each adapter, and the graph of all."""
    made = small.checkpoint(CONFIGS[name])
    models = {adapter: changed(made.model, rank) for adapter, rank in RANKS.items()}
    given = {adapter: lambda model=model: model for adapter, model in models.items()}
    export(made, path, ExportConfig(**options), adapters=given)
    return made, [made.model, *models.values()], Decoder(path, threads=1)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return written(tmp_path_factory.mktemp("adapters") / "g.onnx", prefill=True, draft_check=True)


@pytest.mark.parametrize("target", ["portable", "fused"])
@pytest.mark.parametrize("name", ["gated_rotary", "hybrid_gated", "rotary_keep", "softmax", "gated_delta", "kda"])
def test_every_adapter_is_the_merged_model(name: str, target: str, tmp_path: Path) -> None:
    """By steps, with the prefill graph and with the draft-check graph, from random states."""
    _, models, decoder = written(tmp_path / "g.onnx", name, prefill=True, draft_check=True, target=target)
    ids = small.ids(length=7)
    different = []
    for number, model in enumerate(models):
        start = small.states(model)
        expected, after = model.prefill(ids, start)
        logits, states = expected.detach().numpy()[:, -1], small.arrays(model.fold_states(after))
        given = {**small.arrays(model.fold_states(start)), "adapter": np.full(B, number, np.int32)}
        for read in (decoder.prefill, lambda ids: [decoder.step(column) for column in ids.T][-1]):
            decoder.set_state(given, small.CACHED)
            np.testing.assert_allclose(read(ids.numpy()), logits, atol=1e-5)
            for state, value in states.items():
                np.testing.assert_allclose(decoder.state()[state], value, rtol=1e-4, atol=1e-5)
        decoder.set_state(given, small.CACHED)
        np.testing.assert_allclose(decoder.check(ids.numpy(), 3), expected.detach().numpy(), atol=5e-5)
        assert (decoder.state()["adapter"] == number).all()
        different.append(logits)
    assert all(np.abs(a - b).max() > 1e-2 for a, b in zip(different, different[1:] + different[:1], strict=True))


def test_a_row_is_the_graph_of_its_merged_model(graph: Made, tmp_path: Path) -> None:
    """Rows of one batch have different adapters, which they keep when they move."""
    made, models, decoder = graph
    ids, names = small.ids(3, 7).numpy(), ["two", None, "one"]
    decoder.reset(batch=3)
    decoder.adapt(names)
    decoder.prefill(ids[:, :4])
    decoder.reorder([2, 0, 1])
    rows = [ids[row] for row in (2, 0, 1)]
    received = decoder.prefill(np.stack(rows)[:, 4:])
    for row, number in enumerate((1, 2, 0)):
        alone = Checkpoint(made.config, models[number], None, made.provenance, made.sha256)
        export(alone, tmp_path / f"{number}.onnx")
        np.testing.assert_allclose(received[row], Decoder(tmp_path / f"{number}.onnx").prefill(rows[row])[0], atol=1e-5)


def test_a_swap_leaks_nothing(graph: Made, tmp_path: Path) -> None:
    decoder, text = graph[2].fork(), small.ids(1, 11).numpy()
    expected: dict[str | None, np.ndarray] = {}
    for name in ("one", None, "two", "one", None):
        decoder.reset(batch=1)
        assert decoder.state()["adapter"] == [0]
        decoder.adapt(name)
        logits = decoder.prefill(text)
        np.testing.assert_array_equal(logits, expected.setdefault(name, logits))
    before = decoder.state()
    decoder.adapt("two")
    assert [name for name, value in decoder.state().items() if (value != before[name]).any()] == ["adapter"]
    decoder.step([3])
    decoder.save_state(tmp_path / "s.state")
    following = decoder.step([4])
    other = Decoder(decoder.path, adapter="one")
    np.testing.assert_array_equal(other.prefill(text), expected["one"])
    other.load_state(tmp_path / "s.state")
    np.testing.assert_array_equal(other.step([4]), following)
    other.reset()
    np.testing.assert_array_equal(other.fork().prefill(text), expected["one"])


def test_texts_of_a_batch_are_those_alone(graph: Made) -> None:
    decoder, batch, prompt = graph[2].fork(), Batch(graph[2]), [1, 5, 3]
    how = Sampling(temperature=2, seed=1, stop_tokens=())
    texts = {batch.add(prompt, count, how, adapter=name): name for count, name in ((9, "two"), (4, None), (6, "one"))}
    found: dict[int, list[int]] = {handle: [] for handle in texts}
    while batch.sequences:
        for handle, token in batch.step().items():
            found[handle].append(token)
    for handle, name in texts.items():
        decoder.reset(batch=1)
        decoder.adapt(name)
        assert found[handle] == decoder.generate(prompt, len(found[handle]), how)


def test_a_server_names_each_adapter(graph: Made) -> None:
    """All models of a graph share rows; no prefix is shared, not even with a session of the adapter's name."""
    decoder, prompt = graph[2].fork(), [1, 5, 3] * 7
    how = Sampling(temperature=2, seed=1, stop_tokens=())
    options = {"max_tokens": 9, "temperature": 2, "seed": 1, "ignore_eos": True}
    with within(decoder.path, rows=2) as client, ThreadPoolExecutor(3) as pool:
        assert [model["id"] for model in client.good("/v1/models")["data"]] == ["g", "g:one", "g:two"]
        assert client.good("/v1/models/g:two")["id"] == "g:two"
        for known in (0, 20):
            names = {name: "g" if name is None else f"g:{name}" for name in ("two", None, "one")}
            ask = {name: pool.submit(client.complete, prompt, model=model, **options) for name, model in names.items()}
            for name, answer in ask.items():
                decoder.reset(batch=1)
                decoder.adapt(name)
                assert answer.result()["choices"][0]["tokens"] == decoder.generate(prompt, 9, how)
                assert answer.result()["usage"]["prompt_tokens_details"]["cached_tokens"] == known
        assert client.complete(prompt, **options)["model"] == "g"
        other = client.complete(prompt, model="g", session_id="one", **options)
        assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        status, error = client.ask("/v1/completions", {"model": "g:thre", "prompt": [1]})
        assert (status, error["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("scheme", ["w4", "w8", "fp16", "int8"])
def test_a_quantized_graph_has_float_adapters(scheme: str, tmp_path: Path) -> None:
    made = small.checkpoint(CONFIGS["rotary_keep"])
    other = changed(made.model, 2)
    how = QuantizeConfig(scheme=scheme)
    export_quantized(made, tmp_path / "g.onnx", ExportConfig(), how, adapters={"two": lambda: other})
    tensors = onnx.load(tmp_path / "g.onnx").graph.initializer
    found = {tensor.data_type for tensor in tensors if tensor.name.startswith("adapters.")}
    assert found <= {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16} and found
    decoder, ids = Decoder(tmp_path / "g.onnx"), small.ids(2, 7)
    decoder.reset(batch=2)
    decoder.adapt([None, "two"])
    received = decoder.prefill(ids.numpy())
    expected = [model(ids)[row, -1].detach().numpy() for row, model in enumerate((made.model, other))]
    assert np.abs(received - np.stack(expected)).max() < 0.3 * np.abs(expected[0] - expected[1]).max()


def test_wrong_names_and_numbers_are_refused(graph: Made, tmp_path: Path) -> None:
    decoder = graph[2].fork()
    decoder.reset(batch=2)
    with pytest.raises(UserError, match="an adapter of this graph: one, two; received 'tow'; did you mean two"):
        decoder.adapt(["one", "tow"])
    with pytest.raises(UserError, match="2 names of adapters, one per sequence"):
        decoder.adapt(["one"])
    states = decoder.state()
    with pytest.raises(UserError, match=r"numbers of adapters in 0 … 2 as the state adapter"):
        decoder.set_state({**states, "adapter": np.array([0, 3], np.int32)})
    with pytest.raises(UserError, match="an adapter of this graph"):
        Decoder(decoder.path, adapter="three")
    small.graph(tmp_path / "none.onnx")
    with pytest.raises(UserError, match="a graph with adapters; received 'one'; export it with --adapter NAME=PATH"):
        Decoder(tmp_path / "none.onnx", adapter="one")


@pytest.mark.parametrize("names", [[], ["one", "one"], ["-"], [3], ["x" * 65], ["one"] * 1025])
def test_malformed_names_are_refused(names: list[Any], graph: Made, tmp_path: Path) -> None:
    model = onnx.load(graph[2].path)
    next(entry for entry in model.metadata_props if entry.key == "t2r.adapters").value = json.dumps(names)
    onnx.save(model, tmp_path / "g.onnx")
    with pytest.raises(UserError, match="a bad value of adapters"):
        Decoder(tmp_path / "g.onnx")


FULL, BIAS, TABLE = "blocks.1.parts.0.o.weight", "blocks.0.parts.1.up.bias", "embedding.weight"


@pytest.mark.parametrize(
    "name, target, message",
    [
        (FULL, "portable", f"changes of low rank in the adapter a; received another one of {FULL}"),
        (BIAS, "portable", f"received another one of {BIAS}"),
        (TABLE, "portable", "adapters of products by a matrix; received one of head.weight; train it"),
        (FULL, "npu", "a target of any batch with adapters; received the target npu"),
    ],
)
def test_other_changes_are_refused(name: str, target: str, message: str, tmp_path: Path) -> None:
    made = small.checkpoint()
    weights = dict(made.model.state_dict())
    weights[name] = weights[name] + (torch.randn if name == FULL else torch.ones)(weights[name].shape)
    adapters = {"a": lambda: assemble(made.config, weights)}
    with pytest.raises(UserError, match=message):
        export(made, tmp_path / "g.onnx", ExportConfig(target=target), adapters=adapters)
    translator = small.checkpoint(TRANSLATORS["softmax"])
    with pytest.raises(UserError, match="a decoder alone, for adapters"):
        export(translator, tmp_path / "g.onnx", adapters={"a": lambda: translator.model})


def test_peft_and_adapters_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both forms on one model: export, and the comparison of each with the merged model."""
    base, peft, model, graph = (tmp_path / name for name in ("base", "peft", "m.pt", "g.onnx"))
    folders.write_llama(base)
    peft.mkdir()
    folders.write_lora(peft)
    run(capsys, "convert", base, model, "--mixer", "window:window=9")
    whole = load(model)
    save(tmp_path / "tuned.pt", changed(whole.model, 2, ("q", "down")), None, {})
    save_adapter(tmp_path / "own.adapter", load(tmp_path / "tuned.pt"), whole)
    own, other = (["--adapter", f"{name}"] for name in (f"own={tmp_path / 'own.adapter'}", f"peft={peft}"))
    run(capsys, "export", model, graph, *own, *other, "--base", base, code=2)  # an .adapter has one base
    for name, given in (("own", own), ("peft", [*other, "--base", base])):
        run(capsys, "export", model, graph, *given, "--prefill")
        out, _ = run(capsys, "verify", model, graph, "--steps", "5", *given)
        assert f"adapter {name}: split prefill against steps, states" in out
        _, err = run(capsys, "verify", model, graph, "--steps", "5")
        assert "adapters that were not compared: " in err
    wrong = ["--adapter", f"peft={tmp_path / 'tuned.pt'}"]
    assert "adapter peft: from the start, logits" in run(capsys, "verify", model, graph, *wrong, code=1)[0]
    tensors = load_file(peft / "adapter_model.safetensors")
    save_file({name: one[:, :-1].clone() for name, one in tensors.items()}, peft / "adapter_model.safetensors")
    for arguments, message in (
        (other, "a folder as the base of the adapter peft"),
        ([*other, "--base", base], "A and B of the rank 3"),
        ([*own, *own], "NAME=PATH for --adapter, with different names"),
        (["--adapter", f"x={tmp_path / 'no'}"], "a checkpoint at "),
        ([*own, "--base", tmp_path / "tuned.pt"], "the base of "),
        ([*own, "--format", "genai"], "no --adapter with --format genai"),
    ):
        assert message in run(capsys, "export", model, tmp_path / "no.onnx", *arguments, code=2)[1]
    assert not (tmp_path / "no.onnx").exists()


@pytest.mark.filterwarnings("ignore")  # of peft about transformers
def test_peft_of_a_student_in_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An adapter that peft makes of the student's folder gives the logits that peft does, with folded layers too."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    made = small.checkpoint(CONFIGS["none"])
    save(tmp_path / "s.pt", made.model, None, {})
    run(capsys, "save", tmp_path / "s.pt", tmp_path / "folder", "--as", "transformers")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", trust_remote_code=True)
    theirs = get_peft_model(whole, LoraConfig(r=1, lora_alpha=3, target_modules=r".*parts\.\d+\.(q|v|down)")).eval()
    for number, weight in enumerate(each for each in theirs.parameters() if each.requires_grad):
        torch.nn.init.normal_(weight, std=0.5, generator=torch.Generator().manual_seed(number))
    theirs.save_pretrained(tmp_path / "peft")
    given = ["--adapter", f"x={tmp_path / 'peft'}", "--base", tmp_path / "folder"]
    assert "layers 0-1: folded" in run(capsys, "export", tmp_path / "s.pt", tmp_path / "g.onnx", *given)[0]
    ids = small.ids(1, 9)
    with torch.no_grad():
        expected = theirs(input_ids=ids).logits[:, -1].numpy()
    np.testing.assert_allclose(Decoder(tmp_path / "g.onnx", adapter="x").prefill(ids.numpy()), expected, atol=1e-5)
    assert np.abs(Decoder(tmp_path / "g.onnx").prefill(ids.numpy()) - expected).max() > 0.1
