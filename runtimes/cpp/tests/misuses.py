"""Misuses of the API, by the names that each language's program `misuse FOLDER NAME` takes, and their errors.

The program must print one line, which begins with the kind, and exit with 2.
"""

from __future__ import annotations

NO_PATH = "file: expected a path; received one with a zero byte in it; "
MISUSES = {
    "no-file": "file: expected an ONNX file; received ",
    "zero-byte": NO_PATH,
    "zero-byte-saved": NO_PATH,
    "zero-byte-loaded": NO_PATH,
    "prefill-graph": "graph: expected a step graph; received a prefill graph; ",
    "token": "token: expected tokens in 0 … 16; received 17; ",
    "position": "position: expected at most 40 tokens, ",
    "batch": "batch: expected tokens of 1 sequences; received 2; ",
    "rows": "batch: expected rows of one length; received 2 and 1 tokens; ",
    "other-model": "snapshot: expected a snapshot of the checkpoint ",
    "state-name": "snapshot: expected a state's name and dtype; received a zero byte in it; ",
    "no-utf8": "tokenizer: expected text in UTF-8; ",
    "closed": "state: expected an open decoder; received one that was closed",
    "closed-tokenizer": "state: expected an open tokenizer; received one that was closed",
    "moved": "argument: expected an open decoder; received NULL; ",
    "two-threads": "state: expected one call at a time in a decoder; ",
    "from-a-callback": "state: expected one call at a time in a decoder; ",
    "copied": "position: expected at most 40 tokens, where this model's positions end; received 1 more after 40; ",
    "taken": "batch: expected decoders of one opened graph; received one of another; ",
    "provider": "provider: expected every node of the step graph on CPU; received ",
    "session-option": "graph: expected an ONNX graph that ONNX Runtime accepts; received ",
    "long-source": "position: expected a source of at most 2 tokens; received 3; ",
    "late-threads": "state: expected a call before the first graph is opened; received one after it; ",
    "no-graph-in-memory": "graph: expected an ONNX graph; ",
    "damaged-in-memory": "snapshot: expected a snapshot ",
    "empty-stop": "argument: expected stop texts of 1 to 1024 bytes; received 0; ",
    "zero-byte-stop": "argument: expected a text; received one with a zero byte in it; ",
    "cancelled": "cancelled: expected the call to go on; received t2r_cancel from another thread; ",
}
_PATHS = {"zero-byte", "zero-byte-saved", "zero-byte-loaded"}
UNSAYABLE = {
    "c": {
        *_PATHS,
        "zero-byte-stop",
        "rows",
        "state-name",
        "moved",
    },  # C: texts end at a zero byte, rows are one array, nothing is moved
    "cpp": {"rows", "state-name"},  # these use the types of t2r.h
    # these do not compile, which lib.rs tests
    "rust": {"closed", "closed-tokenizer", "moved", "two-threads", "from-a-callback"},
    "go": {"moved", "cancelled"},  # a context that ends has an error of its own
    "java": {*_PATHS, "moved"},  # no java.nio.file.Path has a zero byte
}


def sayable(language: str) -> list[str]:
    """The misuses that a program of this language can express."""
    return [name for name in MISUSES if name not in UNSAYABLE[language]]


def check(name: str, written: str, told: str) -> None:
    """Check the program's standard output, `written`, and its standard error, `told`."""
    assert told.startswith(MISUSES[name]) and told.endswith("\n") and told.count("\n") == 1 and not written
