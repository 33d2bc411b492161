"""Decoding compared with the Python runtime; and misuse, each with its kind and one line."""

from __future__ import annotations

import ctypes
import random
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from cpp_build import GOLDEN
from t2r_library import Decoder, Failed, Info, Library, Tensor, Tokenizer
from t2r_library import Sampling as Structure

from t2r_runtime import Decoder as Python
from t2r_runtime import Sampling


@pytest.mark.parametrize("name", ["tiny", "tiny-hybrid", "prefill", "window", "top3"])
def test_texts_equal_pythons(library: Library, name: str) -> None:
    """Random prompts, options and seeds give the same tokens, with and without a callback."""
    ours, theirs, chance = (
        Decoder(library, GOLDEN / f"{name}.onnx"),
        Python(GOLDEN / f"{name}.onnx"),
        random.Random(name),
    )
    for _ in range(40):
        prompt = [chance.randrange(17) for _ in range(chance.randint(1, 9))]
        options = {
            "temperature": chance.choice([0.0, 0.5, 1.0, 1.5]),
            "top_k": chance.choice([0, 1, 2, 5]),
            "top_p": chance.choice([1.0, 0.9, 0.4]),
            "min_p": chance.choice([0.0, 0.1]),
            "repetition_penalty": chance.choice([1.0, 1.3]),
            "no_repeat_ngram": chance.choice([0, 0, 3]),
            "seed": chance.choice([0, 7, 1 << 33, (1 << 62) + 5]),
        }
        if chance.random() < 0.5:
            ours.reset()
            theirs.reset()
        stop = chance.choice([None, [], [3, 5]])
        called = (lambda _: 1) if chance.random() < 0.5 else None
        wanted = theirs.generate(prompt, 20, Sampling(**options, stop_tokens=stop))
        assert ours.generate(prompt, 20, called, stop_tokens=stop, **options) == wanted, options
        assert ours.info.position == theirs.position


def test_penalties_look_back_on_long_texts(library: Library) -> None:
    """Penalties use all tokens read: also of a row kept from a batch, and beyond the history's initial capacity."""
    chance = random.Random(5)
    prompt = [chance.randrange(17) for _ in range(1500)]
    ours, theirs = Decoder(library, GOLDEN / "tiny.onnx"), Python(GOLDEN / "tiny.onnx")
    ours.reset(2)
    ours.prefill([[3] * 1000, prompt[:1000]])
    ours.reorder([1])
    ours.prefill([prompt[1000:1400]])
    theirs.prefill([prompt[:1400]])
    options = {"temperature": 0.0, "repetition_penalty": 1.5, "no_repeat_ngram": 3}
    wanted = theirs.generate(prompt[1400:], 30, Sampling(**options))
    assert ours.generate(prompt[1400:], 30, **options) == wanted
    assert ours.generate(prompt[1400:], 30, lambda _: 1, **options) == theirs.generate(
        prompt[1400:], 30, Sampling(**options)
    )


def test_memory_of_many_rows(library: Library) -> None:
    """A row takes memory for its states and logits, but not for the history of a long text."""
    decoder = Decoder(library, GOLDEN / "tiny.onnx")

    def virtual() -> int:
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize"))
        return int(line.split()[1]) << 10

    before = virtual()
    decoder.reset(30_000)
    assert virtual() - before < 1 << 30


def test_options_of_a_graph(library: Library) -> None:
    """NULL and a structure of defaults are the graph's options; the caller's options take precedence."""
    path = GOLDEN / "options.onnx"
    ours, theirs = Decoder(library, path), Python(path)
    graph, contract = library.sampling(ours.handle), library.sampling()
    assert theirs.signature.generation
    for name, _ in contract._fields_[1:7]:
        assert getattr(graph, name) == theirs.signature.generation.get(name, getattr(contract, name)), name
    assert (contract.temperature, contract.top_p, contract.repetition_penalty, contract.seed) == (1, 1, 1, -1)
    for options in ({}, {"temperature": 0.0}, {"repetition_penalty": 1.0}, {"top_k": 3, "no_repeat_ngram": 0}):
        ours.reset()
        theirs.reset()
        assert ours.generate([1, 2], 30, seed=4, **options) == theirs.generate([1, 2], 30, Sampling(seed=4, **options))


