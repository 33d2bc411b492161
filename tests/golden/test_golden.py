"""models/tiny is what its command writes, no case is trivial, and expected results are those of the models."""

from __future__ import annotations

import dataclasses
import json
import re
import unicodedata
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tokenizers import normalizers

from golden import choices, files, history, texts, translator
from golden.calls import zip64
from golden.charsmap import charsmap
from golden.models import MODELS, checkpoint
from golden.traces import BATCH, QUANTIZED, STEPS
from t2r_export.verify import verify
from t2r_runtime import Beam, Sampler, Sampling, Tokenizer, Translator
from t2r_runtime.contract.options import DECODER, TRANSLATOR
from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import KINDS
from t2r_runtime.session.states import States
from t2r_runtime.translate.copies import Copies

TINY = Path(__file__).parents[2] / "models" / "tiny"
MOST = 2_450_000  # bytes
Case = dict[str, Any]
PENALTIES = {"repetition_penalty", "no_repeat_ngram"}
HASH = re.compile(r"\.[0-9a-f]{12}\.")


def cases(kind: str) -> dict[str, Case]:
    index = json.loads((TINY / files.INDEX).read_text())
    return {c["case"]: json.loads((TINY / c["file"]).read_text()) for c in index["cases"] if c["kind"] == kind}


def array(entry: dict[str, Any]) -> np.ndarray:
    return np.array(entry["data"]).reshape(entry["shape"])


def assert_close(received: Any, expected: Any, bound: float, path: str = "case") -> None:
    """The same structure and texts, integers equal, others within `bound`."""
    if isinstance(expected, dict):
        assert received.keys() == expected.keys(), path
        for key, value in expected.items():
            assert_close(received[key], value, bound, f"{path}.{key}")
    elif isinstance(expected, list) and any(isinstance(x, float) for x in expected):
        np.testing.assert_allclose(received, expected, rtol=bound, atol=bound, err_msg=path)
    else:
        assert received == expected, path


def without_version(path: Path) -> onnx.ModelProto:
    """A graph without the version of the program that wrote it, and without hashes in names."""
    model = onnx.load(path)
    model.producer_version = ""
    metadata = {p.key: HASH.sub(".", p.value) for p in model.metadata_props if p.key != "t2r.producer"}
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, metadata)
    return model


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    files.write(folder)
    return folder


@pytest.mark.slow
def test_made_again_it_is_the_same(again: Path) -> None:
    """All files are equal; int8 results, which differ between machines, are within their tolerance."""
    made, there = (
        {HASH.sub(".", str(path.relative_to(folder))): path for path in folder.rglob("*") if path.is_file()}
        for folder in (again, TINY)
    )
    assert made.keys() == there.keys() - {"README.md"}
    for name, path in made.items():
        if path.suffix == ".onnx" and path.parent != again:
            continue  # the conformance program checks faulty graphs
        if path.suffix == ".onnx":
            assert without_version(path) == without_version(there[name]), name
        elif path.suffix == ".json":
            bound = QUANTIZED["int8"].logits if path.stem == "int8" else 1e-5
            assert_close(json.loads(path.read_text()), json.loads(there[name].read_text()), bound, name)
        else:
            assert path.read_bytes() == there[name].read_bytes(), name


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in TINY.rglob("*") if path.is_file()) <= MOST


def signature(name: str) -> Signature:
    return Signature.from_metadata({p.key: p.value for p in onnx.load(TINY / f"{name}.onnx").metadata_props})


@pytest.mark.parametrize("name", MODELS)
def test_a_trace_is_not_trivial(name: str) -> None:
    trace = cases("trace")[name]
    assert array(trace["logits"]).shape == (BATCH, STEPS, 17)
    assert all((array(value) != 0).all() for value in trace["start"].values())
    positions = trace["start"].get("position", {"data": range(BATCH)})["data"]
    assert len(set(positions)) == BATCH
    assert len(set(trace.get("greedy", {"tokens": range(3)})["tokens"])) >= 3


