"""Threads shared by graphs, ONNX Runtime's session options, and its execution providers."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest
from cpp_build import GOLDEN, HERE, Run
from t2r_library import Decoder, Failed, Library

COUNT = """
import os, sys
from pathlib import Path
from t2r_library import Decoder, Failed, Library
library, folder, shared = Library(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
if shared:
    library.call("t2r_share_threads", shared)
def opened(**options):
    before = len(os.listdir("/proc/self/task"))
    kept.append(Decoder(library, folder / "tiny.onnx", **options))
    return len(os.listdir("/proc/self/task")) - before
kept = [Decoder(library, folder / "tiny.onnx", threads=1)]
print(opened(threads=0 if shared else 5), opened(threads=0 if shared else 5), opened(threads=3))
try:
    library.call("t2r_share_threads", 2)
except Failed as failed:
    print(failed)
print(kept[1].generate([1], 5, temperature=0.0) == kept[0].generate([1], 5, temperature=0.0))
"""


@pytest.mark.parametrize("shared, more", [(0, "4 4 2"), (5, "0 0 2")])
def test_threads_that_graphs_share(release: Path, run: Run, shared: int, more: str) -> None:
    """N threads start N - 1, as the caller is one of them; shared threads are started with the first graph."""
    place = f"import sys; sys.path[:0] = {[str(HERE / 'tests'), str(HERE.parent)]!r}"
    said = run(sys.executable, "-c", place + COUNT, release / "libt2r.so", GOLDEN, shared).stdout.splitlines()
    assert said[0] == more and said[2] == "True"
    assert said[1].startswith("state: expected a call before the first graph is opened; received one after it; ")


def test_a_number_of_threads_that_there_is_not(library: Library) -> None:
    for threads in (-1, 4097):
        with pytest.raises(Failed, match=f"^provider: expected a number of threads from 1 to 4096; received {threads}"):
            library.call("t2r_share_threads", ctypes.c_int32(threads))


def test_options_of_a_session(library: Library) -> None:
    """Session options reach ONNX Runtime, whose message names an invalid one."""
    graph = GOLDEN / "tiny.onnx"
    spinning = Decoder(library, graph, config=["session.intra_op.allow_spinning", "0"], threads=2)
    assert spinning.generate([1], 5, seed=1) == Decoder(library, graph).generate([1], 5, seed=1)
    with pytest.raises(
        Failed, match="^graph: expected an ONNX graph that ONNX Runtime accepts; received .*Affinity.*everywhere"
    ):
        Decoder(library, graph, config=["session.intra_op_thread_affinities", "everywhere"], threads=2)


def test_options_of_a_session_that_are_none(library: Library) -> None:
    options = library.options(config=["a", "b", "c"])
    arguments = str(GOLDEN / "tiny.onnx").encode(), ctypes.byref(options), ctypes.byref(ctypes.c_void_p())
    with pytest.raises(Failed, match="^argument: expected a value behind each key of a configuration; received 3"):
        library.call("t2r_open", *arguments)
    options.config_count, options.config[1] = 2, None
    with pytest.raises(Failed, match="^argument: expected a value of a configuration; received NULL; "):
        library.call("t2r_open", *arguments)


ANYWHERE = ["session.disable_cpu_ep_fallback", "0"]


def test_a_provider(library: Library) -> None:
    """A provider by name is used; nodes left to the CPU are refused, or run there."""
    graph = GOLDEN / "window.onnx"
    with pytest.raises(Failed, match="^provider: expected every node of the step graph on AZURE; received .*fallback"):
        Decoder(library, graph, provider=["AZURE"])
    plain, other = Decoder(library, graph), Decoder(library, graph, provider=["AZURE", "a", "b"], config=ANYWHERE)
    assert other.generate([1, 2], 9, seed=3) == plain.generate([1, 2], 9, seed=3)


def test_providers_that_are_none(library: Library) -> None:
    """An unknown provider or one not built in, with ONNX Runtime's message; missing names and options."""
    graph, handle = GOLDEN / "tiny.onnx", ctypes.c_void_p()
    for name in ("", "xnn", "XNNPACK"):
        line = (
            "^provider: expected an execution provider that this ONNX Runtime has; received .*(Unknown|not supported)"
        )
        with pytest.raises(Failed, match=line):
            Decoder(library, graph, provider=[name], config=ANYWHERE)
    for change, wanted in (
        ({"provider_count": 2}, "a value behind each key of an execution provider's options; received 1 strings"),
        ({"provider_count": 1, "provider": (ctypes.c_char_p * 1)(None)}, "an execution provider's name; received NULL"),
        ({"provider": None}, "an execution provider and its options; received NULL"),
    ):
        options = library.options(provider=["CPU", "a", "b"])
        for field, value in change.items():
            setattr(options, field, value)
        with pytest.raises(Failed, match=f"^argument: expected {wanted}; "):
            library.call("t2r_open", str(graph).encode(), ctypes.byref(options), ctypes.byref(handle))