def test_structures_of_an_older_header(library: Library) -> None:
    """Fields that a shorter structure lacks get the graph's options."""
    decoder, size = Decoder(library, GOLDEN / "options.onnx"), Structure.temperature.offset + 8
    whole, older = library.sampling(decoder.handle), Structure(top_p=7.0)
    library.call("t2r_sampling_defaults", decoder.handle, ctypes.byref(older), ctypes.c_size_t(size))
    assert (older.size, older.temperature, older.top_p) == (
        size,
        whole.temperature,
        7.0,
    )  # nothing is written past its end
    older.temperature = whole.temperature = 0.5
    older.seed, whole.seed = 3, -1
    older.size = Structure.seed.offset  # includes top_p, which is out of range
    with pytest.raises(Failed, match="^sampling: expected top_p"):
        decoder.generate_with([1], 5, older)
    older.top_p = 0.5
    older.size = size  # excludes top_p
    whole.temperature = 0.0
    older.temperature = 0.0
    assert decoder.generate_with([1], 9, older) == (decoder.reset() or decoder.generate_with([1], 9, whole))
    for wrong in (0, 4, 1 << 20):
        older.size = wrong
        with pytest.raises(Failed, match="^argument: expected the size of a structure, from 8 to 4096 bytes; received"):
            decoder.generate_with([1], 5, older)
    info = Info(vocab_size=-1, batch=-1)
    library.call("t2r_get_info", decoder.handle, ctypes.byref(info), ctypes.c_size_t(8))
    assert (info.vocab_size, info.batch) == (17, -1)


def test_a_callback_ends_a_text(library: Library) -> None:
    decoder, seen = Decoder(library, GOLDEN / "tiny.onnx"), list[int]()

    def third(token: int) -> int:
        seen.append(token)
        return int(len(seen) < 3)

    assert decoder.generate([1], 20, third, stop_tokens=[]) == seen and len(seen) == 3
    assert decoder.info.position == 3  # the prompt, and all but the last


def test_tokens_before_logits_that_are_not_finite(library: Library, tmp_path: Path) -> None:
    wanted = Decoder(library, GOLDEN / "window.onnx").generate([1], 20, seed=7, stop_tokens=[])
    last = next(place for place in range(1, 20) if wanted[place] not in (1, *wanted[:place]))
    model = onnx.load(GOLDEN / "window.onnx")
    (table,) = (tensor for tensor in model.graph.initializer if tensor.name == "embedding.weight")
    rows = onnx.numpy_helper.to_array(table).copy()
    rows[wanted[last]] = np.nan
    table.CopyFrom(onnx.numpy_helper.from_array(rows, table.name))
    onnx.save(model, tmp_path / "g.onnx")
    decoder = Decoder(library, tmp_path / "g.onnx")
    with pytest.raises(Failed, match="^graph: expected finite logits; "):
        decoder.generate([1], 20, seed=7, stop_tokens=[])
    assert decoder.written == wanted[: last + 1] and decoder.info.position == last + 2


