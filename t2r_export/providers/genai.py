"""Write a model as a folder that onnxruntime-genai runs: genai_config.json, the graph, the tokenizer.

Requires a checkpoint whose layers t2r_export.graph.genai takes. The graph is the step graph and the prefill graph of
the same model, float32 or quantized, in one. The folder is there when all of it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.genai import check_genai
from t2r_export.config.model import ModelConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import ExportReport, build
from t2r_export.files import write_bytes
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.file import EXTERNAL_BYTES, write_alone
from t2r_export.graph.genai import CACHE, POSITION_IDS, SUMS, genai_graph
from t2r_export.graph.trial import run_genai
from t2r_export.paths import check_folder
from t2r_export.quantize import quantized
from t2r_runtime.contract.signature import INPUT_IDS, LOGITS, PAST, POSITION, PREFIX, PRESENT, Signature
from t2r_runtime.errors import UserError
from t2r_runtime.files import temporary_beside, unwritable

GRAPH, CONFIG = "model.onnx", "genai_config.json"
CONTEXT = 1 << 20  # tokens of a text, where nothing ends it; genai allocates their numbers
MAX_LENGTH = 2048  # of a text, where a program says nothing
TOKENIZER_CONFIG = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}) + "\n"
# genai's names of what a layer keeps, and ours: any state of rank 3 may be its convolution's
NAMES = {"conv": SUMS[1], "recurrent": SUMS[0], "key": CACHE[0], "value": CACHE[1]}


def export_genai(
    checkpoint: Checkpoint,
    folder: str | Path,
    config: ExportConfig | None = None,
    how: QuantizeConfig | None = None,
    external_bytes: int = EXTERNAL_BYTES,
) -> ExportReport:
    """Write `folder`, which must be empty or not there yet.

    Args:
        config: of which `past_end` and `target` (portable or fused) alone may be other than usual.
        how: a scheme that rounds each token by itself: fp16, w8 or w4.
        external_bytes: weights past that go to a file beside the graph.

    Raises:
        UserError: layers that genai does not run, no token that ends a text, an option that it has no place for, or a
            folder that cannot be written. CheckFailed: a fold that is not exact, or a graph that does not run.
    """
    folder, config = Path(folder), config or ExportConfig()
    check_genai(config, how)
    if not checkpoint.config.eos_tokens:  # it opens no folder without one
        raise UserError(
            "a model with a token that ends a text, for onnxruntime-genai", "none", "export without --format"
        )
    check_folder(folder)
    bundle, report = build(checkpoint, replace(config, prefill=True))
    if how is not None:
        bundle = quantized(bundle, how)
    bundle = Bundle(genai_graph(bundle), bundle.signature, bundle.weights, {}, bundle.notes)
    signature = bundle.signature
    texts = {CONFIG: json.dumps(genai_config(checkpoint.config, signature), indent=1) + "\n"}
    if signature.tokenizer is not None:
        texts |= {"tokenizer.json": signature.tokenizer, "tokenizer_config.json": TOKENIZER_CONFIG}
    with temporary_beside(folder, folder=True) as beside:
        part = beside / "folder"  # with the permissions of a new one, which a temporary one has not
        part.mkdir()
        files = write_alone(bundle, _notes(bundle), part / GRAPH, external_bytes)
        run_genai(part / GRAPH, signature)
        for name, text in texts.items():
            write_bytes(part / name, text.encode())
        try:
            part.rename(folder)
        except OSError as error:
            raise unwritable(folder, error) from error
    return replace(
        report, files=[folder / name for name in (*(file.name for file in files), *texts)], signature=signature
    )


def genai_config(model: ModelConfig, signature: Signature) -> dict[str, Any]:
    """What genai_config.json says."""
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
                "num_hidden_layers": len(model.layers),
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
            "num_beams": 1,  # states are not reordered
            "max_length": min(context, MAX_LENGTH),
            "past_present_share_buffer": False,
        },
    }


def _heads(model: ModelConfig, signature: Signature) -> dict[str, int]:
    """Heads as genai counts them: of a cache (B, G, T, V) where there is one."""
    caches = [spec.shape for spec in signature.states if spec.grows]
    heads = model.heads[0]
    G, V = (caches[0][1], caches[0][3]) if caches else (heads.kv_heads, heads.head_size)
    assert isinstance(G, int) and isinstance(V, int)
    return {"head_size": V, "num_attention_heads": heads.heads, "num_key_value_heads": G}


def _notes(bundle: Bundle) -> Mapping[str, str]:
    """What the graph came from; the other keys of a step graph's metadata would promise its interface."""
    signature = bundle.signature.to_metadata()
    kept = ("producer", "checkpoint_sha256", "quantization")
    return {**{PREFIX + key: signature[PREFIX + key] for key in kept}, **bundle.notes}
