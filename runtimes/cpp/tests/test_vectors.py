"""Graphs that read vectors: libt2r compared with t2r_runtime, and refusals."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from cpp_build import GOLDEN, HERE, Run
from t2r_library import Decoder, Failed, Library, numbers

import t2r_runtime

SIZE = 5
random = np.random.default_rng(3)


@pytest.mark.parametrize("name", ["steps", "ear", "embeds"])
def test_equal_to_python(name: str, vectors: Path, library: Library) -> None:
    """In steps, in prompts longer than a run, and with rows that are reordered, copied and saved."""
    ours, theirs = Decoder(library, vectors / f"{name}.onnx"), t2r_runtime.Decoder(vectors / f"{name}.onnx")
    size = theirs.signature.input_size
    assert (ours.info.input_size, bool(ours.info.prefills)) == (size, name != "steps")
    assert size is not None
    for rows, lengths in ((1, (1, 6, 1)), (3, (2, 1, 190, 1))):
        ours.reset(rows)
        theirs.reset(rows)
        for length in lengths:
            given = random.normal(size=(rows, length, size)).astype(np.float32)
            np.testing.assert_allclose(ours.read_vectors(given), theirs.prefill(given), atol=2e-5)
            assert ours.info.position == theirs.position
    given = random.normal(size=(3, 1, size)).astype(np.float32)
    ours.reorder([2, 0, 1])
    np.testing.assert_allclose(
        ours.copy().read_vectors(given[[2, 0, 1]]), theirs.step(given[:, 0])[[2, 0, 1]], atol=2e-5
    )


PROGRAM = """
#include <cstdio>
#include <t2r.hpp>

int main(int, char **arguments) {
    t2r::Decoder decoder(arguments[1]);
    decoder.reset(2);
    const std::vector<float> given = {0.5f, 1, -1, 2, 0, 1, 1, 0, 0, -2, 3, 1, 0, 1, 1, 0.25f, 1, 1, 2, 3};
    const float *logits = decoder.read_vectors(given, 2);
    for (int i = 0; i < 14; i++) std::printf("%.9g ", logits[i]);
    try {
        decoder.read_vectors({1, 2, 3, 4, 5, 6}, 2);
    } catch (const t2r::Failed &failed) {
        std::puts(t2r_kind_name(failed.kind));
    }
}
"""


def test_the_cpp_header_reads_vectors(vectors: Path, release: Path, run: Run, tmp_path: Path) -> None:
    """Two vectors of each of two sequences; and data that is no whole number of vectors."""
    (tmp_path / "p.cpp").write_text(PROGRAM)
    here = [f"-I{HERE / 'include'}", f"-L{release}", "-lt2r", f"-Wl,-rpath,{release}"]
    run(os.environ.get("CXX", "c++"), "-std=c++17", tmp_path / "p.cpp", "-o", tmp_path / "p", *here)
    *found, kind = run(tmp_path / "p", vectors / "ear.onnx").stdout.split()
    given = [0.5, 1, -1, 2, 0, 1, 1, 0, 0, -2, 3, 1, 0, 1, 1, 0.25, 1, 1, 2, 3]
    theirs = t2r_runtime.Decoder(vectors / "ear.onnx")
    theirs.reset(2)
    expected = theirs.prefill(np.array(given, np.float32).reshape(2, 2, SIZE))
    np.testing.assert_allclose(np.array(found, float), expected.ravel(), atol=2e-5)
    assert kind == "batch"


def test_tokens_behind_vectors(vectors: Path, library: Library, tmp_path: Path) -> None:
    """The vector form of a model reads a prefix, and the token form generates the text after it."""
    reader, writer = Decoder(library, vectors / "embeds.onnx"), Decoder(library, vectors / "words.onnx")
    picture = random.normal(size=(1, 4, 8)).astype(np.float32)
    reader.read_vectors(picture)
    reader.save(tmp_path / "s.npz")
    writer.load(tmp_path / "s.npz")
    other, tokens = t2r_runtime.Decoder(vectors / "embeds.onnx"), t2r_runtime.Decoder(vectors / "words.onnx")
    other.prefill(picture[0])
    tokens.set_state(other.state(), other.position)
    sampling = t2r_runtime.Sampling(0)
    assert writer.info.position == 4
    assert writer.generate([1], 6, temperature=0.0) == tokens.generate([1], max_tokens=6, sampling=sampling)


def test_what_is_refused(vectors: Path, library: Library, tmp_path: Path) -> None:
    """Refused calls have read nothing."""
    ear, words = Decoder(library, vectors / "ear.onnx"), Decoder(library, GOLDEN / "tiny.onnx")
    rows, one = np.zeros((1, 2, SIZE), np.float32), ctypes.c_size_t(1)
    only = "^graph: expected a graph that reads token ids; received one that reads vectors of 5 elements"
    for call, message in (
        (lambda: ear.step([1]), only),
        (lambda: ear.prefill([[1, 2]]), only),
        (lambda: ear.generate([1], 3), only),
        (lambda: library.call("t2r_top_k", ear.handle, numbers([1]), one, one, None, None), only),
        (lambda: words.read_vectors(rows), "^token: expected token ids; received vectors; "),
        (
            lambda: ear.read_vectors(rows[..., 1:]),
            "^batch: expected vectors of 5 elements, of 1 sequences; received 4 of 1",
        ),
        (lambda: ear.read_vectors(rows.repeat(2, 0)), "^batch: expected vectors of 5 .*; received 5 of 2; "),
        (lambda: ear.read_vectors(rows[:, :0]), "^token: expected at least one vector; received none; "),
        (lambda: ear.read_vectors(rows + [0, 0, np.nan, 0, 0]), "^token: expected finite vectors; received NaN"),
        (lambda: ear.read_vectors(rows - [0, np.inf, 0, 0, 0]), "^token: expected finite vectors; received NaN"),
        (
            lambda: library.call("t2r_read_vectors", ear.handle, None, one, one, ctypes.c_size_t(SIZE), None),
            "^argument: expected vectors; received NULL; ",
        ),
    ):
        with pytest.raises(Failed, match=message):
            call()
        assert ear.info.position == words.info.position == 0
    library.call("t2r_read_vectors", ear.handle, (ctypes.c_float * SIZE)(), one, one, ctypes.c_size_t(SIZE), None)
    assert ear.info.position == 1  # logits may be NULL
    model = onnx.load(vectors / "ear.onnx")
    for value, message in (
        ("6", "interface"),
        ("0", "metadata"),
        ("null", "metadata"),
        ("-1", "metadata"),
        (None, "interface"),
    ):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        for entry in list(changed.metadata_props):
            if entry.key == "t2r.input_size":
                if value is None:
                    changed.metadata_props.remove(entry)
                else:
                    entry.value = value
        onnx.save(changed, vectors / "changed.onnx")
        with pytest.raises(Failed, match=f"^{message}: "):
            Decoder(library, vectors / "changed.onnx")
