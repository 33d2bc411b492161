"""Write a step graph in ONNX Runtime's format (.ort), for reduced builds on small devices.

ONNX Runtime's tools do the work, each in a separate process: one converts, the other reports which operators the mobile
accelerators support. An .ort is a single file of at most 2 GiB, readable by the ONNX Runtime that wrote it and by later
versions.
"""

from __future__ import annotations

import glob
import os
import shutil
from pathlib import Path

from t2r_export.files import write_bytes
from t2r_export.graph.trial import run_once
from t2r_export.paths import beside_ort
from t2r_export.python import run as run_python
from t2r_runtime.errors import UserError
from t2r_runtime.files import replacing, temporary_beside
from t2r_runtime.session.refusals import OPSET_SWITCH

MAX_BYTES = (1 << 31) - (1 << 20)  # the size limit of a flatbuffer is 2 GiB
STYLES = ("Fixed", "Runtime")
_CHECKER = "check_onnx_model_mobile_usability"
_OPTIONS = ("--enable_type_reduction", "--optimization_style")
_HEADER = "# for ONNX Runtime's build.py --include_ops_by_config FILE --enable_reduced_operator_type_support\n"


def to_ort(graph: Path, out: Path, style: str = "Fixed") -> list[Path]:
    """Convert `graph`, an .onnx file, to `out`.

    Args:
        style: Fixed applies ONNX Runtime's optimizations for the CPU. Runtime keeps the operators, for providers that
            compile, and saves the optimizations that may be applied at run time.

    Returns:
        The files written: `out`; the list of its operators and their types, for a reduced build of ONNX Runtime
        (build.py --include_ops_by_config); and the report of nodes that mobile accelerators support.

    Raises:
        UserError: the graph exceeds 2 GiB, or the folder is not writable.
    """
    assert style in STYLES, style
    weights = graph.parent.glob(f"{glob.escape(graph.name)}*.data")
    size = sum(file.stat().st_size for file in (graph, *weights))
    if size > MAX_BYTES:
        raise UserError(f"a graph of at most {MAX_BYTES:,} bytes for an .ort file", f"{size:,}", "write an .onnx")
    config, mobile = beside_ort(out)
    with temporary_beside(out, folder=True) as folder:
        _tool("convert_onnx_models_to_ort", graph, "--output_dir", folder, *_OPTIONS, style)
        (converted,), (operators,) = folder.glob("*.ort"), folder.glob("*.config")
        run_once(converted)
        write_bytes(config, _HEADER.encode() + b"".join(_operator_lines(operators)))
        write_bytes(mobile, mobile_report(graph).encode())
        with replacing(out) as part:
            shutil.copyfile(converted, part)
    return [out, config, mobile]


def mobile_report(graph: Path) -> str:
    """The nodes of an .onnx file that NNAPI and CoreML support, as reported by ONNX Runtime's checker."""
    lines = [line.removeprefix("INFO:").strip() for line in _tool(_CHECKER, graph).splitlines()]
    return "\n".join([f"By the tables of onnxruntime.tools.{_CHECKER}; nothing was executed.", "", *lines[1:], ""])


def _operator_lines(file: Path) -> list[bytes]:
    """The list without comments, which contain temporary file names."""
    return [line for line in file.read_bytes().splitlines(keepends=True) if not line.startswith(b"#")]


def _tool(name: str, *arguments: str | Path) -> str:
    """Run a tool of ONNX Runtime and return its stderr."""
    # the variable lets ONNX Runtime read opset 27; the result runs without it
    environment = {**os.environ, OPSET_SWITCH: "0"}
    code, out, err = run_python("-m", f"onnxruntime.tools.{name}", *map(str, arguments), env=environment)
    if code:
        raise RuntimeError(f"onnxruntime.tools.{name} failed:\n{out[-2000:]}\n{err[-4000:]}")
    return err
