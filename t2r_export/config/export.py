"""What an export can be told: which of a model's graphs are written, and in which form.

Frozen and validated when it is made: what contradicts itself is an error before any work.
"""

from __future__ import annotations

from dataclasses import dataclass

from t2r_export.config.options import check_values, option
from t2r_export.config.targets import TARGETS, find
from t2r_export.config.typed import check_fields
from t2r_runtime.contract.signature import DRAFT_CHECK, GENERATE, PAST_ENDS, PREFILL, ROLES, is_past_end
from t2r_runtime.contract.source import MAX_SOURCE_LENGTH
from t2r_runtime.errors import UserError

MAX_BATCH = 1 << 16
MAX_TOP_K = 1 << 22  # of a vocabulary


def check_past_end(value: str) -> None:
    """Refuse what `--past-end` cannot be, whatever the model.

    Raises:
        UserError: it is none of them.
    """
    if not is_past_end(value):
        raise UserError(f"past_end of {PAST_ENDS}, N of at least 1", repr(value), "choose one of those")


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What may differ between two graphs of one model."""

    batch: int | None = option("Fix the batch size.", None, usual="any batch size", metavar="B", bounds=(1, MAX_BATCH))
    state_layout: str = option(
        "layers: state tensors per layer; packed: the same states of all layers in one tensor.",
        "layers",
        ("layers", "packed"),
        within="target.state_layout",
    )
    past_end: str = option(
        "What a step past the end of a learned position table does: refuse, or clamp to the last position. With wrap:N "
        "absolute positions of every kind are modulo N, so that none is new to the model.",
        "refuse",
        metavar="refuse|clamp|wrap:N",
        check=check_past_end,
    )
    target: str = option(
        "Operators to use. portable: ordinary ones; fused: ONNX Runtime's LinearAttention; standard: the "
        "LinearAttention of ONNX opset 27; npu: ordinary ones with static shapes; NAME:help lists more.",
        "portable",
        tuple(TARGETS),
    )
    top_k: int | None = option(
        "Also output the N largest logits and their tokens; 1 is enough for greedy decoding.",
        None,
        metavar="N",
        bounds=(1, MAX_TOP_K),
    )
    prefill: bool = option(
        "Also write a prefill graph beside OUT, which reads many tokens of a prompt in one run.", False
    )
    draft_check: bool = option(
        "Also write a draft-check graph beside OUT, with which several guessed tokens are read in one run.", False
    )
    float16_safe: bool = option(
        "Keep S and z exact where an accelerator computes in float16, by a second, low part of each state.",
        False,
        within="target.float16_safe",
    )
    generate: bool = option("Also write a generation graph beside OUT, which generates a whole text in one run.", False)
    source_length: int | None = option(
        "Of a translator, fill every source up to M tokens: all shapes are numbers, as --target npu needs them.",
        None,
        metavar="M",
        bounds=(1, MAX_SOURCE_LENGTH),
    )

    def __post_init__(self) -> None:
        check_fields(self)
        check_values(self)
        target = find(self.target)
        if target.static and self.state_layout != "layers":
            raise UserError(
                f"the state layout layers with target {self.target}: accelerators take tensors of up to 4 axes",
                repr(self.state_layout),
                "leave out state_layout, or choose another target",
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
                raise UserError(f"one of {option} and float16_safe", "both", "leave out one of them")
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
                "leave out float16_safe, or choose others",
            )
        if target.static and self.batch is None:
            object.__setattr__(self, "batch", 1)

    @property
    def companions(self) -> list[str]:
        """The roles of the graphs that are to lie beside the step graph."""
        return [role for role in (PREFILL, DRAFT_CHECK, GENERATE) if getattr(self, role)]
