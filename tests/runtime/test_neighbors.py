"""kNN-LM: Khandelwal et al. 2019 (arXiv 1911.00172), eq. 2 and 3, against a definition in plain NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import small
import t2r_runtime
from small import GPT2, VOCABULARY, WIDTH
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.data.vocabulary import byte_tokenizer
from t2r_export.export import export
from t2r_export.quantize import export_quantized
from t2r_runtime import Datastore, Decoder, Retrieving, Sampling
from t2r_runtime.decode.score import score
from t2r_runtime.errors import UserError
from t2r_runtime.session import archive
from test_readme import ROOT, fenced

Array = NDArray[Any]
TEXT = [3, 5, 7, 11, 4, 3, 5, 7, 2, 9]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("knn") / "g.onnx"
    small.graph(out, GPT2, output_hidden=True, prefill=True, top_k=3)
    return out


def by_definition(logits: Array, hidden: Array, store: Datastore, k: int, share: float, temperature: float) -> Array:
    """p (vocabulary,) for one context."""
    p_lm = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum()
    entries = [(sum((a - b) ** 2 for a, b in zip(map(float, key), map(float, hidden), strict=True)), n)
               for n, key in enumerate(store.keys)]  # fmt: skip
    p_knn = np.zeros_like(p_lm)
    for distance, n in sorted(entries)[:k]:
        p_knn[store.tokens[n]] += np.exp(-distance / temperature)
    return share * p_knn / p_knn.sum() + (1 - share) * p_lm


@settings(max_examples=15)
@given(st.integers(1, 12), st.floats(0, 0.99), st.floats(0.5, 20), st.integers(0, 99))
def test_mixture_by_definition(path: Path, k: int, share: float, temperature: float, seed: int) -> None:
    decoder = Decoder(path)
    store = Datastore.of_text(decoder, TEXT)
    decoder.reset(batch=2)
    ids = small.ids(2, 4, seed).numpy()
    logits, hidden = decoder.with_hidden(ids)
    decoder.reset()
    found = Retrieving(decoder, store, k, share, temperature).prefill(ids)
    for row in range(2):
        expected = by_definition(logits[row], hidden[row], store, k, share, temperature)
        np.testing.assert_allclose(np.exp(found[row]), expected, rtol=2e-5, atol=1e-9)


def test_hidden_is_what_the_head_reads(path: Path) -> None:
    made, decoder = small.model(), Decoder(path)
    _, hidden = decoder.with_hidden(TEXT)
    rows = made.normed(made.rows(small.torch.tensor([TEXT]), made.init_state(1)), made.ops(1)).detach().numpy()
    assert hidden.shape == (1, WIDTH)
    np.testing.assert_allclose(hidden[0], rows[-1], atol=2e-4)
    store = Datastore.of_text(decoder, TEXT)
    np.testing.assert_allclose(store.keys, rows[:-1], atol=2e-4)
    assert store.tokens.tolist() == TEXT[1:]
    assert small.proof(small.checkpoint(), path, steps=20).passed


def test_a_stepper(path: Path) -> None:
    decoder = Decoder(path)
    store = Datastore.of_text(decoder, TEXT)
    plain, near = score(decoder, TEXT), score(Retrieving(decoder, store, 1, 0.9), TEXT)
    assert near.mean() > plain.mean()
    np.testing.assert_allclose(near, np.log(0.1 * np.exp(plain) + 0.9), atol=1e-5)  # each place is its own neighbour
    np.testing.assert_allclose(score(Retrieving(decoder, store, share=0), TEXT), plain, atol=1e-5)
    retrieving = Retrieving(decoder, store, 1, 0.99)
    decoder.reset()
    assert retrieving.generate(TEXT[:1], 4, Sampling(0, stop_tokens=())) == TEXT[1:5]
    decoder.reset()
    step = retrieving.step(3)
    decoder.reset()
    np.testing.assert_array_equal(retrieving.prefill([3]), step)
    decoder.reset()
    largest, tokens = retrieving.top_k([3])
    assert (largest == np.sort(step)[:, :-4:-1]).all() and (step[0, tokens[0]] == largest[0]).all()
    assert (retrieving.batch, retrieving.position, retrieving.history().tolist()) == (1, 1, [3])
    states = retrieving.state()
    retrieving.reset(2)
    retrieving.set_state(states, 1)
    assert retrieving.position == 1


class Reversed:
    """An index that finds the farthest entries, and one neighbour too few."""

    def __init__(self, keys: Array) -> None:
        self.keys = keys

    def search(self, queries: Array, k: int, /) -> tuple[Array, Array]:
        distances = ((queries[:, None] - self.keys) ** 2).sum(-1)
        places = np.argsort(-distances, 1)[:, :k]
        found = np.take_along_axis(distances, places, 1)
        places[:, -1], found[:, -1] = -1, 0
        return found, places


def test_an_index_is_asked(path: Path) -> None:
    decoder = Decoder(path)
    store = Datastore.of_text(decoder, TEXT)
    indexed = Datastore(store.keys, store.tokens, store.checkpoint_sha256, Reversed(store.keys))
    distances, tokens = indexed.search(store.keys[:1], 2)
    far = ((store.keys - store.keys[0]) ** 2).sum(1)
    assert tokens[0, 0] == store.tokens[far.argmax()] and distances[0].tolist() == [pytest.approx(far.max()), np.inf]
    decoder.reset()
    found = np.exp(Retrieving(decoder, indexed, 2, 0.5).prefill(TEXT[:1])[0])
    assert found[tokens[0, 0]] >= 0.5 and found.sum() == pytest.approx(1)
    decoder.reset()
    none = Retrieving(decoder, indexed, 1, 0.5).prefill(TEXT[:1])[0]  # the only neighbour is missing
    decoder.reset()
    np.testing.assert_allclose(none, Retrieving(decoder, store, 1, 0.0).prefill(TEXT[:1])[0])


def test_faiss(path: Path, tmp_path: Path) -> None:
    """The extra `retrieval`: distances belong to their tokens, and missing neighbours are ignored."""
    faiss, random = pytest.importorskip("faiss"), np.random.default_rng(7)
    keys, tokens = random.normal(size=(300, 9)).astype(np.float32), random.permutation(300)
    Datastore(keys, tokens, "").save(tmp_path / "s.npz")
    exact, queries = Datastore.load(tmp_path / "s.npz"), random.normal(size=(5, 9)).astype(np.float32)
    for index in (faiss.IndexFlatL2(9), faiss.IndexHNSWFlat(9, 32)):
        index.add(exact.keys)
        distances, found = Datastore.load(tmp_path / "s.npz", index).search(queries, 4)
        places = np.argsort(tokens)[found]
        own = ((queries[:, np.newaxis].astype(float) - keys[places]) ** 2).sum(-1)
        np.testing.assert_allclose(distances, own, rtol=1e-5)
        np.testing.assert_array_equal(distances, np.sort(distances))
        if isinstance(index, faiss.IndexFlatL2):
            np.testing.assert_array_equal(found, exact.search(queries, 4)[1])
        own, itself = Datastore.load(tmp_path / "s.npz", index).search(keys[:40], 1)
        assert itself[:, 0].tolist() == tokens[:40].tolist() and not own.any()
    few = faiss.IndexHNSWFlat(9, 32)
    few.add(keys[:2])
    distances, _ = Datastore(keys, tokens, "", few).search(queries, 3)
    assert (np.isinf(distances) == [False, False, True]).all()
    decoder = Decoder(path)
    store = Datastore.of_text(decoder, TEXT)
    index = faiss.IndexHNSWFlat(WIDTH, 8)
    index.add(store.keys)
    rows = []
    for one in (None, index):
        decoder.reset()
        found = Datastore(store.keys, store.tokens, store.checkpoint_sha256, one)
        rows.append(Retrieving(decoder, found, 3).prefill([3, 5]))
    np.testing.assert_allclose(*rows, atol=1e-4)


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 50), st.integers(0, 99))
def test_search_is_exact(count: int, size: int, k: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    keys = random.integers(-2, 3, (count, size)).astype(np.float32)  # with many equal distances
    store, queries = Datastore(keys, np.arange(count), ""), random.normal(size=(3, size)).astype(np.float32)
    queries[0] = 0
    distances, tokens = store.search(queries, k)
    for query, found, places in zip(queries.astype(float), distances, tokens, strict=True):
        expected = sorted((float(((key - query) ** 2).sum()), n) for n, key in enumerate(keys.astype(float)))[:k]
        np.testing.assert_allclose(found, [d for d, _ in expected], rtol=1e-5)
        if not query.any():
            assert places.tolist() == [n for _, n in expected]


def test_saved_and_joined(path: Path, tmp_path: Path) -> None:
    decoder = Decoder(path)
    store = Datastore.of_text(decoder, TEXT)
    store.save(tmp_path / "s.npz")
    loaded = Datastore.load(tmp_path / "s.npz")
    np.testing.assert_array_equal(loaded.keys, store.keys)
    np.testing.assert_array_equal(loaded.tokens, store.tokens)
    assert loaded.checkpoint_sha256 == decoder.signature.checkpoint_sha256
    both = store + Datastore.of_text(decoder, TEXT[::-1])
    assert both.tokens.tolist() == [*TEXT[1:], *TEXT[:-1][::-1]]
    bytes_of = (tmp_path / "s.npz").read_bytes()
    for damaged in (b"", b"no zip", bytes_of[: len(bytes_of) // 2]):
        (tmp_path / "bad.npz").write_bytes(damaged)
        with pytest.raises(UserError, match="a datastore at"):
            Datastore.load(tmp_path / "bad.npz")
    store.save(tmp_path / "s.npz")  # a datastore is replaced
    with pytest.raises(UserError, match="expected a datastore or no file at .*bad.npz; received another file"):
        store.save(tmp_path / "bad.npz")
    np.savez_compressed(tmp_path / "small.npz", keys=store.keys, tokens=store.tokens)
    archive.write(tmp_path / "other.npz", {"datastore": 1}, {"keys": np.zeros(3)}, "datastore")
    archive.write(tmp_path / "newer.npz", {"datastore": 2}, {"keys": store.keys, "tokens": store.tokens}, "datastore")
    for name in ("small.npz", "other.npz", "newer.npz"):
        with pytest.raises(UserError, match="a datastore at"):
            Datastore.load(tmp_path / name)
    with pytest.raises(UserError, match="write"):
        store.save(tmp_path / "no" / "s.npz")


def test_refused(path: Path, tmp_path: Path) -> None:
    decoder = Decoder(path)
    store = Datastore.of_text(decoder, TEXT)
    small.graph(tmp_path / "plain.onnx", GPT2)
    plain = Decoder(tmp_path / "plain.onnx")
    for call, message in [
        (lambda: plain.with_hidden([1]), "a graph with the output hidden"),
        (lambda: Datastore.of_text(plain, TEXT), "a graph with the output hidden"),
        (lambda: Retrieving(plain, store), "a datastore of this graph's model"),
        (lambda: Retrieving(decoder, Datastore(store.keys, store.tokens, "x")), "a datastore of this graph's model"),
        (lambda: Retrieving(decoder, store, 0), "k of at least 1"),
        (lambda: Retrieving(decoder, store, 1, 1.0), "a share from 0"),
        (lambda: Retrieving(decoder, store, 1, 0.5, 0), "a temperature above 0"),
        (
            lambda: Retrieving(decoder, Datastore(store.keys, store.tokens + VOCABULARY, store.checkpoint_sha256)),
            "tokens",
        ),
        (lambda: Datastore.of_text(decoder, [1]), "at least 2 tokens"),
        (lambda: Datastore(np.zeros((2, 3)), [1], ""), r"keys \(N, D\) and tokens \(N,\)"),
        (lambda: store + Datastore(store.keys, store.tokens, "x"), "datastores of one model"),
        (lambda: Datastore("keys", [1], ""), "numbers as keys"),  # type: ignore[arg-type]
        (lambda: Datastore([[1.0]], None, ""), "numbers as tokens"),  # type: ignore[arg-type]
        (lambda: Datastore([[1.0]], [0.5], ""), "numbers as tokens"),
        (lambda: Datastore([[1.0]], [1], 2), "a string as checkpoint_sha256"),  # type: ignore[arg-type]
        (lambda: Decoder(path, companions=[0]), "roles of companions"),  # type: ignore[list-item]
    ]:
        with pytest.raises(UserError, match=message):
            call()


def test_another_hidden_state_is_seen(tmp_path: Path) -> None:
    """A graph that outputs the hidden state before the last norm."""
    made, _ = small.graph(tmp_path / "g.onnx", GPT2, output_hidden=True)
    graph = onnx.load(tmp_path / "g.onnx")
    (norm,) = [node for node in graph.graph.node if "hidden" in node.output]
    for node in graph.graph.node:
        for names in (node.input, node.output):
            names[:] = ["normed" if name == "hidden" else name for name in names]
    graph.graph.node.append(onnx.helper.make_node("Identity", [norm.input[0]], ["hidden"]))
    onnx.save(graph, tmp_path / "g.onnx")
    report = small.proof(made, tmp_path / "g.onnx", steps=5)
    assert [check.name for check in report.checks if not check.passed] == ["hidden, relative, states"]


@pytest.mark.parametrize("options", [{"target": "fused"}, {"draft_check": True, "batch": None}])
def test_other_graphs(options: dict[str, Any], tmp_path: Path) -> None:
    made, report = small.graph(tmp_path / "g.onnx", GPT2, output_hidden=True, **options)
    assert report.signature.hidden_size == WIDTH
    assert small.proof(made, tmp_path / "g.onnx", steps=10).passed


def test_quantized_graphs_share_a_datastore(path: Path, tmp_path: Path) -> None:
    store = Datastore.of_text(Decoder(path), TEXT)
    export_quantized(
        small.checkpoint(), tmp_path / "q.onnx", ExportConfig(output_hidden=True), QuantizeConfig(scheme="w8")
    )
    near = score(Retrieving(Decoder(tmp_path / "q.onnx"), store, 1, 0.9), TEXT)
    assert near.mean() > np.log(0.8)


def test_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = small.checkpoint(small.dataclasses.replace(GPT2, vocab_size=256, bos_token=None, eos_tokens=()))
    words = small.dataclasses.replace(model, tokenizer=byte_tokenizer())
    export(words, "model.onnx", ExportConfig(prefill=True, output_hidden=True))
    Path("text.txt").write_text("The key is under the mat.", encoding="utf-8")
    Path("other.txt").write_text("The mat is under the key.", encoding="utf-8")
    names: dict[str, Any] = {}
    program, gated = fenced((ROOT / "docs" / "retrieval.md").read_text(encoding="utf-8"), "python")
    exec(program, names)
    assert len(names["ids"]) == 8
    exec(gated, names)
    assert names["retrieving"].share.weight.shape == (WIDTH,)
    assert t2r_runtime.Datastore is Datastore
