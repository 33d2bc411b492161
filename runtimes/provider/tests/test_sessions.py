"""Sessions on the provider: threads, shapes, errors, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_t2r as plugin
import pytest
from one_node import devices, model, on_provider, options, several
from onnx import TensorProto, helper, numpy_helper

CORES = Path(__file__).parents[3] / "tests" / "cores.json"  # cases of all runtimes
WIDTH = 300  # wide enough for threads to divide products


@pytest.fixture(scope="module")
def chain() -> bytes:
    """x (B, WIDTH) → twenty products with a square matrix and tanh, between which threads synchronize."""
    random = np.random.default_rng(7)
    nodes, constants, name = [], [], "x"
    for i in range(20):
        matrix = (random.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
        constants.append(numpy_helper.from_array(matrix, f"w{i}"))
        nodes += [
            helper.make_node("MatMul", [name, f"w{i}"], [f"p{i}"]),
            helper.make_node("Tanh", [f"p{i}"], [f"t{i}"]),
        ]
        name = f"t{i}"
    values = [helper.make_tensor_value_info(each, TensorProto.FLOAT, ["B", WIDTH]) for each in ("x", name)]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return made.SerializeToString()


def rows(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)}


def test_the_number_of_threads_changes_nothing(chain: bytes) -> None:
    one, *others = (on_provider(chain, rows(3), threads)[0] for threads in (1, 2, 3, 7))
    for other in others:
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("threads", ["-1", "4097", "two", "1.5", ""])
def test_a_wrong_number_of_threads(chain: bytes, threads: str) -> None:
    with pytest.raises(Exception, match="expected a number of threads from 0 to 4096"):
        ort.InferenceSession(chain, options(threads))


def test_the_threads_of_a_session_are_the_teams(chain: bytes) -> None:
    """ONNX Runtime has no function that reads them; those of its pool come to a meeting in the first run."""
    for count in (1, 2):
        plain = ort.SessionOptions()
        plain.intra_op_num_threads = count
        plain.add_provider_for_devices(devices(), {})
        ort.InferenceSession(chain, plain).run(None, rows(1))
        assert 1 <= plugin.get_threads() <= count
    ort.InferenceSession(chain, options(3)).run(None, rows(1))
    assert plugin.get_threads() == 3


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
@pytest.mark.parametrize("case", json.loads(CORES.read_text("utf-8")), ids=lambda case: case["groups"])
def test_a_quota_of_cpu_time(case: dict[str, Any], tmp_path: Path) -> None:
    files = {f"sys/fs/cgroup/{name}": text for name, text in case["files"].items()}
    for name, text in {"proc/self/cgroup": case["groups"], **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    usable = len(os.sched_getaffinity(0))
    assert plugin.get_cores(str(tmp_path)) == min(usable, case["cores"] or usable)


def test_a_run_that_is_terminated(chain: bytes) -> None:
    """A run of 36 billion operations, which another thread ends."""
    session, given = ort.InferenceSession(chain, options(2)), rows(10_000)
    session.run(None, rows(1))
    run = ort.RunOptions()
    timer = threading.Timer(0.02, lambda: setattr(run, "terminate", True))
    timer.start()
    with pytest.raises(Exception, match="terminate flag"):
        session.run(None, given, run)
    timer.join()
    run.terminate = False
    (found,) = session.run(None, rows(2), run)
    assert found.shape == (2, WIDTH)


def test_shapes_change_from_run_to_run(chain: bytes) -> None:
    session = ort.InferenceSession(chain, options())
    for count in (1, 5, 2, 1, *range(18), 5, 1):
        (found,) = session.run(None, rows(count))
        assert found.shape == (count, WIDTH)
        for row in range(count):
            (alone,) = session.run(None, {"x": rows(count)["x"][row : row + 1]})
            np.testing.assert_allclose(found[row], alone[0], rtol=0, atol=1e-6)


def test_more_shapes_than_plans_are_kept() -> None:
    """1,000 operations, of which 16 plans are kept."""
    nodes = [helper.make_node("Abs" if i % 2 else "Neg", [f"t{i}" if i else "x"], [f"t{i + 1}"]) for i in range(1000)]
    session = ort.InferenceSession(several(nodes, rows(1), {}, any_batch=True), options())
    for count in (*range(1, 20), 1, 19, 2):
        (found,) = session.run(None, rows(count))
        np.testing.assert_array_equal(found, np.abs(rows(count)["x"]))


@pytest.mark.parametrize(
    "bits, block, columns",
    [(4, 32, 203), (4, 128, 1300), (8, 32, 1300), (8, 64, 203), (8, 2048, 2100), (4, 16, 203), (8, 16, 1300)],
)
def test_rows_of_a_batch_are_what_they_are_alone(bits: int, block: int, columns: int) -> None:
    """Equal up to the order of sums, and to the bit for three rows or more, although rows share unpacked weights."""
    random, outputs = np.random.default_rng(11), 77
    blocks = -(-columns // block)
    fixed = {
        "numbers": random.integers(0, 256, (outputs, blocks, block * bits // 8)).astype(np.uint8),
        "scales": random.standard_normal((outputs, blocks)).astype(np.float32),
    }
    sizes = {"K": columns, "N": outputs, "bits": bits, "block_size": block, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", "numbers", "scales"], ["y"], domain="com.microsoft", **sizes)
    x = random.standard_normal((67, columns)).astype(np.float32)
    session = ort.InferenceSession(several([node], {"x": x}, fixed, any_batch=True), options())
    (whole,) = session.run(None, {"x": x})
    for row in range(0, len(x), 3):
        (alone,) = session.run(None, {"x": x[row : row + 1]})
        np.testing.assert_allclose(whole[row], alone[0], rtol=0, atol=1e-6 * float(np.abs(whole).max()))
    for count in range(3, 14):
        (some,) = session.run(None, {"x": x[5 : 5 + count]})
        np.testing.assert_array_equal(some, whole[5 : 5 + count])


def at_once(work: Callable[[int], None], count: int) -> None:
    """Run work(0), … on separate threads; raise the first error."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_runs_and_sessions_beside_each_other(chain: bytes) -> None:
    sessions = [ort.InferenceSession(chain, options(threads)) for threads in (2, 2, 3)]
    alone = [sessions[0].run(None, rows(2, seed))[0] for seed in range(5)]

    def work(number: int) -> None:
        for i in range(60):
            (found,) = sessions[(number + i) % 3].run(None, rows(2, i % 5))
            np.testing.assert_array_equal(found, alone[i % 5])

    at_once(work, 5)


