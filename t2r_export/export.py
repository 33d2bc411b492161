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
from t2r_export.fold import LayerFold, fold
from t2r_export.graph.file import EXTERNAL_BYTES, Weight, companion, shape, write_graph
from t2r_export.graph.generation import check_states, wrap
from t2r_export.graph.layout import Group, group, low_name, with_low
from t2r_export.graph.ort import folder_beside, write_ort
from t2r_export.graph.recorder import GraphOps, Value, value_info
from t2r_export.graph.targets import TARGETS, Target, find
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError
from t2r_runtime.signature import BATCH, INPUT_IDS, LOGITS, PAST, PRESENT, TOKENS, TOP_LOGITS, TOP_TOKENS, Signature

DAMPING = 2**-4  # of φ(q): while z fits into float16, φ(q)·z does too where φ(q) sums to 16; less would round more


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
    others: Mapping[str, onnx.ModelProto]  # by their kind, of graph_file.COMPANIONS
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
    groups = group(model.state_spec(), config.state_layout)
    if config.loop:
        _only_onnx(kind, "loop")
        check_states([g.spec for g in groups], config.batch)
    if target.static:
        _only_constant(groups, config.target)
    batch = BATCH if config.batch is None else config.batch
    graph, ops = build_graph(model, groups, batch, target, config.top_k, float16_safe=config.float16_safe)
    if config.float16_safe:
        groups = with_low(groups, ops.low_after)
    signature = _signature(checkpoint, model.config, groups, folds, config)
    others: dict[str, onnx.ModelProto] = {}
    weights = dict(ops.weights)
    no_prefill = None
    if config.loop:
        others["loop"] = wrap(graph, signature, _declarations(ops))
        helper.set_model_props(others["loop"], signature.of_loop().to_metadata())
    if config.prefill:
        _only_onnx(kind, "prefill")
        no_prefill = model.parallel_obstacle()
        if no_prefill is None:
            prompts, reader = build_graph(model, groups, batch, target, config.top_k, TOKENS)
            weights |= reader.weights
            helper.set_model_props(prompts, signature.of_prefill().to_metadata())
            others["prefill"] = prompts
    names = {name: companion(path, other, name).name for name, other in others.items()}
    signature = dataclasses.replace(signature, prefill=names.get("prefill"), loop=names.get("loop"))
    helper.set_model_props(graph, signature.to_metadata())
    parameters = sum(p.numel() for p in model.parameters())
    report = ExportReport([], parameters, len(ops.nodes), signature, folds, no_prefill)
    return Built(graph, weights, others, report)


def _only_onnx(kind: str, option: str) -> None:
    if kind != "onnx":
        other = {"prefill": "a graph for prompts", "loop": "a graph that writes"}[option]
        raise UserError(
            f"an .onnx, whose weights {other} can share", f"an .{kind}", f"leave out --{option}, or write an .onnx"
        )


def _only_constant(groups: Sequence[Group], target: str) -> None:
    growing = [g.spec.name for g in groups if g.spec.grows]
    if growing:
        raise UserError(
            f"states of constant size for target {target}",
            f"a model whose {', '.join(growing[:4])}{', …' if growing[4:] else ''} grow with every token",
            "convert all its layers, or choose another --target",
        )


