"""Export a model as a folder for onnxruntime-genai: genai_config.json, the graph, the tokenizer.

Requires layers that t2r_export.graph.genai supports. One graph, float32 or quantized, serves as step graph and prefill
graph. The folder appears when it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.formats import check_format
from t2r_export.config.model import ModelConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import ExportReport, build
from t2r_export.files import write_bytes
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.file import EXTERNAL_BYTES, write_alone
from t2r_export.graph.genai import CACHE, POSITION_IDS, SUMS, genai_graph
from t2r_export.graph.trial import run_genai
from t2r_export.paths import check_folder, new_folder
from t2r_export.quantize import quantized
from t2r_runtime.contract.signature import INPUT_IDS, LOGITS, PREFIX, Signature
from t2r_runtime.contract.state_spec import PAST, POSITION, PRESENT
from t2r_runtime.errors import UserError

GRAPH, CONFIG = "model.onnx", "genai_config.json"
CONTEXT = 1 << 20  # context length of models without a limit; genai allocates this many token ids
MAX_LENGTH = 2048  # default maximum tokens per text
TOKENIZER_CONFIG = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}) + "\n"
# genai's state names → ours; genai accepts any state of rank 3 as its convolution state
NAMES = {"conv": SUMS[1], "recurrent": SUMS[0], "key": CACHE[0], "value": CACHE[1]}


def export_genai(
    checkpoint: Checkpoint,
    folder: str | Path,
    config: ExportConfig | None = None,
    how: QuantizeConfig | None = None,
    external_bytes: int = EXTERNAL_BYTES,
) -> ExportReport:
    """Write `folder`, which must be empty or not exist.

    Args:
        config: only `past_end` and `target` (portable or fused) may differ from the defaults.
        how: a row-wise scheme: fp16, w8 or w4.
        external_bytes: weights beyond this size go to a separate file.

    Raises:
        UserError: unsupported layers or options, no end-of-text token, or a folder that cannot be written.
        CheckFailed: an inexact fold, or a graph that does not run.
    """
    folder, config = Path(folder), config or ExportConfig()
    check_format("genai", config, how)
    checkpoint.model.require_tokens("for onnxruntime-genai")
    if not checkpoint.config.eos_tokens:  # genai requires one
        raise UserError(
            "a model with a token that ends a text, for onnxruntime-genai", "none", "export without --format"
        )
    check_folder(folder)
    bundle, report = build(checkpoint, replace(config, prefill=True))
    if how is not None:
        bundle, _ = quantized(bundle, how)
    bundle = Bundle(genai_graph(bundle), bundle.signature, bundle.weights, {}, bundle.notes)
    signature = bundle.signature
    texts = {CONFIG: json.dumps(genai_config(checkpoint.config, signature), indent=1) + "\n"}
    if signature.tokenizer is not None:
        texts |= {"tokenizer.json": signature.tokenizer, "tokenizer_config.json": TOKENIZER_CONFIG}
    with new_folder(folder) as part:
        files = write_alone(bundle, _notes(bundle), part / GRAPH, external_bytes)
        run_genai(part / GRAPH, signature)
        for name, text in texts.items():
            write_bytes(part / name, text.encode())
    return replace(
        report, files=[folder / name for name in (*(file.name for file in files), *texts)], signature=signature
    )


def genai_config(model: ModelConfig, signature: Signature) -> dict[str, Any]:
    """The contents of genai_config.json."""
    ends = list(signature.eos_tokens)
    context = CONTEXT if signature.max_positions is None or signature.past_end != "refuse" else signature.max_positions
    states = {name.partition(".")[0] for name in (spec.name for spec in signature.states)}
    ids = {"input_ids": INPUT_IDS, **({"position_ids": POSITION_IDS} if POSITION in states else {})}
    return {
        "model": {
            "type": "decoder",
            "bos_token_id": ends[0] if signature.bos_token is None else signature.bos_token,
            "eos_token_id": ends,
            "pad_token_id": ends[0],
            "vocab_size": signature.vocab_size,
            "context_length": context,
            "decoder": {
                "filename": GRAPH,
                "hidden_size": model.width,
                "num_hidden_layers": len(model.layers) * model.repeats,
                **_heads(model, signature),
                "inputs": {**ids, **{f"past_{theirs}_names": f"{PAST}{ours}.%d" for theirs, ours in NAMES.items()}},
                "outputs": {
                    "logits": LOGITS,
                    **{f"present_{theirs}_names": f"{PRESENT}{ours}.%d" for theirs, ours in NAMES.items()},
                },
            },
        },
        "search": {
            "do_sample": False,
            "num_beams": 1,  # genai does not reorder states
            "max_length": min(context, MAX_LENGTH),
            "past_present_share_buffer": False,
        },
    }


def _heads(model: ModelConfig, signature: Signature) -> dict[str, int]:
    """Head counts for genai, from a cache (B, G, T, V) if there is one."""
    caches = [spec.shape for spec in signature.states if spec.grows]
    heads = model.heads[0]
    G, V = (caches[0][1], caches[0][3]) if caches else (heads.kv_heads, heads.head_size)
    assert isinstance(G, int) and isinstance(V, int)
    return {"head_size": V, "num_attention_heads": heads.heads, "num_key_value_heads": G}


def _notes(bundle: Bundle) -> Mapping[str, str]:
    """Metadata on the graph's origin. The other keys would declare the interface of a step graph."""
    signature = bundle.signature.to_metadata()
    kept = ("producer", "checkpoint_sha256", "quantization")
    return {**{PREFIX + key: signature[PREFIX + key] for key in kept}, **bundle.notes}
