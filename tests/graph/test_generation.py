"""A generation graph equals its step graph with the runtime's sampling, token for token and state for state."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import small
from runtime import graphs
from small import VOCABULARY
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.generation import generation_graph
from t2r_export.quantize import quantize
from t2r_runtime import Decoder, Sampler, Sampling
from t2r_runtime.contract.state_spec import StateSpec
from t2r_runtime.decode.generate import Request
from t2r_runtime.decode.history import RECENT, History
from t2r_runtime.errors import UserError
from t2r_runtime.session.interface import generation_feeds
from t2r_runtime.session.states import States
from t2r_runtime.session.stepper import TokenIds

NAMES = ("learned", "rotary_keep", "rotary_drop", "window_rotary", "lstm", "mixed")
RULES: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1.5, "seed": 3},
    {"temperature": 0.7, "top_k": 4, "seed": 2**32 - 1},
    {"temperature": 2, "top_k": VOCABULARY + 5, "seed": 2**70 + 1},  # a seed above 64 bits, and top_k above all tokens
    {"temperature": 1e-300, "seed": 1},
    {"temperature": 3, "top_k": 1, "top_p": 0.1},
    {"temperature": 2, "top_p": 0.6, "seed": 3},
    {"temperature": 1.5, "top_k": 5, "top_p": 0.8, "seed": 4},
    {"temperature": 2, "top_p": 1e-9, "seed": 5},
    {"temperature": 1.5, "top_p": 1 - 1e-12, "seed": 3},  # keeps all tokens, but sorts them
    {"temperature": 0, "repetition_penalty": 1.5},
    {"temperature": 0, "no_repeat_ngram": 2},
    {"temperature": 2, "min_p": 0.2, "repetition_penalty": 0.7, "no_repeat_ngram": 1, "top_k": 9, "seed": 6},
)
COUNT = 25


pytestmark = pytest.mark.usefixtures("newest_opset")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loop") / "g.onnx"
    small.graph(path, "rotary_drop", generate=True, target="fused")
    return path


def start(name: str, path: Path) -> dict[str, np.ndarray]:
    """Random states of one sequence, in this graph's layout."""
    states = small.arrays(small.states(small.model(name), batch=1))
    if Decoder(path, threads=1, companions=()).signature.state_layout == "packed":
        kinds = dict.fromkeys(key.split(".")[0] for key in states)
        rows = {kind: [v for k, v in states.items() if k.startswith(f"{kind}.")] for kind in kinds}
        states = {kind: np.stack(rows[kind], 1) if rows[kind] else states[kind] for kind in kinds}
    return states


def written(
    path: Path, states: dict[str, np.ndarray], loop: bool, count: int = COUNT, **rules: Any
) -> tuple[list[int], Decoder]:
    decoder = Decoder(path, threads=1, companions=["generate"] if loop else ())  # prefill rounds differently
    decoder.set_state(states)
    return decoder.generate([5, 1], count, Sampling(**{"stop_tokens": (), **rules})), decoder


def assert_same(
    path: Path, states: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch, tolerance: float = 0, **rules: Any
) -> list[int]:
    """Assert that one run of the loop equals the steps to the last bit: tokens, states and position."""
    expected, stepped = written(path, states, loop=False, **rules)
    with monkeypatch.context() as patched:
        right = States._run
        runs: list[int] = []
        patched.setattr(States, "_run", lambda *given: runs.append(given[3]) or right(*given))
        received, looped = written(path, states, loop=True, **rules)
    assert runs == [1], "the prompt's first token, and no other, goes through the step graph"
    assert received == expected
    assert looped.position == stepped.position
    for name, value in stepped.state().items():
        np.testing.assert_allclose(looped.state()[name], value, tolerance, tolerance, err_msg=name)
    return received


