"""Kinds of errors that no golden file has: arguments, memory, and failed runs of ONNX Runtime."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from cpp_build import GOLDEN, HERE, Run
from t2r_library import Decoder, Failed, Library, Tensor, Tokenizer, numbers


def test_null_is_named(library: Library) -> None:
    """For each argument that must not be NULL, the error names it, with the kind argument."""
    decoder = Decoder(library, GOLDEN / "bytes.onnx")
    tokenizer, handle = Tokenizer(library, decoder), decoder.handle
    none, one, out = ctypes.c_size_t(0), ctypes.c_size_t(1), ctypes.byref(ctypes.c_void_p())
    states = (Tensor * decoder.info.states)()
    for index, state in enumerate(states):
        library.call("t2r_state", handle, ctypes.c_size_t(index), ctypes.byref(state))
    states[0].data = None
    for name, *arguments in (
        ("t2r_defaults", None, one),
        ("t2r_open", None, None, out),
        ("t2r_open", b"x", None, None),
        ("t2r_fork", handle, None),
        ("t2r_get_info", handle, None, one),
        ("t2r_step", handle, None, one, None),
        ("t2r_step", None, numbers([1]), one, None),
        ("t2r_prefill", handle, None, one, one, None),
        ("t2r_reorder", handle, None, one),
        ("t2r_take", handle, None, numbers([0]), one),
        ("t2r_take", handle, ctypes.byref(ctypes.c_void_p()), numbers([0]), one),
        ("t2r_choose", handle, None, none, None, none, out),
        ("t2r_state", handle, none, None),
        ("t2r_set_states", handle, None, one, none),
        ("t2r_set_states", handle, states, ctypes.c_size_t(len(states)), none),
        ("t2r_generate", handle, None, one, one, None, None, None, out, out),
        ("t2r_generate", handle, numbers([1]), one, one, None, None, None, None, out),
        ("t2r_save", handle, None, none),
        ("t2r_load", handle, None, None),
        ("t2r_encode_sources", handle, numbers([1]), None, one, one),
        ("t2r_translate", handle, numbers([1]), one, None, None),
        ("t2r_open_tokenizer", handle, None),
        ("t2r_make_tokenizer", None, none, none, out),
        ("t2r_encode", tokenizer.handle, None, one, 1, out, out),
        ("t2r_decode", tokenizer.handle, numbers([1]), one, None, None),
        ("t2r_open_stream", tokenizer.handle, None, one, out),
    ):
        with pytest.raises(Failed, match="^argument: expected .*; received NULL; "):
            library.call(name, *arguments)


def test_what_is_not_there_is_named(library: Library) -> None:
    decoder, state = Decoder(library, GOLDEN / "translator.onnx"), Tensor()
    count = decoder.info.states
    with pytest.raises(Failed, match=f"^argument: expected a number of a state below {count}; received {count}; "):
        library.call("t2r_state", decoder.handle, ctypes.c_size_t(count), ctypes.byref(state))
    with pytest.raises(Failed, match="^argument: expected a number of a translation below 0; received 0; "):
        library.call("t2r_translation", decoder.handle, ctypes.c_size_t(0), None, None, None)
    one, two = ctypes.c_size_t(1), ctypes.c_size_t(2)
    with pytest.raises(Failed, match="^argument: expected lengths in 0 … 2, their rows; received 3; "):
        library.call("t2r_encode_sources", decoder.handle, numbers([1, 2]), numbers([3]), one, two)
    library.call("t2r_state", decoder.handle, ctypes.c_size_t(0), ctypes.byref(state))
    for change in ({"dtype": b"float64"}, {"bytes": state.bytes + 4}):
        given = (Tensor * count)(*[state] * count)
        for name, value in change.items():
            setattr(given[0], name, value)
        with pytest.raises(Failed, match="^snapshot: expected a state of a dtype and shape that say its bytes; "):
            library.call("t2r_set_states", decoder.handle, given, ctypes.c_size_t(count), ctypes.c_int64(0))


LITTLE = """
import resource, sys
from pathlib import Path
from t2r_library import Decoder, Failed, Library
decoder = Decoder(Library(Path(sys.argv[1])), Path(sys.argv[2]), max_state_bytes=1 << 40)
(line,) = (line for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, ((int(line.split()[1]) << 10) + (64 << 20),) * 2)
decoder.step([1])
try:
    decoder.reset(1 << 22)
except Failed as failed:
    print(failed)
decoder.step([1])
print(decoder.info.batch, decoder.info.position)
"""


def test_memory_that_there_is_not(release: Path, run: Run) -> None:
    """In a process with a memory limit: the error has the kind memory, and the decoder can continue."""
    place = f"import sys; sys.path[:0] = {[str(HERE / 'tests'), str(HERE.parent)]!r}"
    said = run(sys.executable, "-c", place + LITTLE, release / "libt2r.so", GOLDEN / "tiny.onnx").stdout.splitlines()
    assert said[0].startswith("memory: expected memory; received none; ") and said[1] == "1 2"


def test_a_run_that_fails(library: Library, tmp_path: Path) -> None:
    """A graph that ONNX Runtime opens but cannot run: the kind is runtime, not graph."""
    model = onnx.load(GOLDEN / "tiny.onnx")
    broken = onnx.helper.make_node("Reshape", ["input_ids", "too_many"], ["broken"])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([7]), "too_many"))
    model.graph.node.insert(0, broken)
    model.graph.node.insert(1, onnx.helper.make_node("ReduceMin", ["broken"], ["least"], keepdims=0))
    for node in model.graph.node[2:]:
        if "input_ids" in node.input:
            model.graph.node.insert(2, onnx.helper.make_node("Max", ["input_ids", "least"], ["fed"]))
            node.input[:] = ["fed" if name == "input_ids" else name for name in node.input]
            break
    onnx.save(model, tmp_path / "breaks.onnx")
    decoder = Decoder(library, tmp_path / "breaks.onnx")
    with pytest.raises(Failed, match="^runtime: expected the graph to run a step; received "):
        decoder.step([1])
    assert decoder.info.position == 0


def test_a_tokenizer_that_is_too_large_leaves_the_graph_open(library: Library, tmp_path: Path) -> None:
    """Token ids can be read without the tokenizer."""
    model = onnx.load(GOLDEN / "bytes.onnx")
    for entry in model.metadata_props:
        entry.value = json.dumps(" " * (1 << 25) + "{}") if entry.key == "t2r.tokenizer" else entry.value
    onnx.save(model, tmp_path / "large.onnx")
    decoder = Decoder(library, tmp_path / "large.onnx")
    decoder.step([1])
    with pytest.raises(Failed, match="^tokenizer: expected a tokenizer of at most 32 MiB"):
        Tokenizer(library, decoder)
