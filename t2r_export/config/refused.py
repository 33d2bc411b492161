"""Known systems that this project cannot support, with reasons. Imports without torch."""

from __future__ import annotations

SEES_ALL = "no step of constant size"
HALTS = "a graph computes every layer of every row of a batch, and a decision at a threshold cannot be proved"
REFUSED: dict[str, str] = {
    "reformer": f"{SEES_ALL}: a query attends to its hash bucket, in which any token of the text may be",
    "routing": f"{SEES_ALL}: a query attends to its cluster, in which any token of the text may be",
    "sinkhorn": f"{SEES_ALL}: blocks of the text are sorted, and any of them may be next to the query's",
    "linformer": "no causal form: its projections mix keys along the text, those behind the query among them",
    "nystromformer": "no causal form: its landmarks are means over segments of the whole text",
    "memorizing": f"{SEES_ALL}: its memory has the keys and values of the whole text; a bounded one is a window",
    "act": f"no halting: {HALTS}; repeats has a fixed number of rounds",
    "pondernet": f"no halting: {HALTS}; repeats has a fixed number of rounds",
    "depth_adaptive": f"no early exit: {HALTS}",
    "early_exit": f"no early exit: {HALTS}",
    "calm": f"no early exit: {HALTS}",
}
SPELLINGS = {
    "adaptive_computation_time": "act",
    "halting": "act",
    "ponder": "pondernet",
    "adaptive_depth": "depth_adaptive",
}


def why_refused(name: object) -> str | None:
    """The reason for a system by its usual name; None for names outside the table."""
    plain = name.lower().replace("-", "_").replace("ö", "o") if isinstance(name, str) else ""
    plain = plain.removesuffix("_transformer").removesuffix("_attention")
    return REFUSED.get(SPELLINGS.get(plain, plain))
