"""Errors of graphs that cannot be opened."""

from __future__ import annotations

import os
import re
from pathlib import Path

from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import existing_file, require_path

OPSET_SWITCH = "ALLOW_RELEASED_ONNX_OPSET_ONLY"  # 0 lets ONNX Runtime load newer opsets
_TOO_NEW = re.compile("Current official support for domain .* is till opset [0-9]+")
_TOO_NEW_FORMAT = re.compile("Unsupported model IR version: [0-9]+, max supported IR version: [0-9]+")
_UNKNOWN_OPERATOR = re.compile(r"([\w.]+:\w+)\(-?[0-9]+\) is not a registered function/op")
_NO_DATA = re.compile('External data path does not exist: "([^"]+)"')
_BAD_DATA = re.compile("External (data path|initializer)")
_HEADER_BYTES = 8  # of safetensors: the length of the JSON header


def existing_graph(path: str | Path) -> Path:
    """Check that `path` is a file and not a checkpoint.

    Raises:
        UserError: the file does not exist, or is a Hugging Face folder, a model.pt, a GGUF or a safetensors file.
    """
    require_path(path)
    path = Path(path)
    if _is_checkpoint(path):
        do = f"export it first: t2r-export {path} {path.stem}.onnx"
        raise UserError("an exported graph", f"the checkpoint {path}", do, "graph")
    return existing_file(path, "an ONNX file")


def not_opened(path: Path, who: str, error: Exception) -> UserError:
    """Convert an exception of ONNX Runtime for the graph at `path`.

    Args:
        who: the software that rejected the graph, such as "ONNX Runtime".
    """
    text = str(error)
    if too_new := _TOO_NEW.search(text):
        return UserError(
            f"an opset that {who} reads",
            f"a newer one ({too_new[0]})",
            f"export with --target portable or fused, or set {OPSET_SWITCH}=0 in the environment",
            "version",
        )
    if unknown := _UNKNOWN_OPERATOR.search(text):
        do = "use a newer ONNX Runtime: `t2r inspect` names the first that opens this graph, or export another target"
        return UserError(f"operators that {who} has", f"the operator {printable(unknown[1])}", do, "version")
    if lost := _NO_DATA.search(text):
        return UserError(
            f"the weights {printable(Path(lost[1]).name)} beside {path}",
            "no such file",
            "copy the files beside the graph too, without renaming them",
            "weights",
        )
    if too_new := _TOO_NEW_FORMAT.search(text):
        do = "export the model again, or use a newer ONNX Runtime"
        return UserError(f"a file format that {who} reads", f"a newer one ({too_new[0]})", do, "version")
    why = f"an ONNX graph that {who} accepts", printable(error), "export the model again with t2r-export"
    return UserError(*why, "weights") if _BAD_DATA.search(text) else UserError(*why, "graph")


def _is_checkpoint(path: Path) -> bool:
    if os.path.isdir(path):
        return (path / "config.json").is_file()
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        head = file.read(_HEADER_BYTES + 1)
    if head.startswith(b"GGUF"):
        return True
    if head.startswith(b"PK"):
        import zipfile  # imported only for archives

        try:
            with zipfile.ZipFile(path) as archive:
                return any(name.endswith("/data.pkl") for name in archive.namelist())
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
            return False
    length = int.from_bytes(head[:_HEADER_BYTES], "little")
    return head[_HEADER_BYTES:] == b"{" and length + _HEADER_BYTES <= os.path.getsize(path)