def test_every_kind_of_graph_is_there() -> None:
    made = {name: signature(name) for name in MODELS}
    assert any(s.grows for s in made["tiny-hybrid"].states)
    assert {layer["parts"][0]["fold"].split(":")[0] for layer in made["tiny-hybrid"].layers} == {"folded", "not folded"}
    assert {layer["parts"][0]["inside"]["kind"] for layer in made["window"].layers} == {"window", "linear"}
    assert all(layer["parts"][0]["inside"]["update_rule"] == "gated" for layer in made["gated"].layers)
    assert made["packed"].state_layout == "packed"
    assert made["top3"].top_k == 3
    assert set(made["prefill"].graphs) == {"prefill"}
    assert {made[name].quantization for name in ("int8", "w8", "w4")} == {"int8", "w8", "w4"}
    assert made["ends"].batch == BATCH
    assert set(made["options"].generation or ()) == set(DECODER)
    assert set(signature("translator-options").generation or ()) == {*TRANSLATOR} - PENALTIES
    assert made["ends"].reach == 40


@pytest.mark.parametrize("name", [name for name, golden in MODELS.items() if golden.quantized is None])
def test_the_graph_is_the_model(name: str) -> None:
    proof = verify(checkpoint(name), TINY / f"{name}.onnx", steps=32)
    assert proof.passed, proof
    assert proof.same_checkpoint


def test_the_sampled_givenare_of_every_option() -> None:
    texts = [text for case in cases("sampling").values() for text in case["texts"]]
    given = {key for text in texts for key in text["options"]}
    assert given == {*choices.OPTIONS[9], *choices.OPTIONS[13], *choices.OPTIONS[16], "seed"}
    assert max(text["options"].get("seed", 0) for text in texts) >= choices.WORD
    assert sum(text["tokens"][-1] == 2 for text in texts) >= 3, "ends by a stop token"


def test_the_rules_written_out_are_the_sampler() -> None:
    """Random logits, and a text that penalties see."""
    random = np.random.default_rng(3)
    for options in (o for o in choices.OPTIONS * 20):
        logits, text = random.normal(0, 2, 23), random.integers(0, 23, 9)
        rules = {key: value for key, value in options.items() if key != "stop_tokens"}
        seed = int(random.integers(0, 1 << 62))
        sampler = Sampler(Sampling(**rules, seed=seed))
        sampler.draws = draw = int(random.integers(0, 1000))
        wanted, margin = choices.choose(logits.tolist(), text.tolist(), draw, **rules, seed=seed)
        assert sampler.pick(logits, text=text) == wanted or margin < 1e-9


@pytest.mark.parametrize("name", texts.TOKENIZERS)
def test_givenare_many_and_of_all_kinds(name: str) -> None:
    [case] = [case for case in cases("tokenizer").values() if case["graph"] == f"{name}.onnx"]
    found = [text for text, _, _ in case["texts"]]
    assert len(set(found)) == texts.TEXTS
    assert {unicodedata.category(c) for text in found for c in text} >= {"Lu", "Ll", "Lo", "Mn", "Nd", "Zs", "So", "Cf"}
    used = {token for _, tokens, _ in case["texts"] for token in tokens}
    assert len(used) >= 0.4 * signature(name).vocab_size


@pytest.mark.parametrize("name", texts.TOKENIZERS)
def test_pieces_are_the_text(name: str) -> None:
    [case] = [case for case in cases("stream").values() if case["graph"] == f"{name}.onnx"]
    tokenizer = Tokenizer.of(signature(name))
    for text in case["texts"]:
        before, whole = (tokenizer.decode([*text["prompt"], *more]) for more in ([], text["tokens"]))
        assert before + "".join(text["pieces"]) + text["end"] == whole
    assert any("" in text["pieces"][1:] for text in case["texts"]), "a piece waits for the next"


def test_a_compiled_charsmap_is_its_rules() -> None:
    rules = {"a": "b", "é": "e", "\u0301": "", "😀": "smile", "y": "y" * 20}
    normalizer = normalizers.Precompiled(charsmap(rules))
    for text, to in {**rules, "q": "q", "q😀é": "qsmilee"}.items():
        assert normalizer.normalize_str(text) == to


def test_rows_are_dropped_repeated_and_reordered() -> None:
    for case in (case for name, case in cases("calls").items() if name.startswith("batch-")):
        orders = [operation["reorder"] for operation in case["operations"] if "reorder" in operation]
        assert any(len(set(order)) < len(order) for order in orders)
        assert any(order != sorted(order) for order in orders)
        assert len(orders[-1]) == 1


