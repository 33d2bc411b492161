"""Export options: which graphs are written, and in which form. Frozen, validated on construction."""

from __future__ import annotations

import re
from dataclasses import dataclass

from t2r_export.config.options import check_values, option
from t2r_export.config.targets import TARGETS, find
from t2r_export.config.typed import check_fields
from t2r_export.config.validation import MAX_SIZE
from t2r_runtime.contract.signature import DRAFT_CHECK, PAST_ENDS, PREFILL, ROLES, is_past_end
from t2r_runtime.contract.source import MAX_SOURCE_LENGTH
from t2r_runtime.errors import UserError

MAX_BATCH = 1 << 16
MAX_TOP_K = 1 << 22  # the largest vocabulary


def check_past_end(value: str) -> None:
    """Raise UserError for an invalid value of `--past-end`."""
    if not is_past_end(value):
        raise UserError(f"past_end of {PAST_ENDS}, N of at least 1", repr(value), "choose one of those")


def read_context(value: str) -> tuple[int, bool]:
    """Parse `--context` into N and whether the oldest tokens are dropped. Raises UserError for other text."""
    found = re.fullmatch("([1-9][0-9]{0,6})(:slide)?", value)
    if found is None or int(found[1]) > MAX_SIZE:
        raise UserError(f"a context of N or N:slide, N from 1 to {MAX_SIZE}", repr(value), "correct --context")
    return int(found[1]), found[2] is not None


def require_no_choice(config: ExportConfig) -> None:
    """Raise UserError for a draft-check graph that reads vectors: nothing embeds the tokens that were chosen."""
    if config.draft_check:
        expected = "no draft-check graph that reads vectors: it reads tokens that were chosen, and nothing embeds them"
        raise UserError(expected, "--draft-check", "leave out --draft-check")


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Options of one export."""

    batch: int | None = option("Fix the batch size.", None, usual="any batch size", metavar="B", bounds=(1, MAX_BATCH))
    state_layout: str = option(
        "layers: state tensors per layer; packed: one tensor for the states of one kind of all layers.",
        "layers",
        ("layers", "packed"),
    )
    past_end: str = option(
        "Positions past the end of a learned table: refuse, or clamp to the last one. wrap:N: absolute positions of "
        "every kind modulo N.",
        "refuse",
        metavar="refuse|clamp|wrap:N",
        check=check_past_end,
    )
    context: str | None = option(
        "Softmax layers keep the last N tokens in states of fixed size: the same function of up to N tokens. Later "
        "tokens are refused; with N:slide the oldest leave.",
        None,
        usual="caches that grow",
        metavar="N[:slide]",
        check=read_context,
    )
    target: str = option(
        "Operators to use. portable: standard operators; fused: ONNX Runtime's LinearAttention; standard: the "
        "LinearAttention of ONNX opset 27; npu: standard operators with static shapes.",
        "portable",
        tuple(TARGETS),
    )
    top_k: int | None = option(
        "Also output the N largest logits and their tokens; 1 is enough for greedy decoding.",
        None,
        metavar="N",
        bounds=(1, MAX_TOP_K),
    )
    prefill: bool = option("Also write a prefill graph beside OUT, which reads many prompt tokens per run.", False)
    draft_check: bool = option(
        "Also write a draft-check graph beside OUT, which reads several draft tokens per run.", False
    )
    float16_safe: bool = option(
        "Keep S and z exact on float16 accelerators, with a second, low-order part of each state.",
        False,
    )
    inputs_embeds: bool = option(
        "Read vectors (inputs_embeds) in place of token ids: the graph begins behind the embedding.",
        False,
    )
    output_hidden: bool = option("Also output what the head reads (hidden), for retrieval.", False)
    source_length: int | None = option(
        "Translators: pad every source to M tokens, for the static shapes of --target npu.",
        None,
        metavar="M",
        bounds=(1, MAX_SOURCE_LENGTH),
    )

    def __post_init__(self) -> None:
        check_fields(self)
        check_values(self)
        target = find(self.target)
        if self.inputs_embeds:
            require_no_choice(self)
        if self.context is not None and self.past_end != "refuse" and not self.slides:
            received = f"context {self.context} and past_end {self.past_end}"
            raise UserError("one end of the context", received, f"use {self.context}:slide, or leave out past_end")
        if target.static and self.state_layout != "layers":
            expected = f"--state-layout layers with target {self.target}, whose tensors have at most 4 axes"
            raise UserError(expected, repr(self.state_layout), "leave out --state-layout, or choose another target")
        for role in self.companions:
            option = "--" + role.replace("_", "-")
            if target.static:
                expected = f"no {ROLES[role]} with target {self.target}: all dimensions are fixed"
                raise UserError(expected, option, f"leave out {option}, or choose another --target")
            if self.float16_safe:
                raise UserError(f"one of {option} and --float16-safe", "both", "leave out one of them")
        if self.float16_safe and (self.state_layout != "layers" or not target.ordinary):
            expected = "--state-layout layers and a target of standard operators with --float16-safe"
            received = f"the layout {self.state_layout} and the target {self.target}"
            raise UserError(expected, received, "leave out --float16-safe, or choose others")
        if target.static and self.batch is None:
            object.__setattr__(self, "batch", 1)

    @property
    def window(self) -> int | None:
        """Tokens that softmax layers keep; None: all."""
        return None if self.context is None else read_context(self.context)[0]

    @property
    def slides(self) -> bool:
        """Whether a text can exceed the context."""
        return self.context is not None and read_context(self.context)[1]

    @property
    def takes_companions(self) -> bool:
        """Whether companions are possible."""
        return not (find(self.target).static or self.float16_safe)

    @property
    def companions(self) -> list[str]:
        """Roles of the companion graphs."""
        return [role for role in (PREFILL, DRAFT_CHECK) if getattr(self, role)]
