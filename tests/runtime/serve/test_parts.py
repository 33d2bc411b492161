"""Parts of the server without a process: fields, metrics, the command line."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cli_models import Output
from runtime import graphs, translators
from runtime.serve.server import letters
from runtime.test_tokenizer import pieces
from t2r_runtime import Decoder, Sampling, Tokenizer
from t2r_runtime.cli import main
from t2r_runtime.cli.serve import command
from t2r_runtime.serve.chats import Chat
from t2r_runtime.serve.engine import Engine
from t2r_runtime.serve.errors import ApiError, of
from t2r_runtime.serve.fields import Fields, parsed
from t2r_runtime.serve.job import Event, Job
from t2r_runtime.serve.metrics import Metrics
from t2r_runtime.serve.writer import LogProb, Piece, Writer


def failed(capsys: Output, *arguments: object) -> str:
    assert main(["serve", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_missing_extra_is_one_line(
    package: str, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == package else right(name, *rest))
    assert failed(capsys, letters(tmp_path)) == (
        f"expected the package {package}; received a Python without it; pip install starlette uvicorn\n"
    ).join(["t2r-run: ", ""])


def test_what_the_command_refuses(tmp_path: Path, capsys: Output) -> None:
    graph = letters(tmp_path)
    (tmp_path / "again").mkdir()
    other = letters(tmp_path / "again")
    growing = graphs.save(tmp_path / "growing.onnx", "both")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for arguments, message in (
            ([tmp_path / "none.onnx"], "none.onnx"),
            ([graph, other, "--port", 0], "expected graphs of different file names; received two named letters"),
            ([growing, "--port", 0], "expected states of constant size for texts of different lengths side by side"),
            (
                [graph, "--port", 0, "--draft", "lookup"],
                "expected a draft-check graph beside the step graph; received none",
            ),
            ([graph, growing, "--port", 0], f"side by side as {growing}; received a model whose"),
            ([graph, "--port", 0, "--rows", 1 << 30], "bytes; choose a smaller batch (fewer rows)\n"),
            (
                [translators.save(tmp_path / "t"), "--port", 0, "--rows", 1 << 30],
                "bytes; choose a smaller batch (fewer rows)\n",
            ),
            ([graph, "--port", taken.getsockname()[1]], "Address already in use; choose another --host or --port"),
            ([graph, "--host", "no such host"], "expected to listen on no such host:8080"),
            ([graph, "--port", 0, "--api-key", "a b"], "expected an API key of printable ASCII"),
            ([graph, "--port", 0, "--api-key", ""], "expected an API key of printable ASCII"),
            (
                [graph, "--port", 0, "--keep", graph],
                f"expected a writable folder as --keep {graph}; received a file; name another",
            ),
            ([graph, "--port", 0, "--keep", graph / "in"], "received Not a directory; name another"),
            ([graph, "--port", 70000], "--port"),
            ([], "GRAPH"),
        ):
            assert message in failed(capsys, *arguments), arguments


def test_every_option_has_help() -> None:
    for option in command.params:
        if isinstance(option, click.Option):
            assert len((option.help or "").split()) >= 3, option.name


def test_serving_needs_no_import_before_it_starts() -> None:
    """The modules of the server import neither Starlette nor uvicorn."""
    program = (
        "import sys, t2r_runtime.serve.run, t2r_runtime.cli.serve; "
        "sys.exit(bool({'starlette', 'uvicorn', 'onnxruntime', 'tokenizers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], env=os.environ).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone has arenas")
@pytest.mark.parametrize("bounded", [False, True])
def test_one_arena_of_malloc(bounded: bool, tmp_path: Path) -> None:
    """A second thread allocates; malloc_info lists an arena as a heap."""
    program = f"""
