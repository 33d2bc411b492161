"""Every way a command ends: exit code and message."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from t2r_export.errors import CheckFailed
from t2r_runtime.cli import exit as errors
from t2r_runtime.errors import T2RError, UserError


def ending(body: Callable[[], None], capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    command = click.Command("probe", callback=body)
    code = errors.run(command, "t2r", list(arguments))
    return code, capsys.readouterr().err


def raising(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


USER_ENDINGS = [
    (UserError("K of 1 or more", "0", "choose K"), 2, "t2r: expected K of 1 or more; received 0; choose K\n"),
    (CheckFailed("logits differ by 1"), 1, "t2r: check failed: logits differ by 1\n"),
    (T2RError("odd"), 2, "t2r: odd\n"),
    (KeyboardInterrupt(), 130, "t2r: interrupted\n"),
    (click.Abort(), 130, "t2r: interrupted\n"),
    (BrokenPipeError(), 141, ""),
    (click.ClickException("no such shelf."), 2, "t2r: no such shelf; see `t2r --help`\n"),
    (
        OSError(errno.ENOSPC, "No space left on device", "/x/y.onnx"),
        2,
        "t2r: expected access to /x/y.onnx; received No space left on device; "
        "choose another path, or free disk space\n",
    ),
    (MemoryError(), 2, "t2r: expected enough memory; received none left; use a smaller batch, length or model\n"),
]


@pytest.mark.parametrize("error, code, line", USER_ENDINGS, ids=lambda v: type(v).__name__)
def test_ending_is_one_line(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert ending(raising(error), capsys) == (code, line)


def _in_an_import() -> None:
    """Ctrl-C during the import of a C library, which reports a failed import."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ImportError("initialization of _core failed") from None


def _in_a_clean_up() -> None:
    class Held:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    held = Held()
    del held
    time.sleep(10)
    raise AssertionError("nobody was interrupted")


@pytest.mark.parametrize("body", [_in_an_import, _in_a_clean_up])
def test_ctrl_c_during_import(body: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert ending(body, capsys) == (130, "t2r: interrupted\n")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_repeated_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    """Later signals do not interrupt the cleanup after the first."""
    cleaned = []

    def body() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            for _ in range(29):
                signal.raise_signal(signal.SIGINT)
            cleaned.append(True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert ending(body, capsys) == (130, "t2r: interrupted\n")
        assert cleaned == [True]
    finally:
        signal.signal(signal.SIGINT, before)


RAISE = "signal.raise_signal(signal.SIGINT)"
ODD_TIMES = {
    "while our own modules are imported": (f"sys.meta_path.insert(0, Finder('click', lambda: {RAISE}))", 130),
    "while torch is imported": (f"sys.meta_path.insert(0, Finder('torch', lambda: {RAISE}))", 130),
    "while the process ends": (f"atexit.register(lambda: [{RAISE} for _ in range(30)])", 2),
}
PROGRAM = """
import atexit, runpy, signal, sys
class Finder:
    def __init__(self, name, call): self.name, self.call = name, call
    def find_spec(self, name, *_):
        if name == self.name: self.call()
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv[1:] = ["evaluate", {file!r}, {file!r}]
{line}
runpy.run_module("t2r_export", run_name="__main__")
"""


@pytest.mark.parametrize("when", ODD_TIMES)
def test_ctrl_c_at_any_time(when: str, tmp_path: Path) -> None:
    """No traceback, neither at Python's startup nor at its exit."""
    line, code = ODD_TIMES[when]
    (tmp_path / "x.pt").write_bytes(b"no model")
    program = PROGRAM.format(file=str(tmp_path / "x.pt"), line=line)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr.startswith("t2r: interrupted\n" if code == 130 else "t2r: expected ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("package", ["t2r_export", "t2r_runtime"])
def test_little_is_imported_before_ctrl_c_is_handled(package: str) -> None:
    """typing is the standard module that is slow to import."""
    program = f"import sys, {package}.__main__; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, env=environment)
    assert f"{package}.__main__" in done.stdout.split(), done.stderr
    assert "typing" not in done.stdout.split()


def test_h_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["-h"], ["--help"]):
        assert errors.run(click.Command("probe", help="Some help."), "t2r", arguments) == 0
        assert "Some help." in capsys.readouterr().out


def test_success_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(lambda: None, capsys) == (0, "")


def test_mistyped_option(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = ending(lambda: None, capsys, "--colour")
    assert code == 2
    assert line == "t2r: expected an option of t2r; received --colour; see `t2r --help`\n"


def test_unprintable_name_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    _, line = ending(raising(UserError("a tensor", "\x1b[2Jw\nx\u202e", "look")), capsys)
    assert line == "t2r: expected a tensor; received \\x1b[2Jw x\\u202e; look\n"


def test_bug_writes_a_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    command = click.Command("probe", callback=lambda name: {}[name], params=[click.Argument(["name"])])
    codes = [errors.run(command, "t2r", ["a b"]) for _ in range(2)]
    lines = capsys.readouterr().err.splitlines()
    reports = sorted(tmp_path.iterdir())
    assert codes == [3, 3]
    assert len(lines) == len(reports) == 2  # one line each, and no report overwrites another
    match = re.fullmatch(r"t2r: bug: KeyError: 'a b'; please report it with the file (.*)", lines[0])
    assert match
    text = Path(match[1]).read_text()
    assert text.startswith("command: t2r 'a b'\npython: 3.")
    assert re.search(r"^torch: \d", text, re.MULTILINE)
    assert "Traceback (most recent call last)" in text
    assert "KeyError: 'a b'" in text
    if os.name == "posix":
        assert Path(match[1]).stat().st_mode & 0o077 == 0


def test_bug_report_without_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    code, text = ending(raising(ZeroDivisionError("by zero")), capsys)
    assert code == 3
    assert "Traceback" in text
    assert re.search(r"t2r: bug: ZeroDivisionError: by zero; the report is above, as no file could be", text)


@pytest.mark.skipif(os.name != "posix", reason="pipes and /dev/full are POSIX")
def test_closed_pipe_is_quiet() -> None:
    program = (
        "import click, sys; from t2r_runtime.cli import exit as errors\n"
        "body = lambda: [click.echo('x' * 1000) for _ in range(1000)]\n"
        "sys.exit(errors.run(click.Command('probe', callback=body), 't2r', []))"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_stdout_on_full_disk() -> None:
    program = (
        "import click, sys; from t2r_runtime.cli import exit as errors\n"
        "sys.exit(errors.run(click.Command('probe', callback=lambda: click.echo('x')), 't2r', []))"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("t2r: expected access to")
    assert done.stderr.count("\n") == 1
