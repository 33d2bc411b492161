"""Write a model's step as an ONNX graph whose states are inputs and outputs (runtimes/CONTRACT.md).

Requires a checkpoint. Folds what can be folded, runs the model's own `step` with operators that record instead of
computing, checks the graph, and writes it with the metadata that a runtime needs. Never asks which mixer a layer has:
it knows a model by its `step` and its `state_spec` alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import helper

from t2r_export import __version__
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig, graph_format
from t2r_export.config.model import ModelConfig
from t2r_export.config.targets import find
from t2r_export.fold import LayerFold, fold
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.file import EXTERNAL_BYTES, Weight, companion, write_graph
from t2r_export.graph.generation import check, wrap
from t2r_export.graph.layout import packed, with_low
from t2r_export.graph.ort import folder_beside, write_ort
from t2r_export.graph.recording import build_graph, declarations
from t2r_runtime.errors import UserError
from t2r_runtime.signature import BATCH, GENERATE, PREFILL, ROLES, STEP, TOKENS, Signature, StateSpec


@dataclass(frozen=True)
class ExportReport:
    """What was written."""

    files: list[Path]
    parameters: int
    nodes: int
    signature: Signature
    folds: list[LayerFold]
    no_prefill: str | None = None  # why there is no graph for prompts, where one was asked for


@dataclass(frozen=True)
class Built:
    """Graphs of a model, and beside them the weights that they do not hold."""

    graph: onnx.ModelProto
    weights: Mapping[str, Weight]
    others: Mapping[str, onnx.ModelProto]  # by their role, of graph.file.COMPANIONS
    report: ExportReport  # of no files yet


def export(
    checkpoint: Checkpoint,
    path: str | Path,
    config: ExportConfig | None = None,
    external_bytes: int = EXTERNAL_BYTES,
) -> ExportReport:
    """Write the single-step graph of `checkpoint` to `path`: float32, in the form of the config's target.

    If the config asks for it and every layer has a form for it, a graph for prompts lies beside it, of the same states
    and the same file of weights; and one that writes by itself, likewise. Weights past `external_bytes` always go to a
    file beside the graph. Nothing stands at `path` until all of it is whole. A name that ends in .ort gets ONNX
    Runtime's own format, and what t2r_export.graph.ort writes beside it.

    Raises:
        UserError: an option or path that cannot be. CheckFailed: a layer whose fold is not exact.
    """
    config, path = config or ExportConfig(), Path(path)
    built = build(checkpoint, path, config)
    if graph_format(path, config.format) == "ort":
        with folder_beside(path) as folder:
            write_graph(built.graph, built.weights, folder / "graph.onnx", external_bytes)
            files = write_ort(folder / "graph.onnx", path, find(config.target).ort_style)
    else:
        others = {companion(path, other, kind): other for kind, other in built.others.items()}
        files = write_graph(built.graph, built.weights, path, external_bytes, others)
    return dataclasses.replace(built.report, files=files)


def build(checkpoint: Checkpoint, path: Path, config: ExportConfig) -> Built:
    """What `export` writes to `path`, with its metadata; raises what `export` raises."""
    kind = graph_format(path, config.format)
    model, folds = fold(checkpoint.model)
    model.positions.past_end = config.past_end
    target = find(config.target)
    if config.top_k is not None and config.top_k > model.config.vocab_size:
        raise UserError(
            f"at most {model.config.vocab_size} logits, the model's vocabulary", str(config.top_k), "correct --top-k"
        )
    states = model.state_spec()
    signature = _signature(checkpoint, model.config, states, folds, config)
    if config.loop:
        _only_onnx(kind, GENERATE)
        check(signature)
    if target.static:
        signature.require_constant(f"for target {config.target}")
    batch = BATCH if config.batch is None else config.batch
    graph, ops = build_graph(model, states, batch, target, config.top_k, float16_safe=config.float16_safe)
    if config.float16_safe:
        states = with_low(states, ops.low_after)
        signature = dataclasses.replace(signature, states=tuple(states))
    others: dict[str, onnx.ModelProto] = {}
    weights = dict(ops.weights)
    no_prefill = None
    if config.loop:
        others[GENERATE] = wrap(graph, signature, declarations(ops))
    if config.prefill:
        _only_onnx(kind, PREFILL)
        no_prefill = model.parallel_obstacle()
        if no_prefill is None:
            prompts, reader = build_graph(model, states, batch, target, config.top_k, TOKENS)
            weights |= reader.weights
            others[PREFILL] = prompts
    if config.state_layout == "packed":
        signature = packed(Bundle(graph, signature, weights, others)).signature
    for role, other in others.items():
        helper.set_model_props(other, signature.companion(role).to_metadata())
    names = {name: companion(path, other, name).name for name, other in others.items()}
    signature = dataclasses.replace(signature, graphs=names)
    helper.set_model_props(graph, signature.to_metadata())
    parameters = sum(p.numel() for p in model.parameters())
    report = ExportReport([], parameters, len(graph.graph.node), signature, folds, no_prefill)
    return Built(graph, weights, others, report)


def _only_onnx(kind: str, role: str) -> None:
    if kind != "onnx":
        option = {PREFILL: "prefill", GENERATE: "loop"}[role]
        raise UserError(
            f"an .onnx, whose weights a {ROLES[role]} can share",
            f"an .{kind}",
            f"leave out --{option}, or write an .onnx",
        )


def _signature(
    checkpoint: Checkpoint,
    config: ModelConfig,
    states: Sequence[StateSpec],
    folds: list[LayerFold],
    options: ExportConfig,
) -> Signature:
    layers = tuple({**layer, "fold": f.status} for layer, f in zip(config.describe_layers(), folds, strict=True))
    return Signature(
        states=tuple(states),
        vocab_size=config.vocab_size,
        bos_token=config.bos_token,
        eos_tokens=config.eos_tokens,
        batch=options.batch,
        max_positions=config.max_positions,
        past_end=options.past_end,
        state_layout="layers",
        layers=layers,
        target=options.target,
        quantization="none",
        checkpoint_sha256=checkpoint.sha256,
        producer=f"t2r-export {__version__}",
        tokenizer=checkpoint.tokenizer,
        top_k=options.top_k,
        role=STEP,
        graphs={},
    )