def test_sessions_that_come_and_go(chain: bytes) -> None:
    def work(number: int) -> None:
        for _ in range(5):
            ort.InferenceSession(chain, options(2 + number % 2)).run(None, rows(1))

    at_once(work, 3)


def run_alone(program: str, given: bytes) -> str:
    """Run a program in a separate process, which reads `given`; returns what it prints."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, input=given, capture_output=True, timeout=60, env=environment)
    assert done.returncode == 0, (done.returncode, done.stderr.decode()[-2000:])
    return done.stdout.decode().strip()


def test_a_process_ends_with_a_session_open(chain: bytes) -> None:
    program = """
        import sys
        import numpy as np, onnxruntime as ort
        from one_node import options
        session = ort.InferenceSession(sys.stdin.buffer.read(), options(3))
        print(session.run(None, {"x": np.ones((1, 300), np.float32)})[0].shape)
    """
    assert run_alone(program, chain) == "(1, 300)"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_a_team_of_its_own(chain: bytes) -> None:
    """The child has none of its parent's threads; the alarm ends it if it waits for them."""
    program = """
        import os, signal, sys
        import numpy as np, onnxruntime as ort
        from one_node import options
        given, feeds = sys.stdin.buffer.read(), {"x": np.ones((1, 300), np.float32)}
        own = options(2)
        own.intra_op_num_threads = 1  # a thread pool of ONNX Runtime's own cannot be destroyed after a fork
        session = ort.InferenceSession(given, own)
        (expected,) = session.run(None, feeds)
        def is_same(session):
            return np.array_equal(session.run(None, feeds)[0], expected)
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            before = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1
            found = [is_same(session), is_same(ort.InferenceSession(given, own))]
            after = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 2
            del session
            os._exit(0 if all(found) and (before, after) == (1, 2) else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), is_same(session))
    """
    assert run_alone(program, chain) == "0 True"