# kinds of errors that the machine or another thread causes
OF_NO_FILE = {"provider", "state", "memory", "cancelled"}


def test_there_is_every_kind_of_error_that_golden_files_can_cause() -> None:
    [case] = cases("bad").values()
    files = Counter(file["kind"] for file in case["files"])
    calls = [call for case in cases("calls").values() for call in case["operations"] if "error" in call]
    assert {*files, *(call["error"] for call in calls)} == {*KINDS} - OF_NO_FILE
    assert len({file["file"] for file in case["files"]}) >= 60
    assert sum((TINY / file["file"]).exists() for file in case["files"]) == len(case["files"]) - files["file"] + 1


def test_every_option_is_refused_out_of_range() -> None:
    refused = [call["options"] for call in cases("calls")["calls-options"]["operations"] if call.get("options")]
    assert {key for options in refused for key in options} == {*DECODER, "seed", "stop_tokens"}


def test_the_numbers_of_a_zip64_directory_stand_elsewhere() -> None:
    """The same states in the same order, which Python's reader accepts."""
    with zipfile.ZipFile(TINY / "tiny.state") as plain, zipfile.ZipFile(TINY / "zip64.state") as other:
        assert {n: plain.read(n) for n in plain.namelist()} == {n: other.read(n) for n in other.namelist()}
    assert zip64((TINY / "tiny.state").read_bytes()) == (TINY / "zip64.state").read_bytes()


def test_the_history_is_longer_than_what_penalties_look_back_on() -> None:
    [text] = cases("sampling")["sampling-history"]["texts"]
    forgotten, kept, *filling = text["prompt"]
    assert len(text["prompt"]) == history.LOOKED_BACK_ON + 1
    assert text["tokens"] == [forgotten, kept] and not {forgotten, kept} & set(filling)


def test_searches_are_of_every_option() -> None:
    case, _, starts, copies = cases("translator").values()
    options = {key for each in (case, starts, copies) for search in each["searches"] for key in search["beam"]}
    assert options == {f.name for f in dataclasses.fields(Beam)}
    assert len({len(source) for source in starts["sources"]}) == 2
    assert "S.0" in starts["states"], "a state that starts from the source"
    assert set(signature("translator").graphs) == {"encoder"}
    assert len({len(search["source"]) for search in case["searches"]}) > 1


@pytest.mark.parametrize("width", [1, 3])
def test_sources_with_nothing_to_copy_cost_the_same(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without numbers and names, a search with `copy` runs the same steps and reads no letter."""
    steps: list[tuple[list[int], tuple[str, ...]]] = []
    read: list[int] = []
    step, advance = States.step, Copies.advance
    monkeypatch.setattr(
        States, "step", lambda self, ids, wanted: steps.append((ids.tolist(), wanted)) or step(self, ids, wanted)
    )
    monkeypatch.setattr(
        Copies, "advance", lambda self, states, token: read.append(token) or advance(self, states, token)
    )
    opened, counted = Translator(TINY / "translator-copies.onnx"), []
    for given, copy in ((("no pop.", "on"), True), (("no pop.", "on"), False), (("no pop.", "12"), True)):
        sources = [[translator.SOURCE_LETTERS.index(letter) for letter in text] for text in given]
        steps.clear()
        read.clear()
        found = [best[0].tokens for best in opened.translate(sources, Beam(width, max_tokens=9, copy=copy))]
        counted.append((found, list(steps), len(read)))
    assert counted[0] == counted[1] and counted[0][2] == 0
    assert counted[2][2] > 0


def test_searches_copy() -> None:
    """Without `copy`, most searches that have it have another translation."""
    opened, changed = Translator(TINY / "translator-copies.onnx"), list[bool]()
    for search in cases("translator")["translator-copies"]["searches"]:
        plain = next(opened.translate([search["source"]], Beam(**{**search["beam"], "copy": False})))
        same = [one.tokens for one in plain] == [one["tokens"] for one in search["translations"]]
        assert same or search["beam"].get("copy") is not False
        changed.append(not same)
    assert sum(changed) >= 0.8 * len(changed)