def build_graph(
    model: Transformer,
    groups: Sequence[Group],
    batch: int | str,
    target: Target = TARGETS["portable"],
    top_k: int | None = None,
    tokens: str | None = None,
    float16_safe: bool = False,
) -> tuple[onnx.ModelProto, GraphOps]:
    """The step of `model` as a checked message without its weights, and the recorder that holds them.

    Args:
        tokens: a letter for a graph that reads as many tokens of each sequence; None is one of each.
        float16_safe: for accelerators that compute in float16 whatever they are given. A state that is a sum is two
            tensors, since one would stop growing, and φ(q)·z is kept below 65,504 by a smaller φ(q).
    """
    ops = target.ops(model, batch)
    if float16_safe:
        ops.damping = DAMPING
    ids = Value(INPUT_IDS, "int64", (batch,) if tokens is None else (batch, tokens))
    inputs, past = [ids], {}
    for g in groups:
        dims = tuple(batch if d == BATCH else d for d in g.spec.shape)
        inputs.append(Value(PAST + g.spec.name, g.spec.dtype, dims))
        past.update(_members(inputs[-1], g, ops))
        if float16_safe and g.spec.dtype == "float32":
            ops.low[inputs[-1].name] = Value(PAST + low_name(g.spec.name), "float32", dims)
    logits, present = model.step(ids, past, ops)
    results = {LOGITS: logits}
    if top_k is not None:
        results |= zip((TOP_LOGITS, TOP_TOKENS), ops.top_k(logits, top_k), strict=True)
    results |= {PRESENT + g.spec.name: _joined([present[m.name] for m in g.members], g, ops) for g in groups}
    for name, after in ops.low_after.items():
        inputs.append(ops.low[name])
        results[PRESENT + ops.low[name].name.removeprefix(PAST)] = after
    outputs = [dataclasses.replace(value, name=name) for name, value in results.items()]
    ops.rename({value.name: name for name, value in results.items()})
    ops.prune([value.name for value in outputs])
    return _checked(inputs, outputs, ops, target), ops


def _members(packed: Value, g: Group, ops: GraphOps) -> dict[str, Value]:
    """The model's states that one input of the graph holds."""
    if not g.packed:
        return {g.spec.name: packed}
    count = len(g.members)
    parts = ops.split(packed, [1] * count, axis=1) if count > 1 else [packed]
    return {m.name: ops.squeeze(part, 1) for m, part in zip(g.members, parts, strict=True)}


def _joined(values: list[Value], g: Group, ops: GraphOps) -> Value:
    """Inverse of `_members`, for the outputs."""
    return ops.concat([ops.unsqueeze(v, 1) for v in values], axis=1) if g.packed else values[0]


def _checked(inputs: list[Value], outputs: list[Value], ops: GraphOps, target: Target) -> onnx.ModelProto:
    """The message with every tensor's type and shape, through ONNX's own checker.

    The weights are declared as inputs for the checker alone: it then sees their types without holding their bytes.
    """
    opsets = [helper.make_opsetid(domain, version) for domain, version in target.opsets.items()]
    names = {v.name for v in outputs}
    graph = helper.make_graph(
        ops.nodes,
        "t2r_step",
        [*map(value_info, inputs), *_declarations(ops)],
        [value_info(v) for v in outputs],
        initializer=list(ops.constants.values()),
        value_info=[value_info(v) for v in ops.declared if v.name not in names],
    )
    model = helper.make_model(graph, opset_imports=opsets, ir_version=target.ir_version, producer_name="t2r-export")
    model.producer_version = __version__
    onnx.checker.check_model(model, full_check=True)
    model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    del model.graph.input[len(inputs) :]
    return model


def _declarations(ops: GraphOps) -> list[onnx.ValueInfoProto]:
    """Of the weights that a graph refers to and does not hold."""
    return [value_info(Value(name, "float32", shape(weight))) for name, weight in ops.weights.items()]


def _signature(
    checkpoint: Checkpoint, config: ModelConfig, groups: Sequence[Group], folds: list[LayerFold], options: ExportConfig
) -> Signature:
    layers = tuple({**layer, "fold": f.status} for layer, f in zip(config.describe_layers(), folds, strict=True))
    return Signature(
        states=tuple(state for g in groups for state in g.states),
        vocab_size=config.vocab_size,
        bos_token=config.bos_token,
        eos_tokens=config.eos_tokens,
        batch=options.batch,
        max_positions=config.max_positions,
        past_end=options.past_end,
        state_layout=options.state_layout,
        layers=layers,
        target=options.target,
        quantization="none",
        checkpoint_sha256=checkpoint.sha256,
        producer=f"t2r-export {__version__}",
        tokenizer=checkpoint.tokenizer,
        top_k=options.top_k,
        tokens=1,
        prefill=None,
        loop=None,
    )
