"""Exit codes of commands, and at most one line on stderr.

    0    done
    1    a check failed (t2r_export.errors.CheckFailed)
    2    an error that the user can fix (UserError, a mistyped command, a full disk)
    3    a bug: the line names the file that holds the traceback
    130  interrupted with Ctrl-C
    141  stdout was closed by its reader, such as `head`; nothing is printed

130 and 141 are what a shell reports for SIGINT and SIGPIPE.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import click

from t2r_runtime.errors import T2RError, UserError, did_you_mean, printable

USER = UserError.exit_code
BUG = 3
INTERRUPTED = 130
PIPE_CLOSED = 141
AGAIN = 0.05  # seconds until a lost Ctrl-C is raised again
PATIENCE = 1.0  # seconds in which further Ctrl-C are ignored, so that cleanup can finish

# errors of the environment, raised by any library
ENVIRONMENT = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
    *(errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
)
REPORTED_PACKAGES = ("t2r-export", "t2r-runtime", "torch", "onnx", "onnxruntime", "numpy")


def run(command: click.Command, program: str, arguments: Sequence[str], last: bool = False) -> int:
    """Run a click command, report its error, and return the exit code.

    Args:
        last: the process ends after this command, and ignores Ctrl-C from then on.
    """
    _open_streams()
    with _interrupts(last) as seen:
        try:
            code = _run(command, program, arguments, seen)
        except KeyboardInterrupt:  # while the error was being printed
            code = INTERRUPTED
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _forget_stdout()
    return code


def _open_streams() -> None:
    """Open /dev/null for every closed standard stream: Python has None for it, and the next file takes its number."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)


@contextlib.contextmanager
def _interrupts(last: bool) -> Iterator[list[float]]:
    """Yield a list of the times of all Ctrl-C, unless the caller has its own handler.

    A C extension may turn KeyboardInterrupt into another error while it is imported, and Python prints and drops one
    raised in a finalizer: that one is raised again.
    """
    seen: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    lost = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal lost
        now = time.monotonic()
        if lost or not seen or now - seen[-1] >= PATIENCE:
            lost = False
            seen.append(now)
            signal.default_int_handler(number, frame)

    def again(unraisable: Any) -> None:
        nonlocal lost
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            lost = True
            threading.Timer(AGAIN, _thread.interrupt_main).start()  # raised here it would be dropped too
        else:
            hook(unraisable)

    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, handler)
        sys.unraisablehook = again
    try:
        yield seen
    finally:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_IGN if last else before)
            sys.unraisablehook = hook


def _run(command: click.Command, program: str, arguments: Sequence[str], interrupts: Sequence[float]) -> int:
    try:
        if any("\0" in argument for argument in arguments):  # possible only when called from Python
            raise UserError("arguments without a zero byte", "one with it", "leave it out")
        # not command.main(), which prints errors and exits with other codes
        with command.make_context(program, list(arguments), help_option_names=["-h", "--help"]) as context:
            command.invoke(context)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USER
    except click.ClickException as error:
        return _end(program, _usage(error, _verb(command, program, arguments)), USER)
    except T2RError as error:
        return _end(program, f"{error.prefix}{error}", error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _end(program, "interrupted", INTERRUPTED)
    except BrokenPipeError:
        return PIPE_CLOSED
    except Exception as error:
        if interrupts:
            return _end(program, "interrupted", INTERRUPTED)
        if (message := _environment(error)) is not None:
            return _end(program, message, USER)
        return _report_bug(program, arguments, error)


def _end(program: str, message: str, code: int) -> int:
    with contextlib.suppress(OSError):  # nobody reads stderr, or its disk is full
        # messages may quote control characters from files
        click.echo(f"{program}: {printable(message, limit=None)}", err=True)
    return code


def _verb(command: click.Command, program: str, arguments: Sequence[str]) -> str:
    """The program and the typed verb, for click errors without a context."""
    verbs = command.list_commands(click.Context(command)) if isinstance(command, click.Group) else ()
    return f"{program} {arguments[0]}" if arguments and arguments[0] in verbs else program


def _usage(error: click.ClickException, program: str) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else program
    see = f"see `{path} --help`"
    if isinstance(error, click.NoSuchOption):
        known = [name for param in context.command.params for name in param.opts] if context is not None else []
        return str(UserError(f"an option of {path}", error.option_name, _nearest(error.option_name, known, see)))
    param = getattr(error, "param", None)
    if param is None:
        return f"{error.format_message().rstrip('.')}; {see}"
    name = param.opts[0] if isinstance(param, click.Option) else param.make_metavar(context)
    if isinstance(error, click.MissingParameter):
        return str(UserError(name, "none", see))
    given = re.match(r"'(.*)' is not one of ", getattr(error, "message", ""))
    if given is None or not isinstance(param.type, click.Choice):
        return f"{error.format_message().rstrip('.')}; {see}"
    return str(UserError(f"{name} to be one of {', '.join(param.type.choices)}", repr(given[1]), see))


def _nearest(option: str, known: Sequence[str], otherwise: str) -> str:
    """A suggestion for a misspelt option. Its dashes do not count: they would make short names alike."""
    do = did_you_mean(option.lstrip("-"), [name.lstrip("-") for name in known], "")
    return do.replace("mean ", "mean --") or otherwise


def _environment(error: Exception) -> str | None:
    """The message of an error of the environment (memory, disk, permission), or None for any other."""
    # torch's class by name, since this module must not import torch
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return str(UserError("enough memory", str(error) or "none left", "use a smaller batch, length or model"))
    if isinstance(error, OSError) and error.errno in ENVIRONMENT:
        place = error.filename if error.filename is not None else _stream(error) or "a file"
        return str(UserError(f"access to {place}", str(error.strerror), "choose another path, or free disk space"))
    return None


def _stream(error: OSError) -> str | None:
    """The stream that an error without a file name is about, known by the frame of `click.echo`; None: a file."""
    import traceback

    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code is click.echo.__code__)
    return next(("stderr" if frame.f_locals["err"] else "stdout" for frame in frames), None)


def _report_bug(program: str, arguments: Sequence[str], error: Exception) -> int:
    import platform
    import shlex
    import tempfile
    import traceback

    report = "".join(
        [
            f"command: {shlex.join([program, *arguments])}\n",
            f"python: {sys.version}\nplatform: {platform.platform()}\n",
            *(f"{name}: {_version(name)}\n" for name in REPORTED_PACKAGES),
            "\n",
            *traceback.format_exception(error),
        ]
    )
    summary = f"bug: {type(error).__name__}: {error}"
    try:
        # readable by the owner only: the command line may contain a prompt
        handle, path = tempfile.mkstemp(prefix="t2r-", suffix=".log")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(report)
    except OSError as failure:
        click.echo(report, err=True)
        return _end(program, f"{summary}; the report is above, as no file could be written ({failure})", BUG)
    return _end(program, f"{summary}; please report it with the file {path}", BUG)


def _version(package: str) -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _forget_stdout() -> None:
    """Redirect stdout to null: the interpreter's last flush would fail and change the exit code to 120."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
