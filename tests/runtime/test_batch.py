"""Texts that enter and leave a batch equal those generated alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime import graphs
from runtime.conftest import Open
from runtime.graphs import GREEDY
from t2r_runtime import Batch, Decoder, Sampling, UserError
from t2r_runtime.session.states import States

RULES = (
    GREEDY,
    Sampling(temperature=2, seed=1, stop_tokens=()),
    Sampling(temperature=3, top_k=4, seed=2, stop_tokens=()),
    Sampling(temperature=3, top_p=0.8, seed=3, stop_tokens=()),
)
prompts = st.lists(st.integers(0, graphs.VOCABULARY - 1), min_size=1, max_size=6)
asked = st.fixed_dictionaries(
    {
        "ids": prompts,
        "max_tokens": st.integers(1, 7),
        "sampling": st.builds(replace, st.sampled_from(RULES), stop_tokens=st.sampled_from([(), (2, 5), None])),
    }
)


def alone(decoder: Decoder, wanted: dict[str, Any]) -> list[int]:
    decoder.reset()
    return decoder.generate(**wanted)


def states_alone(decoder: Decoder, read: list[int]) -> dict[str, np.ndarray]:
    decoder.reset()
    if read:
        decoder.prefill(read)
    return decoder.state()


def assert_close(received: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert received.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(received[name], value, rtol=1e-5, atol=1e-6)
        assert received[name].dtype == value.dtype


@settings(max_examples=60)
@given(kind=st.sampled_from(["constant", "silent"]), data=st.data())
def test_batch_add_and_remove_in_any_order(opened: Open, kind: str, data: st.DataObject) -> None:
    decoder = opened(kind)
    batch = Batch(decoder)
    wanted: dict[int, dict[str, Any]] = {}
    expected: dict[int, list[int]] = {}
    written: dict[int, list[int]] = {}
    for action in data.draw(st.lists(st.sampled_from(["add", "step", "step", "remove"]), max_size=20)):
        if action == "add":
            request = data.draw(asked)
            handle = batch.add(**request)
            assert handle == len(wanted)
            wanted[handle], expected[handle], written[handle] = request, alone(decoder, request), []
        elif action == "remove" and batch.sequences:
            handle = data.draw(st.sampled_from(batch.sequences))
            states = batch.remove(handle)
            assert_close(states, states_alone(decoder, [*wanted[handle]["ids"], *written[handle]][:-1]))
        else:
            going = batch.sequences
            tokens = batch.step()
            assert tuple(tokens) == going
            for handle, token in tokens.items():
                written[handle].append(token)
                assert written[handle] == expected[handle][: len(written[handle])]
                assert (handle in batch.sequences) == (len(written[handle]) < len(expected[handle]))
    left = batch.sequences
    for _ in range(7):
        for handle, token in batch.step().items():
            written[handle].append(token)
    assert batch.sequences == ()
    assert all(written[handle] == expected[handle] for handle in left)


def test_removed_text_continues_alone(opened: Open) -> None:
    decoder, batch = opened(), Batch(opened())
    whole = decoder.generate([3, 1, 4], 9, GREEDY)
    first, other = (batch.add(ids, 9, GREEDY) for ids in ([3, 1, 4], [1, 5]))
    written = [batch.step()[first] for _ in range(4)]
    decoder.set_state(batch.remove(first))
    assert written + decoder.generate(written[-1:], 5, GREEDY) == whole
    assert batch.sequences == (other,)


def test_batch_rows_move_on_change_only(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(opened())
    for ids in ([1], [2, 3]):
        batch.add(ids, 5, GREEDY)
    moved: list[int] = []
    right = States.take
    monkeypatch.setattr(
        States, "take", lambda self, parts: moved.append(sum(len(rows) for _, rows in parts)) or right(self, parts)
    )
    for _ in range(3):
        batch.step()
    batch.remove(0)
    batch.step()
    assert moved == [2, 1], "both, then the one that stays; what is handed out is a copy"


def test_batch_leaves_decoder_unchanged(opened: Open) -> None:
    decoder = opened()
    decoder.prefill([4, 2])
    before = decoder.state()
    batch = Batch(decoder)
    batch.add([1, 2, 3], 4, Sampling(temperature=0))
    batch.step()
    assert_close(decoder.state(), before)
    assert decoder.position == 2


def test_top_k_outputs_used(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only if all texts can use them."""
    requests = [{"ids": [n], "max_tokens": 4, "sampling": RULES[n]} for n in (0, 2)]
    expected = [alone(opened(), request) for request in requests]
    read: list[str] = []
    for name in ("top_k", "prefill"):
        right = getattr(Decoder, name)
        monkeypatch.setattr(
            Decoder, name, lambda self, ids, right=right, name=name: read.append(name) or right(self, ids)
        )
    batch = Batch(opened(top_k=4))
    for request in requests:
        batch.add(**request)
    tokens = [batch.step() for _ in range(3)]
    assert read == ["top_k"] * 3
    batch.add([3], 1)
    tokens.append(batch.step())
    assert read == ["top_k"] * 3 + ["prefill"]
    assert [[step[handle] for step in tokens] for handle in (0, 1)] == expected