@pytest.mark.parametrize("target", ["portable", "fused", "standard"])
@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_its_steps(name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.graph(tmp_path / "g.onnx", name, target=target, generate=True)
    states = start(name, tmp_path / "g.onnx")
    texts = [assert_same(tmp_path / "g.onnx", states, monkeypatch, **rules) for rules in RULES]
    assert texts[0] == texts[4] == texts[5] == texts[8], "greedy, all four"
    assert texts[1] == texts[9]
    assert len({tuple(text) for text in texts[:10]}) == 6
    assert len({tuple(text) for text in texts[10:]} | {tuple(texts[0])}) == 4
    pairs = list(zip([5, 1, *texts[11]], [1, *texts[11]], strict=False))
    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("options", [{"batch": 1}, {"state_layout": "packed"}, {"top_k": 3}, {"float16_safe": True}])
def test_other_forms_of_the_step(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.graph(tmp_path / "g.onnx", "rotary_keep", generate=True, **options)
    states = start("rotary_keep", tmp_path / "g.onnx")
    if options.get("float16_safe"):
        states |= {name: 0 * states[name.replace("_low", "")] for name in ("S_low.0", "z_low.0", "S_low.1", "z_low.1")}
    assert_same(tmp_path / "g.onnx", states, monkeypatch, temperature=1, seed=1)


@pytest.mark.parametrize("scheme", ["fp16", "int8", "w8", "w4"])
@pytest.mark.parametrize("target", ["portable", "fused"])
def test_quantized(target: str, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of a quantized step shares its file of weights, with or without a prefill graph."""
    prefill = target == "fused"
    small.graph(tmp_path / "g.onnx", "rotary_keep", target=target, generate=True, prefill=prefill)
    report = quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", QuantizeConfig(scheme=scheme))
    kinds = [".onnx", ".data", *([".prefill.onnx"] if prefill and scheme != "int8" else []), ".generate.onnx"]
    assert [file.name.endswith(kind) for file, kind in zip(report.files, kinds, strict=True)] == [True] * len(kinds)
    step, loop = (onnx.load(report.files[i], load_external_data=False) for i in (0, -1))
    held = [{t.name: t.SerializeToString() for t in g.graph.initializer if t.external_data} for g in (step, loop)]
    assert held[0] == held[1] != {}
    assert "quantization_options" in str(loop.metadata_props)
    # inside a loop ONNX Runtime removes other casts to float16 and back
    tolerance = 1e-4 if scheme == "fp16" else 0
    for rules in RULES[:3]:
        assert_same(tmp_path / "q.onnx", start("rotary_keep", tmp_path / "g.onnx"), monkeypatch, tolerance, **rules)


def request(token: int, sampler: Sampler, count: int) -> Request:
    """`count` tokens after `token`, without stop tokens."""
    return Request(TokenIds(np.array([[token]])), count, frozenset(), sampler, np.zeros(0, np.int64))


@settings(max_examples=20)
@given(data=st.data())
def test_any_split(made: Path, data: st.DataObject) -> None:
    """Two runs equal one if the second starts from the first's states, last token and number of draws."""
    first = data.draw(st.integers(0, COUNT))
    rules = data.draw(st.sampled_from([*RULES[:3], *RULES[-3:]]))
    decoder = Decoder(made, threads=1)

    def run(counts: tuple[int, ...]) -> tuple[list[int], dict[str, np.ndarray], int]:
        sampler, tokens = Sampler(Sampling(**rules)), [7]
        decoder.set_state(start("rotary_drop", made))
        for count in counts:
            tokens += decoder._generate_in_graph(request(tokens[-1], sampler, count))
        return tokens, decoder.state(), decoder.position

    one, two = run((COUNT,)), run((first, COUNT - first))
    assert one[0] == two[0]
    assert len(one[0]) == COUNT + 1
    assert one[2] == two[2]
    for name, value in one[1].items():
        np.testing.assert_array_equal(two[1][name], value)


def test_stop_tokens_and_lengths(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = start("rotary_drop", made)
    rules = {"temperature": 2, "seed": 5}
    whole = assert_same(made, states, monkeypatch, **rules)
    assert len(set(whole)) > 8
    for stop in sorted(set(whole)):
        text = assert_same(made, states, monkeypatch, **rules, stop_tokens=[stop, 16 - stop])
        end = min(whole.index(token) for token in {stop, 16 - stop} if token in whole)
        assert text == whole[: end + 1]
    assert assert_same(made, states, monkeypatch, **rules, count=1) == whole[:1]
    ends = assert_same(made, states, monkeypatch, **rules, stop_tokens=None)  # the graph's own
    assert ends == whole[: whole.index(2) + 1] if 2 in whole else whole


def test_no_token_is_no_change(made: Path) -> None:
    decoder = Decoder(made, threads=1)
    states = start("rotary_drop", made)
    decoder.set_state(states)
    before = decoder.position
    assert decoder._generate_in_graph(request(3, Sampler(Sampling(seed=1)), 0)) == []
    assert decoder.position == before
    for name, value in decoder.state().items():
        np.testing.assert_array_equal(value, states[name])


def test_what_a_loop_cannot_show(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(States, "generate", None)  # no token may go through the loop
    decoder = Decoder(made, threads=1)
    seen: list[int] = []
    assert decoder.generate([1], 5, Sampling(stop_tokens=()), seen.append) == seen


@pytest.fixture(scope="module")
def chooser() -> ort.InferenceSession:
    """A loop around a step whose logits are a constant state."""
    row = f"float[B,{VOCABULARY}]"
    step = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        step (int64[B] input_ids, {row} past_row) => ({row} logits, {row} present_row) {{
            logits = Identity(past_row)
            present_row = Identity(past_row)
        }}""")
    signature = graphs.signature(states=(StateSpec("row", "float32", ("B", VOCABULARY)),), vocab_size=VOCABULARY)
    return ort.InferenceSession(generation_graph(step, signature).SerializeToString())


tokens = st.integers(0, VOCABULARY - 1)


@settings(max_examples=400)
@given(
    st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.25, 0.5, 2.0, -np.inf]), min_size=VOCABULARY, max_size=VOCABULARY),
    st.floats(0.01, 1),
    st.integers(0, VOCABULARY),
    st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
    st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    st.sampled_from([1.0, 0.5, 1.3, 100.0]),
    st.sampled_from([0, 0, 1, 2, 3, 64]),
    st.lists(tokens, max_size=40),
    st.integers(0, 2**32 - 1),
)
def test_any_choice(
    chooser: ort.InferenceSession,
    logits: list[float],
    top_p: float,
    top_k: int,
    min_p: float,
    temperature: float,
    penalty: float,
    ngram: int,
    occurred: list[int],
    seed: int,
) -> None:
    """The choice alone over several draws, with equal logits and -inf, and any preceding tokens."""
    row = np.array([*logits[1:], 1.0], np.float32)
    rules = Sampling(temperature, top_k, top_p, seed, min_p=min_p, repetition_penalty=penalty, no_repeat_ngram=ngram)
    sampler, text = Sampler(rules), [*occurred, 0]
    feeds = generation_feeds(sampler, 8, (), occurred)
    written, _ = chooser.run(None, {"input_ids": np.array([0]), "past_row": row[None], **feeds})
    for token in written.tolist():
        assert token == sampler.pick(row, text=text)
        text.append(token)
    assert len(text) == len(occurred) + 9


@pytest.mark.parametrize("before, expected", [(RECENT - 2, 0), (RECENT - 1, 5)])
def test_what_occurred_long_ago_is_forgotten(chooser: ort.InferenceSession, before: int, expected: int) -> None:
    row = np.full(VOCABULARY, -1, np.float32)
    row[5] = -0.5  # the largest, unless it is among the last `RECENT` tokens
    sampler, occurred = Sampler(Sampling(temperature=0, repetition_penalty=100)), [5, *[4] * before]
    feeds = generation_feeds(sampler, 2, (), occurred)
    written, _ = chooser.run(None, {"input_ids": np.array([3]), "past_row": row[None], **feeds})
    history = History(1)
    history.add(np.array([[*occurred, 3]]))
    assert written.tolist()[0] == sampler.pick(row, text=history.of(0)) == expected
    assert written.tolist()[1] == (0 if expected == 5 else 5), "now the other way round"


def test_logits_that_are_not_finite(made: Path) -> None:
    states = start("rotary_drop", made)
    for bad in (np.nan, np.inf):
        for temperature in (0, 1):
            decoder = Decoder(made, threads=1)
            decoder.set_state({**states, "S.1": np.full_like(states["S.1"], bad)})
            with pytest.raises(UserError, match="expected finite logits; received NaN or infinity after 4"):
                decoder.generate([1], 5, Sampling(temperature, stop_tokens=()))


def test_what_lies_beside_the_step_graph(tmp_path: Path) -> None:
    """All three graphs share one file of weights, and the loop holds no more than a few numbers."""
    _, report = small.graph(tmp_path / "g.onnx", "rotary_keep", prefill=True, generate=True)
    step, data, *others = report.files
    assert {step, data, *others} == set(tmp_path.iterdir())
    assert {file.name for file in others} == set(report.signature.graphs.values())
    places, metadata, sizes = [], [], []
    for path in (step, *others):
        model = onnx.load(path, load_external_data=False)
        onnx.checker.check_model(str(path), full_check=True)
        places.append({t.name: t.SerializeToString() for t in model.graph.initializer if t.external_data})
        metadata.append({entry.key: json.loads(entry.value) for entry in model.metadata_props})
        sizes.append({t.name: t.ByteSize() for t in model.graph.initializer})
    same = [{name: held[name] for name in places[0]} for held in places]  # a prefill graph has separate masks
    assert same[0] == same[1] == same[2]
    index = 1 + [file.name for file in others].index(report.signature.graphs["generate"])
    assert sum(size for name, size in sizes[index].items() if name not in sizes[0]) < 1000
    loop = metadata[index]
    assert {key for key in loop if loop[key] != metadata[0][key]} == {"t2r.role", "t2r.graphs"}
    assert (loop["t2r.role"], loop["t2r.graphs"]) == ("generate", {})
    small.graph(step, "rotary_keep")
    assert [step] == list(tmp_path.iterdir())


def test_the_loop_needs_no_runtime_of_ours(made: Path) -> None:
    """Called as by an app, with names, dtypes and shapes of the contract."""
    signature = Decoder(made, companions=()).signature
    session = ort.InferenceSession(made.with_name(signature.graphs["generate"]))
    states = {s.past: np.full(s.dims(1), s.initial, s.dtype) for s in signature.states}
    numbers = {"max_tokens": 9, "top_k": 3, "seed": 11, "drawn": 0}
    given = {name: np.array(number) for name, number in numbers.items()} | states
    given |= {"input_ids": np.array([4]), "temperature": np.array(0.8), "stop_tokens": np.array([], np.int64)}
    given |= {"top_p": np.array(0.9), "min_p": np.array(0.05), "occurred": np.array([7, 4, 9])}
    given |= {"repetition_penalty": np.array(1.2), "no_repeat_ngram": np.array(3)}
    tokens, *_ = session.run(None, given)
    assert session.get_outputs()[0].name == "tokens"
    sampler = Sampler(Sampling(0.8, top_k=3, top_p=0.9, seed=11, min_p=0.05, repetition_penalty=1.2, no_repeat_ngram=3))
    decoder, text = Decoder(made, companions=()), [7, 4, 9, 4]
    for token in tokens.tolist():
        assert token == sampler.pick(decoder.step(text[-1])[0], text=text)
        text.append(token)
    assert len(text) == 4 + 9


def test_the_proof_sees_a_wrong_loop(tmp_path: Path) -> None:
    """A loop that does not update a state, and one with another choice."""
    checkpoint, report = small.graph(tmp_path / "g.onnx", "rotary_drop", generate=True)
    assert small.proof(checkpoint, tmp_path / "g.onnx", steps=3).passed
    place = tmp_path / report.signature.graphs["generate"]
    right = place.read_bytes()
    wrong = onnx.load_from_string(right)
    body = next(node for node in wrong.graph.node if node.op_type == "Loop").attribute[0].g
    kept = next(value for value in body.input if value.name == "loop.past_S.1")
    outputs = [value.name for value in body.output]
    body.node.append(onnx.helper.make_node("Identity", [kept.name], ["stuck"]))
    body.output[outputs.index("loop.present_S.1")].name = "stuck"
    assert failed(checkpoint, place, wrong) >= {"generation graph against steps, states"}
    wrong = onnx.load_from_string(right)
    for tensor in wrong.graph.initializer:
        if tensor.name == "golden":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(1), tensor.name))
    assert failed(checkpoint, place, wrong) >= {"generation graph against steps, other tokens"}


def failed(checkpoint: Any, place: Path, wrong: onnx.ModelProto) -> set[str]:
    place.write_bytes(wrong.SerializeToString())
    outcome = small.proof(checkpoint, place.with_name("g.onnx"), steps=3)
    return {check.name for check in outcome.checks if not check.passed}


@pytest.mark.parametrize(
    "config, options, message",
    [
        (
            "hybrid",
            {},
            "expected states of constant size for a generation graph (--generate); received a model whose k.1, v.1 "
            "grow with every token; export with --context, or convert all layers",
        ),
        (
            "none",
            {"batch": 2},
            "expected a generation graph of one text; received a batch of 2; leave out --batch or --generate",
        ),
        (
            "none",
            {"target": "npu"},
            "expected no generation graph with target npu: accelerators run no loops; received --generate; leave out "
            "--generate, or choose another --target",
        ),
    ],
)
def test_refused(config: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        small.graph(tmp_path / "g.onnx", config, generate=True, **options)
    assert str(caught.value) == message
    assert not list(tmp_path.iterdir())


def test_it_takes_a_step_with_its_weights(made: Path) -> None:
    signature = dataclasses.replace(Decoder(made, companions=()).signature, graphs={})
    model = generation_graph(onnx.load(made), signature)
    assert [len(x) for x in (model.graph.output, model.graph.input)] == [
        1 + len(signature.states),
        12 + len(signature.states),
    ]
