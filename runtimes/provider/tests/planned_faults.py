"""planned_faults.py memory|onnxruntime right|leaks|swallows GRAPH...: opens and runs graphs with planned faults.

The n-th allocation of the provider fails, or its n-th call of ONNX Runtime, for many n; it is the target `faulty`.
Prints the numbers of faults. `leaks` and `swallows` are wrong on purpose.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_t2r as plugin

sys.path.insert(0, str(Path(__file__).parent))  # tox sets PYTHONSAFEPATH
from one_node import options

EACH = 40  # of the first operations; then one of 4, one of 16, …
KINDS = {"memory": (0, "memory"), "onnxruntime": (2, "a planned fault")}
NOT_CLAIMED = "fallback to CPU EP has been explicitly disabled"
LIBRARY = ctypes.CDLL(plugin.get_library_path())
LIBRARY.t2r_faults_plan.argtypes = [ctypes.c_int, ctypes.c_long]
LIBRARY.t2r_faults_done.restype = ctypes.c_bool
LIBRARY.t2r_faults_live.restype = ctypes.c_long


def failed(kind: str, number: int, call: Callable[[], object]) -> bool:
    """Make a call in which one operation fails; returns whether it has so many."""
    code, line = KINDS[kind]
    LIBRARY.t2r_faults_plan(code, number)
    said = ""
    try:
        call()
    except Exception as error:
        said = str(error)
    done = bool(LIBRARY.t2r_faults_done())
    assert done == bool(said), f"operation {number}: {said or 'it succeeded'}"
    assert not said or line in said or NOT_CLAIMED in said, f"operation {number}: {said}"
    return done


def each_fault(kind: str, call: Callable[[], object]) -> int:
    number, step, faults = 1, 1, 0
    while failed(kind, number, call):
        faults += 1
        step *= 4 if faults % EACH == 0 else 1
        number += step
    return faults


def feeds(session: ort.InferenceSession) -> dict[str, np.ndarray]:
    """Inputs of a batch and caches of 2."""
    numbers = np.random.default_rng(3)

    def drawn(value: ort.NodeArg) -> np.ndarray:
        made = numbers.normal(size=[size if isinstance(size, int) else 2 for size in value.shape])
        return made.astype(np.float32) if "float" in value.type else (abs(made) + 1).astype(value.type[7:-1])

    return {value.name: drawn(value) for value in session.get_inputs()}


def torture(kind: str, graph: Path, mistake: str) -> tuple[int, int]:
    plain = ort.SessionOptions()
    plain.intra_op_num_threads = 1
    reference = ort.InferenceSession(graph, plain, providers=["CPUExecutionProvider"])
    given = feeds(reference)
    expected = reference.run(None, given)
    made = options(2)

    def opened() -> ort.InferenceSession:
        if mistake == "leaks":
            LIBRARY.t2r_faults_leak()
        with contextlib.suppress(Exception) if mistake == "swallows" else contextlib.nullcontext():
            return ort.InferenceSession(graph, made)
        return reference

    opened().run(None, given)
    gc.collect()
    before = LIBRARY.t2r_faults_live()
    opening = each_fault(kind, opened)
    session = [opened()]
    # the first run plans; the second has the plan
    running = sum(each_fault(kind, lambda: session[0].run(None, given)) for _ in range(2))
    for theirs, ours in zip(expected, session.pop().run(None, given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    gc.collect()
    left = LIBRARY.t2r_faults_live() - before
    assert left <= 1, f"{left} allocations are left"  # one is the text of the last refusal
    return opening, running


if __name__ == "__main__":
    for each in sys.argv[3:]:
        sys.stdout.write("{} {}\n".format(*torture(sys.argv[1], Path(each), sys.argv[2])))