def test_positions_refuse(opened: Open) -> None:
    """Each text has its own positions; a refused text leaves the batch unchanged."""
    decoder, batch = opened("table"), Batch(opened("table"))
    early = batch.add([1, 2, 3, 4, 5], 5, GREEDY)  # 9 positions: the last token is not read
    whole = decoder.generate([1, 2, 3, 4, 5], 5, GREEDY)
    written = [batch.step()[early] for _ in range(3)]
    late = batch.add([1], 9, GREEDY)
    with pytest.raises(UserError, match="expected max_tokens of at most 9: this model's positions end at 9; received"):
        batch.add([1], 10)
    assert batch.sequences == (early, late)
    later = [batch.step() for _ in range(9)]
    assert written + [step[early] for step in later if early in step] == whole
    decoder.reset()
    assert [step[late] for step in later] == decoder.generate([1], 9, GREEDY)


def test_batch_nonfinite_logits(opened: Open) -> None:
    batch = Batch(opened())
    for ids in ([1, 2], [3, 4]):
        batch.add(ids, 3, GREEDY)
    bad = batch._pool._ready[0][1]
    bad.set_state({**bad.state(), "S.0": np.full_like(bad.state()["S.0"], np.nan)})
    expected = opened().generate([3, 4], 3, GREEDY)
    assert batch.step() == {0: -1, 1: expected[0]}
    assert [batch.step(), batch.step(), batch.step()] == [{1: expected[1]}, {1: expected[2]}, {}]


@pytest.mark.parametrize(
    "kind, changes, message",
    [
        (
            "both",
            {},
            "expected states of constant size for texts of different lengths side by side; received a model whose "
            "cache.1 grow with every token; export with --context, or convert all layers",
        ),
        ("constant", {"batch": 2}, "expected a graph of any batch; received one of 2; export it without --batch"),
    ],
)
def test_graphs_without_batches(kind: str, changes: dict[str, Any], message: str, opened: Open) -> None:
    with pytest.raises(UserError) as caught:
        Batch(opened(kind, **changes))
    assert str(caught.value) == message


def test_invalid_arguments(opened: Open) -> None:
    batch = Batch(opened())
    for ids, options, message in (
        ([], {}, "expected at least one token; received none; start from the BOS token, 1"),
        ([99], {}, r"expected ids in 0 … 10; received 99; use the tokenizer of this model"),
        ([[1], [2]], {}, r"expected ids of the shape \(1, T\) or \(T,\); received \(2, 1\); pass one row"),
        ([1], {"max_tokens": 0}, r"expected max_tokens of at least 1; received 0; choose another value"),
        ([1], {"sampling": Sampling(stop_tokens=[11])}, r"expected stop tokens in 0 … 10; received 11"),
    ):
        with pytest.raises(UserError, match=message):
            batch.add(ids, **{"max_tokens": 3, **options})  # type: ignore[arg-type]
    assert batch.sequences == ()
    assert batch.step() == {}
    handle = batch.add([1], 3)
    with pytest.raises(UserError) as caught:
        batch.remove(7)
    assert str(caught.value) == "expected the handle of an unfinished text: 0; received 7; choose another value"
    batch.remove(handle)
    with pytest.raises(UserError, match="unfinished text: none; received 0"):
        batch.remove(handle)


def test_no_fork_under_cuda_graphs(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = opened()
    object.__setattr__(decoder._graph, "captured", True)
    with pytest.raises(UserError) as caught:
        Batch(decoder)
    assert str(caught.value) == (
        "expected one decoder per graph under CUDA graphs; received another; leave enable_cuda_graph out"
    )
