"""Shell completion for bash, zsh and fish, by click's scripts and without heavy imports."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from {module} import {entry}
sys.argv[:] = ["t2r"]
code = {entry}()
heavy = {{"torch", "onnx", "onnxruntime"}} & set(sys.modules)
sys.exit(str(heavy) if heavy else code)
"""


def ask(entry: str, module: str = "t2r_export.cli", **environment: str) -> str:
    program = PROGRAM.format(entry=entry, module=module)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    "program, entry, module",
    [
        ("T2R", "main", "t2r_export.cli"),
        ("T2R_EXPORT", "export_main", "t2r_export.cli"),
        ("T2R_RUN", "main", "t2r_runtime.cli"),
    ],
)
def test_scripts(program: str, entry: str, module: str, shell: str) -> None:
    script = ask(entry, module, **{f"_{program}_COMPLETE": f"{shell}_source"})
    assert f"_{program}_COMPLETE={shell}_complete" in script
    assert program.lower().replace("_", "-") in script


@pytest.mark.parametrize(
    "typed, offered",
    [
        ("t2r fi", "plain,finetune"),
        ("t2r export --ta", "plain,--target"),
        ("t2r export --target np", "plain,npu"),
        ("t2r quantize a.onnx b.onnx --scheme w", "plain,w8\nplain,w4"),
        ("t2r export ", "file,"),
    ],
)
def test_completion_candidates(typed: str, offered: str) -> None:
    count = len(typed.split(" ")) - 1
    answer = ask("main", _T2R_COMPLETE="bash_complete", COMP_WORDS=typed, COMP_CWORD=str(count))
    assert answer.strip() == offered