def test_bad_use(library: Library, tmp_path: Path) -> None:
    decoder = Decoder(library, GOLDEN / "tiny.onnx")
    (prefill,) = GOLDEN.glob("prefill.onnx.*.prefill.onnx")

    def fails(kind: str, words: str = "") -> pytest.RaisesExc[Failed]:
        return pytest.raises(Failed, match=f"^{kind}: expected .*{words}")

    with fails("file", "which does not exist"):
        Decoder(library, tmp_path / "nowhere.onnx")
    with fails("file", "which is not a file"):
        Decoder(library, tmp_path)
    with fails("graph", "a prefill graph"):
        Decoder(library, prefill)
    with fails("provider"):
        Decoder(library, GOLDEN / "tiny.onnx", threads=-1)
    with fails("metadata", "bytes a sequence"):
        Decoder(library, GOLDEN / "tiny.onnx", max_state_bytes=100)
    for token in (-1, 17, 1 << 40):
        with fails("token", "0 … 16"):
            decoder.step([token])
    for tokens in ([], [1, 2]):
        with fails("batch"):
            decoder.step(tokens)
    with fails("token"):
        decoder.prefill([[]])
    with fails("graph", "largest logits"):
        library.call(
            "t2r_top_k", decoder.handle, (ctypes.c_int64 * 1)(1), ctypes.c_size_t(1), ctypes.c_size_t(1), None, None
        )
    for rows in ([], [1], [-1], [0, 5]):
        with fails("batch"):
            decoder.reorder(rows)
    for wide in (decoder, Decoder(library, GOLDEN / "tiny.onnx", max_state_bytes=(1 << 63) - 1)):
        for batch in (1 << 60, 1 << 61):
            with fails("batch"):
                wide.reset(batch)
    for options in ({"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}, {"min_p": 2.0}, {"repetition_penalty": 0.0}):
        with fails("sampling"):
            decoder.generate([1], 5, **options)
    with fails("sampling", "max_tokens"):
        decoder.generate([1], 0)
    with fails("token"):
        decoder.generate([], 5)
    with fails("token"):
        decoder.generate([1], 5, stop_tokens=[99])
    with fails("tokenizer", "one without"):
        Tokenizer(library, decoder)
    with fails("argument", "the size of a structure"):
        library.call("t2r_get_info", decoder.handle, ctypes.byref(Info()), ctypes.c_size_t(3))
    decoder.step([1])
    assert decoder.info.position == 1  # the failed calls read nothing


def test_the_end_of_positions(library: Library, tmp_path: Path) -> None:
    model, most = onnx.load(GOLDEN / "tiny.onnx"), 12
    for entry in model.metadata_props:
        if entry.key in ("t2r.max_positions", "t2r.past_end"):
            entry.value = f"{most}" if entry.key == "t2r.max_positions" else '"refuse"'
    onnx.save(model, tmp_path / "ends.onnx")
    decoder = Decoder(library, tmp_path / "ends.onnx")
    assert decoder.info.max_positions == most
    with pytest.raises(Failed, match=f"^position: expected .*{most}"):
        decoder.generate([1, 2], most)
    for _ in range(most):
        decoder.step([1])
    for read in (lambda: decoder.step([1]), lambda: decoder.prefill([[1, 2]]), lambda: decoder.generate([1], 1)):
        with pytest.raises(Failed, match="^position: "):
            read()
    assert decoder.info.position == most
    decoder.reset()
    assert len(decoder.generate([1, 2], most - 1, stop_tokens=[])) == most - 1


def test_an_empty_cache_has_no_data(library: Library) -> None:
    """Empty states may be NULL, which must not be passed to memcpy: UndefinedBehaviorSanitizer would report it."""
    decoder = Decoder(library, GOLDEN / "tiny-hybrid.onnx")
    given = (Tensor * decoder.info.states)()
    for index, state in enumerate(given):
        library.call("t2r_state", decoder.handle, ctypes.c_size_t(index), ctypes.byref(state))
    copies = [ctypes.create_string_buffer(ctypes.string_at(state.data, state.bytes), state.bytes) for state in given]
    for state, copy in zip(given, copies, strict=True):
        state.data = ctypes.addressof(copy) if state.bytes else None
    assert not all(state.bytes for state in given)
    library.call("t2r_set_states", decoder.handle, given, ctypes.c_size_t(len(given)), ctypes.c_int64(3))
    fresh = Decoder(library, GOLDEN / "tiny-hybrid.onnx")
    np.testing.assert_array_equal(decoder.step([1]), fresh.step([1]))


def test_closed_handles(library: Library) -> None:
    decoder = Decoder(library, GOLDEN / "bytes.onnx")
    tokenizer, other = Tokenizer(library, decoder), decoder.fork()
    decoder.close()
    assert other.step([1]).shape == (1, other.info.vocab_size)  # a fork does not need the original decoder
    for use in (lambda: decoder.step([1]), decoder.close, lambda: decoder.fork(), lambda: Tokenizer(library, decoder)):
        with pytest.raises(Failed, match="^state: expected an open decoder; received one that was closed"):
            use()
    assert tokenizer.encode("a")  # nor does a tokenizer
    tokenizer.close()
    with pytest.raises(Failed, match="^state: expected an open tokenizer"):
        tokenizer.encode("a")
    for made_up, kind in ((None, "argument"), (2, "state"), (2**63 + 1, "state")):
        with pytest.raises(Failed, match=f"^{kind}: expected an open decoder; received "):
            library.call("t2r_step", ctypes.c_void_p(made_up), None, ctypes.c_size_t(0), None)


def test_two_threads_in_one_decoder(library: Library) -> None:
    """The second thread gets an error while the first is in its callback; the first continues."""
    decoder, inside, done = Decoder(library, GOLDEN / "tiny.onnx"), threading.Event(), threading.Event()

    def wait(_: int) -> int:
        inside.set()
        return int(done.wait(60))

    written = list[int]()
    thread = threading.Thread(target=lambda: written.extend(decoder.generate([1], 2, wait, stop_tokens=[])))
    thread.start()
    assert inside.wait(60)
    for use in (lambda: decoder.step([1]), decoder.close):
        with pytest.raises(Failed, match="^state: expected one call at a time in a decoder"):
            use()
    done.set()
    thread.join()
    assert len(written) == 2 and decoder.info.position == 2
