"""Compile a step graph ahead of time into an EPContext model of ONNX Runtime.

An accelerator's compiler may need minutes and gigabytes that a device lacks. The compiled file holds the program in
place of nodes and weights, keeps inputs, outputs and metadata, and opens with the same provider and provider options.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from t2r_export.graph.reader import load, programs, read_graph
from t2r_export.paths import check_outputs
from t2r_runtime.contract.signature import ENCODER, ROLES
from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file, replacing, temporary_beside
from t2r_runtime.session.providers import PROVIDERS
from t2r_runtime.session.session import open_graph


@dataclass(frozen=True)
class CompileReport:
    """Result of `compile_graph`."""

    files: list[Path]
    provider: str
    placement: Mapping[str, int]  # provider → number of nodes of the source
    programs: int  # compiled programs in the file


def compile_graph(
    source: str | Path,
    out: str | Path,
    provider: str,
    provider_options: Mapping[str, str] | None = None,
    allow_fallback: bool = False,
) -> CompileReport:
    """Compile the graph at `source` for `provider` and write it to `out` as one file, after a trial opening.

    Args:
        provider_options: options of the provider; a program runs only on the chip that they name.
        allow_fallback: keep nodes that the provider does not support, for the CPU.

    Raises:
        UserError: a provider that is unknown, missing or cannot save programs; a graph that was not exported by t2r or
            is already compiled; a graph that the provider supports only in part.
    """
    source, out = existing_file(source, "an ONNX file"), Path(out)
    able = [name for name, entry in PROVIDERS.items() if entry.compiles]
    if provider in PROVIDERS and provider not in able:
        raise UserError(f"a provider that can save programs, one of {', '.join(able)}", provider, "choose one of those")
    check_outputs([("compiled graph", out)], [source])
    if programs(read_graph(source).step):
        raise UserError("an uncompiled graph", f"{source}, which is compiled already", "compile its source")
    with temporary_beside(out, folder=True) as folder:
        made = folder / "compiled.onnx"
        config = {"ep.context_enable": "1", "ep.context_file_path": str(made), "ep.context_embed_mode": "1"}
        graph = open_graph(source, provider, None, provider_options, allow_fallback, config, companions=())
        for role in graph.signature.graphs:
            do = "translators are not compiled" if role == ENCODER else f"export without --{role.replace('_', '-')}"
            raise UserError("a graph without companions to compile", f"one with a {ROLES[role]}", do)
        count = programs(load(made)) if made.exists() else 0
        if not count:
            raise UserError(f"a compiled program from {provider}", "none", "see docs/providers.md for supported graphs")
        compiled = open_graph(made, provider, None, provider_options, allow_fallback)
        assert compiled.signature == graph.signature, "the metadata is what it was"
        with replacing(out) as part:
            shutil.copyfile(made, part)
    return CompileReport([out], provider, graph.placement, count)
