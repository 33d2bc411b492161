"""Snapshots: the states of a decoder in an uncompressed .npz file, one member per state.

    t2r.json       {"snapshot": 1, "checkpoint_sha256": "…", "position": 517, "token": 3}
    S.3.npy …      one array per state of the graph's metadata

`token` has been chosen but not read; null or missing if there is none. runtimes/contract/snapshots.md defines the
format byte by byte, for all languages.

Snapshots are untrusted (t2r_runtime.session.archive): names, dtypes and shapes are checked against the graph before an
array is read.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t2r_runtime.checks import require_value
from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import existing_file
from t2r_runtime.outputs import Kind, check_output
from t2r_runtime.session import archive
from t2r_runtime.session.archive import HEAD, Archive, Array, require_kind_of_file
from t2r_runtime.session.interface import check_states

KIND, VERSION = "snapshot", 1  # in the head
WHAT = "a snapshot written by save_state"
MEMBER_BYTES = 1 << 10  # of a member beside its array and its name, which is written twice
ANEW = "read the prompt with this model and save it again"


def most_bytes(signature: Signature) -> int:
    """Maximum size of a snapshot of one sequence."""
    members = (spec.bytes(1) + 2 * len(spec.name.encode()) + MEMBER_BYTES for spec in signature.states)
    return archive.MAX_HEAD_BYTES + MEMBER_BYTES + sum(members)


def check_place(path: Path, graph: Path) -> None:
    """Raise UserError unless a snapshot of `graph` may be written to `path`; only another snapshot is replaced."""
    if check_output("saved state", path, Kind(), [graph]):
        require_kind_of_file(path, KIND, "saved state")


def save(
    path: str | Path, signature: Signature, states: Mapping[str, Array], position: int, token: int | None = None
) -> None:
    """Write states to `path` atomically.

    Raises:
        UserError: the file cannot be written, another kind of file is there, or the token is out of range.
    """
    expected = f"a token in 0 … {signature.vocab_size - 1}, or None"
    require_value(_is_token(token, signature), expected, token, "token")
    head = {KIND: VERSION, "checkpoint_sha256": signature.checkpoint_sha256, "position": position}
    head |= {} if token is None else {"token": token}
    archive.write(path, head, {spec.name: states[spec.name] for spec in signature.states}, "saved state")


def load(path: str | Path, signature: Signature) -> tuple[dict[str, Array], int, int | None]:
    """Read states for the graph of `signature`.

    Returns:
        The states by name, the number of tokens read, and the chosen token, if any.

    Raises:
        UserError: not a snapshot, or damaged, of another model, or with other states.
    """
    path = existing_file(path, WHAT)
    try:
        with zipfile.ZipFile(path) as opened:
            found = Archive(opened)
            position, token = _check_head(found.head, signature)
            check_states(signature, found.forms)
            return {name: found.array(name) for name in found.forms}, position, token
    except UserError:
        raise
    except Exception as error:  # numpy parses headers as Python literals, with errors of any type
        raise _damaged(path, printable(error)) from error


def _check_head(head: Mapping[str, Any], signature: Signature) -> tuple[int, int | None]:
    if type(head.get("position")) is not int or not 0 <= head["position"] < 1 << 62:
        raise ValueError(f"{HEAD} is malformed")
    if head.get("snapshot") != VERSION:
        received = f"version {head.get('snapshot')!r}"
        raise UserError(f"a snapshot of version {VERSION}", received, ANEW, "snapshot")
    theirs, ours = head.get("checkpoint_sha256"), signature.checkpoint_sha256
    if theirs != ours:
        received = f"one of the checkpoint {str(theirs)[:12]!r}"
        raise UserError(f"a snapshot of the checkpoint {ours[:12]}", received, ANEW, "snapshot")
    if not _is_token(head.get("token"), signature):
        raise ValueError(f"{HEAD} has a token out of range")
    return head["position"], head.get("token")


def _is_token(value: object, signature: Signature) -> bool:
    return value is None or (type(value) is int and 0 <= value < signature.vocab_size)


def _damaged(path: Path, why: str) -> UserError:
    return UserError(WHAT, f"{path}: {why}", ANEW, "snapshot")
