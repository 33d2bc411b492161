"""What an export can be told: which of a model's graphs are written, and in which form.

Frozen and validated when it is made: what contradicts itself is an error before any work.
"""

from __future__ import annotations

from dataclasses import dataclass

from t2r_export.config.targets import find
from t2r_export.config.typed import check_fields
from t2r_runtime.contract.signature import DRAFT_CHECK, GENERATE, PAST_ENDS, PREFILL, ROLES, is_past_end
from t2r_runtime.contract.source import MAX_SOURCE_LENGTH
from t2r_runtime.errors import UserError

STATE_LAYOUTS = ("layers", "packed")
MAX_BATCH = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What may differ between two graphs of one model."""

    batch: int | None = None  # None: any batch size
    state_layout: str = "layers"  # layers | packed
    past_end: str = "refuse"  # refuse | clamp | wrap:N; see t2r_export.model.positions
    target: str = "portable"  # a key of TARGETS
    top_k: int | None = None  # the graph also gives this many of the largest logits
    prefill: bool = False  # a companion that reads a prompt at once
    draft_check: bool = False  # one that reads drafts at once, and keeps what of them is right
    float16_safe: bool = False  # right on accelerators that compute in float16: see `build_graph`
    generate: bool = False  # a companion that generates by itself
    source_length: int | None = None  # of a translator, what every source is filled up to; None: as long as it is

    def __post_init__(self) -> None:
        check_fields(self)
        target = find(self.target)
        if self.batch is not None and not 1 <= self.batch <= MAX_BATCH:
            raise UserError(f"a batch from 1 to {MAX_BATCH}", str(self.batch), "correct --batch, or leave it out")
        if self.state_layout not in STATE_LAYOUTS:
            raise UserError(
                f"a state layout of {', '.join(STATE_LAYOUTS)}", repr(self.state_layout), "choose one of those"
            )
        check_past_end(self.past_end)
        if self.top_k is not None and self.top_k < 1:
            raise UserError("a number of largest logits of at least 1", str(self.top_k), "correct --top-k")
        if self.source_length is not None and not 1 <= self.source_length <= MAX_SOURCE_LENGTH:
            received = str(self.source_length)
            raise UserError(f"a source length from 1 to {MAX_SOURCE_LENGTH}", received, "correct --source-length")
        if target.static and self.state_layout != "layers":
            raise UserError(
                f"the state layout layers with target {self.target}: accelerators take tensors of up to 4 axes",
                repr(self.state_layout),
                "leave out --state-layout, or choose another --target",
            )
        for role in (PREFILL, DRAFT_CHECK):
            option = "--" + role.replace("_", "-")
            if getattr(self, role) and target.static:
                raise UserError(
                    f"one token at a time with target {self.target}: every dimension is a number there",
                    f"a {ROLES[role]}, for any number of tokens",
                    f"leave out {option}, or choose another --target",
                )
            if getattr(self, role) and self.float16_safe:
                raise UserError(f"one of {option} and --float16-safe", "both", "leave out one of them")
        if self.generate and target.static:
            raise UserError(
                f"one step at a time with target {self.target}: accelerators take no loops",
                f"a {ROLES[GENERATE]}",
                "leave out --generate, or choose another --target",
            )
        if self.float16_safe and (self.state_layout != "layers" or not target.ordinary):
            raise UserError(
                "the state layout layers and a target of ordinary operators for a graph that is safe in float16",
                f"the layout {self.state_layout} and the target {self.target}",
                "leave out --float16-safe, or choose others",
            )
        if target.static and self.batch is None:
            object.__setattr__(self, "batch", 1)

    @property
    def companions(self) -> list[str]:
        """The roles of the graphs that are to lie beside the step graph."""
        return [role for role in (PREFILL, DRAFT_CHECK, GENERATE) if getattr(self, role)]


def check_past_end(value: str) -> None:
    """Refuse what `--past-end` cannot be, whatever the model.

    Raises:
        UserError: it is none of them.
    """
    if not is_past_end(value):
        raise UserError(f"past_end of {PAST_ENDS}, N of at least 1", repr(value), "choose one of those")
