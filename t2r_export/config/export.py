"""What an export can be told: which of a model's graphs are written, in which form and file format.

Frozen and validated when it is made: what contradicts itself is an error before any work.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from t2r_export.config.targets import find
from t2r_runtime.errors import UserError

STATE_LAYOUTS = ("layers", "packed")
PAST_ENDS = ("refuse", "clamp")
FORMATS = ("onnx", "ort")  # and the endings of their files' names, by which ONNX Runtime tells them apart
MAX_BATCH = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What may differ between two graphs of one model."""

    batch: int | None = None  # None: any batch size
    state_layout: str = "layers"  # layers | packed
    past_end: str = "refuse"  # refuse | clamp, for models with a learned position table
    target: str = "portable"  # a key of TARGETS
    format: str | None = None  # onnx | ort; None: what the file's name says
    top_k: int | None = None  # the graph also gives this many of the largest logits
    prefill: bool = False  # a second graph, for prompts, beside the first
    float16_safe: bool = False  # right on accelerators that compute in float16: see `build_graph`
    loop: bool = False  # another graph, which writes by itself, beside the first

    def __post_init__(self) -> None:
        target = find(self.target)
        if self.batch is not None and not 1 <= self.batch <= MAX_BATCH:
            raise UserError(f"a batch from 1 to {MAX_BATCH}", str(self.batch), "correct --batch, or leave it out")
        if self.state_layout not in STATE_LAYOUTS:
            raise UserError(
                f"a state layout of {', '.join(STATE_LAYOUTS)}", repr(self.state_layout), "choose one of those"
            )
        if self.past_end not in PAST_ENDS:
            raise UserError(f"past_end of {', '.join(PAST_ENDS)}", repr(self.past_end), "choose one of those")
        if self.top_k is not None and self.top_k < 1:
            raise UserError("a number of largest logits of at least 1", str(self.top_k), "correct --top-k")
        if self.format not in (None, *FORMATS):
            raise UserError(f"a format of {', '.join(FORMATS)}", repr(self.format), "choose one of those")
        if target.static and self.state_layout != "layers":
            raise UserError(
                f"the state layout layers with target {self.target}: accelerators take tensors of up to 4 axes",
                repr(self.state_layout),
                "leave out --state-layout, or choose another --target",
            )
        if self.prefill and target.static:
            raise UserError(
                f"one token at a time with target {self.target}: every dimension is a number there",
                "a graph for prompts of any length",
                "leave out --prefill, or choose another --target",
            )
        if self.loop and target.static:
            raise UserError(
                f"one step at a time with target {self.target}: accelerators take no loops",
                "a graph that writes",
                "leave out --loop, or choose another --target",
            )
        if self.prefill and self.float16_safe:
            raise UserError("one of --prefill and --float16-safe", "both", "leave out one of them")
        if self.float16_safe and (self.state_layout != "layers" or not target.ordinary):
            raise UserError(
                "the state layout layers and a target of ordinary operators for a graph that is safe in float16",
                f"the layout {self.state_layout} and the target {self.target}",
                "leave out --float16-safe, or choose others",
            )
        if target.static and self.batch is None:
            object.__setattr__(self, "batch", 1)


def graph_format(path: Path, wanted: str | None = None) -> str:
    """`onnx` or `ort`: what the name says, and what is wanted if anything is.

    Raises:
        UserError: the two differ, so that ONNX Runtime would read the file as something else.
    """
    named = "ort" if path.suffix == ".ort" else "onnx"
    if wanted not in (None, named):
        raise UserError(
            f"a file name that ends in .{wanted} for --format {wanted}", str(path), "correct one of the two"
        )
    return named
