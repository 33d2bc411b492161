"""What a graph's inputs and outputs must be for its metadata: a step graph's, one for prompts', and a loop's."""

from __future__ import annotations

from collections.abc import Mapping

from t2r_runtime.errors import UserError, printable
from t2r_runtime.loop import DRAWN, MAX_TOKENS, SEED, STOP_TOKENS, TEMPERATURE, TOP_K, TOP_P, WRITTEN
from t2r_runtime.signature import BATCH, INPUT_IDS, LOGITS, TOKENS, TOP_LOGITS, TOP_TOKENS, Signature, StateSpec

Form = tuple[str, tuple[int | str | None, ...]]  # dtype, dimensions


def check_interface(signature: Signature, inputs: Mapping[str, Form], outputs: Mapping[str, Form]) -> None:
    """Refuse a graph whose inputs and outputs are not exactly those of `signature`.

    Args:
        inputs, outputs: name → (dtype, dimensions); a dimension that is not a number is free.

    Raises:
        UserError: with all missing and unexpected names together; if the names agree, with all wrong dtypes and shapes.
    """
    wanted_in, wanted_out = _loop(signature) if signature.tokens == 0 else _step(signature)
    problems = [
        f"{label} {', '.join(sorted(names))}"
        for label, names in (
            ("missing inputs", wanted_in.keys() - inputs.keys()),
            ("unexpected inputs", inputs.keys() - wanted_in.keys()),
            ("missing outputs", wanted_out.keys() - outputs.keys()),
            ("unexpected outputs", outputs.keys() - wanted_out.keys()),
        )
        if names
    ]
    if not problems:
        pairs = [(name, form, inputs[name]) for name, form in wanted_in.items()]
        pairs += [(name, form, outputs[name]) for name, form in wanted_out.items()]
        problems = [
            f"{name} {_show(got)} for {_show(form)}"
            for name, form, got in pairs
            if not _agrees(form, got, signature.batch)
        ]
    if problems:
        raise UserError(
            "the inputs and outputs that the graph's metadata lists",
            printable("; ".join(problems)),
            "export the model again",
        )


def _step(signature: Signature) -> tuple[dict[str, Form], dict[str, Form]]:
    """Inputs and outputs of a step graph, or of one for prompts: name → (dtype, dimensions)."""
    wanted_in: dict[str, Form] = {INPUT_IDS: ("int64", (BATCH,) if signature.tokens == 1 else (BATCH, TOKENS))}
    wanted_out: dict[str, Form] = {LOGITS: ("float32", (BATCH, signature.vocab_size))}
    wanted_in |= {spec.past: (spec.dtype, spec.shape) for spec in signature.states}
    if signature.top_k is not None:
        few = (BATCH, signature.top_k)
        wanted_out |= {TOP_LOGITS: ("float32", few), TOP_TOKENS: ("int64", few)}
    wanted_out |= {spec.present: (spec.dtype, spec.shape) for spec in signature.states}
    return wanted_in, wanted_out


def _loop(signature: Signature) -> tuple[dict[str, Form], dict[str, Form]]:
    """Inputs and outputs of a graph that writes: name → (dtype, dimensions)."""
    numbers = dict.fromkeys((MAX_TOKENS, TOP_K, SEED, DRAWN), ("int64", ()))
    inputs: dict[str, Form] = {INPUT_IDS: ("int64", (1,)), STOP_TOKENS: ("int64", (None,)), **numbers}
    inputs |= dict.fromkeys((TEMPERATURE, TOP_P), ("float64", ()))
    outputs: dict[str, Form] = {WRITTEN: ("int64", (None,))}

    def single(spec: StateSpec) -> Form:
        return spec.dtype, tuple(1 if d == BATCH else d for d in spec.shape)

    inputs |= {spec.past: single(spec) for spec in signature.states}
    outputs |= {spec.present: single(spec) for spec in signature.states}
    return inputs, outputs


def _agrees(wanted: Form, got: Form, batch: int | None) -> bool:
    def fits(want: int | str | None, have: int | str | None) -> bool:
        if want == BATCH and batch is not None:
            want = batch
        return have == want if isinstance(want, int) else not isinstance(have, int)

    return wanted[0] == got[0] and len(wanted[1]) == len(got[1]) and all(map(fits, wanted[1], got[1]))


def _show(form: Form) -> str:
    return f"{form[0]} ({', '.join('?' if d is None else str(d) for d in form[1])})"
