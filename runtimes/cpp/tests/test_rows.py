"""Rows of a batch that are kept, moved, repeated and dropped; and beam search, which moves them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from cpp_build import GOLDEN
from t2r_library import Decoder, Failed, Library, numbers

from t2r_runtime import Beam, Sampling, Translator
from t2r_runtime import Decoder as Python


def test_rows_go_on_as_alone(library: Library) -> None:
    """After rows are dropped, repeated and exchanged, each continues as it would alone."""
    alone = [Decoder(library, GOLDEN / "tiny-hybrid.onnx") for _ in range(3)]
    together = Decoder(library, GOLDEN / "tiny-hybrid.onnx")
    together.reset(3)
    for step in range(4):
        tokens = [(step * 5 + row) % 17 for row in range(3)]
        together.step(tokens)
        for decoder, token in zip(alone, tokens, strict=True):
            decoder.step([token])
    together.reorder([2, 0, 2, 1])
    logits = together.step([4] * 4)
    expected = [decoder.step([4])[0] for decoder in alone]
    for row, source in enumerate([2, 0, 2, 1]):
        np.testing.assert_allclose(logits[row], expected[source], atol=1e-5)


@pytest.mark.parametrize("name", ["tiny", "tiny-hybrid", "packed", "window", "translator"])
def test_states_move_with_their_rows(library: Library, name: str) -> None:
    """Bit-exactly, and again after steps: in cycles, from rows that stay, and from rows that also move."""
    chance, decoder = random.Random(name), Decoder(library, GOLDEN / f"{name}.onnx")
    decoder.reset(4)
    axis = {spec.name: spec.shape.index("B") for spec in Python(GOLDEN / f"{name}.onnx").signature.states}
    lists = [[1, 0, 2, 3], [1, 2, 3, 0], [0, 0, 1, 3], [3, 3, 3, 3], [2, 3, 0, 0]]
    for rows in lists + [[chance.randrange(4) for _ in range(4)] for _ in range(20)]:
        decoder.step([chance.randrange(17) for _ in range(4)])
        before = decoder.states()
        decoder.reorder(rows)
        for state, content in decoder.states().items():
            np.testing.assert_array_equal(content, np.take(before[state], rows, axis[state]))
    assert len({content.tobytes() for content in decoder.states().values()}) > 1


def test_rows_of_several_decoders(library: Library) -> None:
    """Bit-exactly, from a decoder itself and from others, with the history for penalties."""
    ours = Decoder(library, GOLDEN / "tiny.onnx")
    other = ours.fork()
    ours.prefill([[5, 6, 5, 6]])
    other.reset(2)
    other.prefill([[7, 8, 9], [1, 2, 3]])
    mine, theirs = ours.states(), other.states()
    ours.take([(other, 1), (ours, 0), (other, 0), (other, 1)])
    for name, content in ours.states().items():
        parts = theirs[name][1], mine[name][0], theirs[name][0], theirs[name][1]
        np.testing.assert_array_equal(content, np.stack(parts))
    assert (ours.info.batch, ours.info.position) == (4, 4)
    options = {"temperature": 0.0, "repetition_penalty": 1.7, "no_repeat_ngram": 2}
    python = Python(GOLDEN / "tiny.onnx")
    python.prefill([5, 6, 5, 6])
    ours.take([(ours, 1)])
    assert ours.generate([5], 9, **options) == python.generate([5], 9, Sampling(**options))
    stranger = Decoder(library, GOLDEN / "tiny.onnx")
    for wrong in ([(stranger, 0)], [(other, 2)], [(ours, -1)], []):
        with pytest.raises(Failed, match="^batch: "):
            ours.take(wrong)
    hybrid = Decoder(library, GOLDEN / "tiny-hybrid.onnx")
    longer = hybrid.fork()
    longer.prefill([[1, 2]])
    with pytest.raises(Failed, match="^batch: expected the state .* of one length in all sequences; "):
        hybrid.take([(hybrid, 0), (longer, 0)])
    assert hybrid.info.batch == 1


def renamed(path: Path, old: str, new: str) -> onnx.ModelProto:
    """A graph in which a state has another name."""
    model = onnx.load(path)
    for entry in model.metadata_props:
        if entry.key in ("t2r.states", "t2r.source_states"):
            entry.value = entry.value.replace(json.dumps(old), json.dumps(new))
    names = {f"{side}{old}": f"{side}{new}" for side in ("", "past_", "present_")}
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    for node in model.graph.node:
        for places in (node.input, node.output):
            places[:] = [names.get(name, name) for name in places]
    return model


def test_a_state_of_any_name_is_told_on_one_line(library: Library, tmp_path: Path) -> None:
    """Names come from an untrusted file."""
    old = next(spec.name for spec in Python(GOLDEN / "tiny-hybrid.onnx").signature.states if spec.grows)
    onnx.save(renamed(GOLDEN / "tiny-hybrid.onnx", old, "k.\n1"), tmp_path / "named.onnx")
    decoder = Decoder(library, tmp_path / "named.onnx")
    longer = decoder.fork()
    longer.step([1])
    with pytest.raises(Failed, match=r"^batch: expected the state k\. 1 of one length in all sequences; "):
        decoder.take([(decoder, 0), (longer, 0)])
    (path,) = GOLDEN.glob("translator.onnx.*.encoder.onnx")
    encoder = renamed(path, "source_k.1", "source_k.\n1")
    twice = onnx.helper.make_node("Concat", ["once", "once"], ["source_k.\n1"], axis=2)  # longer than the source
    for node in encoder.graph.node:
        node.output[:] = ["once" if name == "source_k.\n1" else name for name in node.output]
    encoder.graph.node.append(twice)
    onnx.save(renamed(GOLDEN / "translator.onnx", "source_k.1", "source_k.\n1"), tmp_path / "translator.onnx")
    onnx.save(encoder, tmp_path / path.name)
    with pytest.raises(
        Failed, match=r"^graph: expected states of the sources' sizes from the encoder; received source_k\. 1; "
    ):
        Decoder(library, tmp_path / "translator.onnx").translate([1, 2], max_tokens=4)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"seed": 11, "top_k": 4, "temperature": 0.8},
        {"seed": 5, "repetition_penalty": 1.6, "no_repeat_ngram": 2},
    ],
)
def test_choices_of_a_program_are_those_of_generate(library: Library, options: dict[str, float]) -> None:
    ours, theirs = Decoder(library, GOLDEN / "tiny.onnx"), Python(GOLDEN / "tiny.onnx")
    ours.reset(2)
    written, token = list[int](), 3
    for draw in range(12):
        logits = ours.step([9, token])
        written.append(token := ours.choose(logits[1], 1, draw, **options))
    assert written == theirs.generate([3], 12, Sampling(**options, stop_tokens=()))
    for wrong in ({"row": 2, "draw": 0}, {"row": 0, "draw": -1}):
        with pytest.raises(Failed, match="^(argument|sampling): "):
            ours.choose(logits[0], **wrong)


def test_penalties_look_back_on_a_row_that_moved(library: Library) -> None:
    ours, theirs = Decoder(library, GOLDEN / "tiny.onnx"), Python(GOLDEN / "tiny.onnx")
    ours.reset(3)
    texts = [[1, 2, 3, 4], [5, 6, 5, 6], [7, 8, 9, 7]]
    ours.prefill(texts)
    ours.reorder([2, 0, 1])
    ours.reorder([2])  # originally row 1
    theirs.prefill([texts[1]])
    options = {"temperature": 0.0, "repetition_penalty": 1.7, "no_repeat_ngram": 2}
    assert ours.generate([5], 15, **options) == theirs.generate([5], 15, Sampling(**options))


@pytest.mark.parametrize("name", ["translator", "translator-options"])
def test_translations_equal_pythons(library: Library, name: str) -> None:
    """Beam search by steps gives the same tokens in the same order, with and without penalties."""
    chance = random.Random(name)
    ours = Decoder(library, GOLDEN / f"{name}.onnx", companions=0)
    theirs = Translator(GOLDEN / f"{name}.onnx")
    size, limit = theirs.signature.source.source_vocab_size, theirs.signature.max_positions or 12
    for _ in range(40):
        source = [chance.randrange(size) for _ in range(chance.randint(1, 7))]
        width = chance.choice([1, 2, 3, 5])
        options = {
            "width": width,
            "n_best": chance.randint(1, width),
            "max_tokens": chance.randint(4, min(limit, 12)),
            "min_tokens": chance.choice([0, 2]),
            "length_penalty": chance.choice([0.0, 1.0, 1.5]),
            "repetition_penalty": chance.choice([1.0, 1.3]),
            "no_repeat_ngram": chance.choice([0, 2]),
        }
        stops = chance.choice([(0, False), (1, True), (2, "never")])
        (wanted,) = theirs.translate([source], Beam(**options, early_stopping=stops[1]))
        found = ours.translate(source, **options, early_stopping=stops[0])
        assert [tokens for tokens, _ in found] == [list(translation.tokens) for translation in wanted], options
        np.testing.assert_allclose([score for _, score in found], [one.score for one in wanted], atol=1e-4)


@pytest.mark.parametrize("most", [5, 8, 12])
def test_sources_in_portions(library: Library, most: int) -> None:
    """Of one, two and all five, with the states and translations of all at once."""
    sources = [[1, 2, 3], [4, 5, 6, 7, 8], [9], [3, 1, 3, 1], [12, 11]]
    lengths = [len(source) for source in sources]
    padded = [token for source in sources for token in source + [99] * (5 - len(source))]
    found = []
    for given in ({}, {"max_source": most}):
        decoder = Decoder(library, GOLDEN / "translator.onnx", **given)
        library.call("t2r_encode_sources", decoder.handle, numbers(padded), numbers(lengths), 5, 5)
        found.append(decoder.states())
    for name, state in found[0].items():
        np.testing.assert_allclose(found[1][name], state, rtol=0, atol=1e-6)
        assert state.any() or not name.startswith("source_")
    assert {"source_S.0", "source_k.1", "source_length"} <= set(found[0])


def test_memory_of_rows_with_a_long_source(library: Library) -> None:
    """Taken rows keep the states of their source, which count as they do where it is read."""
    decoder = Decoder(library, GOLDEN / "translator.onnx", max_state_bytes=2000)
    library.call("t2r_encode_sources", decoder.handle, numbers([1] * 40), numbers([40]), 1, 40)
    decoder.reorder([0, 0])
    line = "^batch: expected states of at most 16000 bytes; received [0-9]+ bytes; choose a smaller batch or shorter"
    for use in (lambda: decoder.reorder([0] * 5), lambda: decoder.take([(decoder, 1)] * 5)):
        with pytest.raises(Failed, match=line):
            use()
    assert decoder.info.batch == 2
    decoder.reset(5)


def test_source_of_the_most_tokens(library: Library) -> None:
    decoder = Decoder(library, GOLDEN / "translator.onnx", max_source=3)
    assert decoder.translate([1, 2, 3], max_tokens=4)
    with pytest.raises(Failed, match="^position: expected a source of at most 3 tokens; received 4; "):
        decoder.translate([1, 2, 3, 4], max_tokens=4)
    with pytest.raises(Failed, match="^argument: expected a max_source of at least 1; received 0; "):
        Decoder(library, GOLDEN / "translator.onnx", max_source=0)
