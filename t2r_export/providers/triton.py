"""Export a decoder as a model of a Triton Inference Server repository: config.pbtxt and a graph.

Triton's sequence batcher keeps the states of each sequence between requests (`sequence_batching.state`), starts them as
config.pbtxt says and batches the requests of different sequences. A request carries one token, or with `prefill` any
number. The folder appears when it is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.formats import check_format
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import ExportReport, build
from t2r_export.files import write_bytes
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.file import EXTERNAL_BYTES, write_alone
from t2r_export.graph.releases import first_release
from t2r_export.graph.trial import run_triton
from t2r_export.graph.triton import triton_graph, triton_states
from t2r_export.paths import check_folder, new_folder
from t2r_export.quantize import quantized
from t2r_runtime.contract.signature import INPUT_IDS, LOGITS, PREFILL, TOP_LOGITS, TOP_TOKENS, Signature
from t2r_runtime.contract.state_spec import StateSpec
from t2r_runtime.errors import UserError

CONFIG, VERSION, GRAPH, INITIAL = "config.pbtxt", "1", "model.onnx", "initial_state"
MAX_BATCH = 64  # sequences in a run
CANDIDATES = 1024  # sequences whose states are kept
IDLE = 600_000_000  # µs until a sequence without requests is dropped; Triton's default is one second
TYPES = {
    "float32": "TYPE_FP32",
    "float16": "TYPE_FP16",
    "int8": "TYPE_INT8",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
}


def export_triton(
    checkpoint: Checkpoint,
    folder: str | Path,
    config: ExportConfig | None = None,
    how: QuantizeConfig | None = None,
    external_bytes: int = EXTERNAL_BYTES,
) -> ExportReport:
    """Write `folder`, which must be empty or not exist: a model of a repository, named like the folder.

    Args:
        config: `past_end`, `target` (portable or fused), `top_k`, `prefill` and `context` may differ from the defaults.
        how: a row-wise scheme: fp16, w8 or w4.
        external_bytes: weights beyond this size go to a separate file.

    Raises:
        UserError: a translator, states that grow, positions that end, unsupported options, or a folder that cannot be
            written.
        CheckFailed: an inexact fold, or a graph that does not run.
    """
    folder, config = Path(folder), config or ExportConfig()
    check_format("triton", config, how)
    checkpoint.model.require_tokens("for --format triton")
    check_folder(folder)
    bundle, report = build(checkpoint, config)
    check_signature(bundle.signature)
    if how is not None:
        bundle, _ = quantized(bundle, how)
    graph = bundle.companions[PREFILL] if config.prefill else bundle.step
    states = triton_states(bundle.signature.states)
    made = triton_graph(graph, bundle.signature.states)
    bundle = Bundle(made, bundle.signature, bundle.weights, {}, bundle.notes)
    with new_folder(folder) as part:
        (part / VERSION).mkdir()
        written = write_alone(bundle, bundle.notes, part / VERSION / GRAPH, external_bytes)
        run_triton(part / VERSION / GRAPH, states)
        texts = {CONFIG: config_text(bundle.signature, states, config.prefill).encode(), **initial_files(states)}
        for name, content in texts.items():
            (part / name).parent.mkdir(exist_ok=True)
            write_bytes(part / name, content)
    files = [*(folder / VERSION / file.name for file in written), *(folder / name for name in texts)]
    note = f"Triton has to run it with onnxruntime {first_release(made)} or later"
    return replace(report, files=files, nodes=len(made.graph.node), notes=(*report.notes, note))


def check_signature(signature: Signature) -> None:
    """Refuse models that Triton's sequences cannot hold.

    Raises:
        UserError: a translator, states that grow, or positions that end.
    """
    if signature.source is not None:
        raise UserError("a decoder alone for --format triton", "a translator", "leave out --format")
    if any(spec.grows for spec in signature.states):
        raise UserError(
            "states of fixed size for --format triton, which starts a growing one with a token that nobody wrote",
            "a cache that grows",
            "use --context N:slide, or convert the softmax layers",
        )
    if signature.max_positions is not None and signature.past_end == "refuse":
        raise UserError(
            "positions without an end for --format triton, which does not count tokens",
            f"{signature.max_positions} positions",
            "use --past-end clamp, --past-end wrap:N, or --context N:slide",
        )


def config_text(signature: Signature, states: Sequence[StateSpec], prompts: bool) -> str:
    """The contents of config.pbtxt. Args: prompts: whether a request carries any number of tokens."""
    ids = [f'name: "{INPUT_IDS}"', "data_type: TYPE_INT64", *(["dims: [ -1 ]"] if prompts else _one_token())]
    if signature.top_k is None:
        outputs = [(LOGITS, "TYPE_FP32", signature.vocab_size)]
    else:
        outputs = [(TOP_LOGITS, "TYPE_FP32", signature.top_k), (TOP_TOKENS, "TYPE_INT64", signature.top_k)]
    lines = [
        'backend: "onnxruntime"',
        f"max_batch_size: {MAX_BATCH}",
        f"input [ {{ {' '.join(ids)} }} ]",
        *(f'output [ {{ name: "{name}" data_type: {kind} dims: [ {size} ] }} ]' for name, kind, size in outputs),
        "sequence_batching {",
        f"  max_sequence_idle_microseconds: {IDLE}",
        f"  oldest {{ max_candidate_sequences: {CANDIDATES} }}",
        *(f"  state [ {{ {_state(spec)} }} ]" for spec in states),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _one_token() -> list[str]:
    """A request has a second axis beside the batch; the step graph has none."""
    return ["dims: [ 1 ]", "reshape: { shape: [ ] }"]


def _state(spec: StateSpec) -> str:
    kind = f"data_type: {TYPES[spec.dtype]} dims: [ {', '.join(map(str, spec.shape[1:]))} ]"
    start = f'data_file: "{spec.name}"' if spec.initial else "zero_data: true"
    names = f'input_name: "{spec.past}" output_name: "{spec.present}"'
    return f'{names} {kind} initial_state: {{ name: "{spec.name}" {kind} {start} }}'


def initial_files(states: Sequence[StateSpec]) -> dict[str, bytes]:
    """File contents of non-zero initial states of one sequence, keyed by path in the folder."""
    return {
        f"{INITIAL}/{spec.name}": np.full(spec.dims(1, 0)[1:], spec.initial, spec.dtype).tobytes()
        for spec in states
        if spec.initial
    }