import ctypes, threading
from t2r_runtime.cli.serve import one_arena
libc = ctypes.CDLL(None)
libc.fopen.restype = libc.malloc.restype = ctypes.c_void_p
{"one_arena()" if bounded else ""}
thread = threading.Thread(target=lambda: libc.malloc(1000))
thread.start()
thread.join()
file = ctypes.c_void_p(libc.fopen({str(tmp_path / "heaps.xml").encode()!r}, b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert ((tmp_path / "heaps.xml").read_text().count("<heap nr=") == 1) == bounded


def test_fields_are_taken_once() -> None:
    fields = Fields({"a": None, "b": 3, "user": "me", "inner": {"c": True}})
    assert fields.text("a", "default") == "default"
    assert fields.whole("b", 0, 1, 5) == 3
    assert fields.inner("inner").flag("c") is True
    fields.end()
    inner = Fields({"inner": {"c": 1}}).inner("inner")
    with pytest.raises(ApiError, match=r"expected true or false as inner\.c; received 1") as caught:
        inner.flag("c")
    assert caught.value.param == "inner.c"
    unknown = parsed(b'{"logprob": 1}')
    unknown.take("logprobs")
    with pytest.raises(ApiError, match="did you mean logprobs"):
        unknown.end()


@pytest.mark.parametrize(
    "body, received",
    [
        (b"null", "null"),
        (b"true", "true"),
        (b'[null, false, "\\u0000\xc3\xbc"]', '[null, false, "\\u0000ü"]'),
        (b"[" * 500 + b"1" * 200 + b"]" * 500, "[" * 99 + "…"),
        (b"[" * 100_000, "a body with arrays or objects nested too deeply"),
        (b'"\xff"', "bytes that are not UTF-8, at offset 1"),
        (b"9" * 5000, "an integer of too many digits"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_values_are_shown_as_json(body: bytes, received: str) -> None:
    with pytest.raises(ApiError) as caught:
        parsed(body)
    assert caught.value.message == f"expected a JSON object; received {received}; correct the body"


def test_long_names_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their similarity to known names takes time in proportion to their length, in the thread of all requests."""
    compared: list[str] = []
    monkeypatch.setattr("difflib.get_close_matches", lambda name, *_: compared.append(name) or [])
    for name in ("promt", "x" * 1_000_000):
        with pytest.raises(ApiError, match="leave it out"):
            Fields({name: 1}).end()
    assert compared == ["promt"]


def test_bug_tells_nothing_of_itself() -> None:
    error = of(ZeroDivisionError("secret"))
    assert (error.status, error.code) == (500, "bug")
    assert "secret" not in str(error.body)


def test_bug_while_a_request_is_added(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request is answered, and so is the next one."""
    engine = Engine("m", Decoder(letters(tmp_path)), 2, 2, Metrics())

    async def answer() -> Event:
        events: asyncio.Queue[Event] = asyncio.Queue()
        engine.submit([Job([1, 2], 1, [Sampling()], [Writer(0, None, [])], 60, events)])
        return await asyncio.wait_for(events.get(), 60)

    def failing(*_: object) -> None:
        raise MemoryError

    async def both() -> tuple[Event, Event]:
        engine.start(asyncio.get_running_loop())
        try:
            with monkeypatch.context() as patched:
                patched.setattr(Job, "add_to", failing)
                failed = await answer()
            return failed, await answer()
        finally:
            await asyncio.to_thread(engine.stop)

    failed, right = asyncio.run(both())
    assert isinstance(failed, ApiError) and failed.code == "bug" and "MemoryError" in capsys.readouterr().err
    assert isinstance(right, Piece) and right.finish == "length"


def test_metrics_text() -> None:
    metrics = Metrics()
    metrics.count("t2r_requests_total", status="200")
    metrics.count("t2r_requests_total", 2, status="200")
    metrics.time("t2r_step_seconds", 0.002, model='a"\\\n')
    metrics.time("t2r_step_seconds", 99, model='a"\\\n')
    metrics.gauge("t2r_kept_bytes", lambda: 1.5)
    lines = metrics.text().splitlines()
    assert 't2r_requests_total{status="200"} 3' in lines
    label = 'model="a\\"\\\\\\n"'
    assert f't2r_step_seconds_bucket{{{label},le="0.001"}} 0' in lines
    assert f't2r_step_seconds_bucket{{{label},le="0.0025"}} 1' in lines
    assert f't2r_step_seconds_bucket{{{label},le="+Inf"}} 2' in lines
    assert f"t2r_step_seconds_sum{{{label}}} 99.002" in lines
    assert "t2r_kept_bytes 1.5" in lines
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


def test_writer_without_tokenizer() -> None:
    writer = Writer(3, None, [1])
    assert not writer.token(5, shown=True)
    assert not writer.token(7, shown=False)
    piece = writer.take("length")
    assert (piece.index, piece.text, piece.tokens, piece.finish) == (3, "", [5, 7], "length")
    assert writer.generated == 2


def test_chat_shows_bytes_of_tokens() -> None:
    """Bytes of a character that is spread over tokens, in `logprobs` and in `top_logprobs`."""
    first, second = 3 + 0xDE, 3 + 0x80  # <0xDE> and <0x80>
    piece = Piece(0, logprobs=[LogProb(first, -0.5, [(first, -0.5), (second, -1.5)], 0)])
    choice = Chat(Tokenizer(pieces()), tokens=False).choice(piece)
    [shown] = choice["logprobs"]["content"]
    assert (shown["token"], shown["bytes"]) == ("<0xDE>", [0xDE])
    assert [each["bytes"] for each in shown["top_logprobs"]] == [[0xDE], [0x80]]