LITTLE = """
    import resource, sys
    import numpy as np, onnxruntime as ort
    from one_node import options
    def leave(mib):
        (line,) = (line for line in open("/proc/self/status") if line.startswith("VmSize"))
        most = (int(line.split()[1]) << 10) + (mib << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    given = sys.stdin.buffer.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
def test_threads_that_there_are_not(chain: bytes) -> None:
    """Each has a stack, for which a process with a memory limit has no room: an error, and the process continues."""
    program = """
    options(2), leave(200)
    try:
        ort.InferenceSession(given, options(4000))
    except Exception as error:
        print(type(error).__name__)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    print(ort.InferenceSession(given, options(2)).run(None, {"x": np.ones((1, 300), np.float32)})[0].shape)
    """
    error, shape = run_alone(LITTLE + program, chain).splitlines()
    assert (error, shape) == ("Fail", "(1, 300)")


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
def test_rows_that_there_is_no_memory_for() -> None:
    """Four rows of 16 MiB are unpacked, not 32; without memory for four, the run fails and the session stays usable."""
    columns, rows = 1 << 22, 4
    fixed = {
        "numbers": np.zeros((rows, columns // 4096, 2048), np.uint8),
        "scales": np.ones((rows, columns // 4096), np.float32),
    }
    sizes = {"K": columns, "N": rows, "bits": 4, "block_size": 4096, "accuracy_level": 0}
    node = helper.make_node("MatMulNBits", ["x", "numbers", "scales"], ["y"], domain="com.microsoft", **sizes)
    program = """
    x = np.ones((2, 1 << 22), np.float32)
    session = ort.InferenceSession(given, options(2))
    session.run(None, {"x": x})
    leave(200)
    print(session.run(None, {"x": x})[0][0, 0])
    leave(20)
    try:
        session.run(None, {"x": x})
    except Exception as error:
        print(error)
    leave(200)
    print(session.run(None, {"x": x})[0][0, 0])
    """
    example = np.ones((2, columns), np.float32)
    first, error, last = run_alone(LITTLE + program, several([node], {"x": example}, fixed)).splitlines()
    assert (
        float(first) == float(last) == -8.0 * columns
        and "received a matrix with rows of more memory than there is" in error
    )


@pytest.mark.parametrize("index", [4, -5, 2**62, -(2**63)])
def test_an_index_beyond_a_table(index: int) -> None:
    table, numbers = np.ones((4, 3), np.float32), np.array([1, index])
    session = ort.InferenceSession(model("Gather", [table, numbers]), options())
    with pytest.raises(Exception, match="received an index beyond the end of a table"):
        session.run(None, {"x0": table, "x1": numbers})
    session.run(None, {"x0": table, "x1": np.array([1, -1])})  # the session stays usable


@pytest.mark.parametrize("type_", [np.int32, np.int64])
def test_integers_that_have_no_result(type_: type) -> None:
    least = np.iinfo(type_).min
    session = ort.InferenceSession(model("Div", [np.array([1], type_)] * 2), options())
    with pytest.raises(Exception, match="received a division by 0"):
        session.run(None, {"x0": np.array([1], type_), "x1": np.array([0], type_)})
    (found,) = session.run(None, {"x0": np.array([least], type_), "x1": np.array([-1], type_)})
    assert found[0] == least  # as two's complement wraps


def test_a_graph_is_taken_whole_or_not_at_all(chain: bytes) -> None:
    float64 = model("Add", [np.ones(2), np.ones(2)])
    plain = ort.SessionOptions()
    plain.log_severity_level = 4
    plain.add_provider_for_devices(devices(), {})
    (found,) = ort.InferenceSession(float64, plain).run(None, {"x0": np.ones(2), "x1": np.ones(2)})  # on the CPU
    np.testing.assert_array_equal(found, [2, 2])
    assert "received a tensor of the type 11" in plugin.get_refusal()
    with pytest.raises(Exception, match="fallback"):
        ort.InferenceSession(float64, options())


REFUSED = {
    "no operator": ("Sinh", [np.ones(2, np.float32)], {}, "expected an operator of this library for Sinh"),
    "accuracy": (
        "MatMulNBits",
        [np.ones((1, 32), np.float32), np.zeros((2, 1, 16), np.uint8), np.ones((2, 1), np.float32)],
        {"K": 32, "N": 2, "bits": 4, "block_size": 32, "accuracy_level": 2},
        "expected an attribute accuracy_level that is supported",
    ),
    "blocks": (
        "MatMulNBits",
        [np.ones((1, 32), np.float32), np.zeros((2, 1, 4096), np.uint8), np.ones((2, 1), np.float32)],
        {"K": 32, "N": 2, "bits": 4, "block_size": 8192, "accuracy_level": 4},
        "expected 4 or 8 bits in blocks of 16 or more",
    ),
    "computed shape": (
        "Reshape",
        [np.ones(2, np.float32), np.array([2])],
        {},
        "expected integers that the graph holds",
    ),
    "another axis": ("Softmax", [np.ones((2, 2), np.float32)], {"axis": 0}, "expected the last axis"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_says_why(case: str) -> None:
    op, inputs, attributes, why = REFUSED[case]
    with pytest.raises(Exception, match="fallback"):
        ort.InferenceSession(model(op, inputs, **attributes), options())
    assert why in plugin.get_refusal()
