"""Options that require other options, in a table per verb. Requirements on the model are checked elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from t2r_runtime.errors import UserError

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Need:
    """A requirement of an option."""

    what: str  # for the error message, as are `received` and `do`
    met: Callable[[Options], Any]
    received: str = "none"
    do: str = "add it"


def _stage(*names: str) -> Need:
    """One of these finetuning stages, with steps."""
    return Need(
        f"the stage {' or '.join(names)}", lambda o: any(plan.stage in names for plan in o["plan"] if plan.steps)
    )


def _other(name: str) -> Need:
    """Another option."""
    return Need(f"--{name}", lambda o: o[name])


def _without(what: str, met: Callable[[Options], Any]) -> Need:
    return Need(f"no {what}", met, "one", "leave it out")


def _files(what: str, met: Callable[[Options], Any]) -> Need:
    """Other files than those given."""
    return Need(what, met, "other files", "name such files")


def _each(names: str, need: Need) -> dict[str, Need]:
    return dict.fromkeys(names.split(), need)


_TEXT = Need("--data (a text)", lambda o: not o["pairs"])
_PAIRS = Need("--pairs", lambda o: o["pairs"] or not o["data"])  # recipes name the data in another section
_SCHEME = Need("--quantize", lambda o: o["how"] is not None)
_GRAPH = (".onnx", ".ort")
_A_TEXT = _files(
    "a checkpoint and a text (not pairs)", lambda o: o["text"].suffix != ".tsv" and o["model"].suffix not in _GRAPH
)
_A_PART = Need("a text with --part", lambda o: _A_TEXT.met(o) and o["part"] != "all")

FINETUNE = {  # options of FinetuneConfig
    **_each("lora_rank lora_alpha lora_targets lora_mixers", _other("lora")),
    **_each("batch separator split_by text_field pack", _TEXT),
    "start_positions": Need(_TEXT.what, lambda o: _TEXT.met(o) or not o["start_positions"]),
    **_each("valid test", _other("pairs")),
    "pair_tokens": _PAIRS,
    "valid_share": _without("--valid", lambda o: o["valid"] is None),
    "test_share": _without("--test", lambda o: o["test"] is None),
    **_each("hidden cross_entropy kl_top", _stage("distill", "round")),
    "label_smoothing": _stage("task"),
    **_each("lora dropout", _stage("distill", "task")),
    "recompute": _without("--loss dropout (whose masks a second pass would draw anew)", lambda o: not o["dropout"]),
}
NEEDS: dict[str, dict[str, Need]] = {
    "finetune": FINETUNE,
    "export": _each("check calibrate", _SCHEME),
    "evaluate": {
        **_each("lengths part windows teacher past_end base", _A_TEXT),
        "split": _A_PART,
        "bleu": _files("a .tsv of sources and translations", lambda o: o["text"].suffix == ".tsv"),
        "eval_tokens": _files(
            "a checkpoint, or pairs", lambda o: o["text"].suffix == ".tsv" or o["model"].suffix not in _GRAPH
        ),
        "provider": _files(
            "an exported graph and a text", lambda o: o["text"].suffix != ".tsv" and o["model"].suffix in _GRAPH
        ),
    },
    "sample": {
        "beam": Need("--sources", lambda o: o["sources"] is not None),
        **_each("chats length temperature seed", Need("--tokens", lambda o: o["tokens"] is not None)),
        "provider": Need("--chats, and an exported graph", lambda o: o["chats"] and o["model"].suffix in _GRAPH),
    },
    "save": {
        "provider": Need("--as compiled", lambda o: o["form"][0] == "compiled"),
        "base": Need("--as adapter, or an .adapter,", lambda o: "adapter" in (o["form"][0], o["source"].suffix[1:])),
    },
}


def check_needs(
    needs: Mapping[str, Need], options: Options, given: Iterable[str], within: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raise UserError if a given option's requirement is not met.

    Args:
        options: the values of all options.
        given: names of the options that were set.
        within: command-line spellings of grouped options.
    """
    for name in given:
        if name in needs and not needs[name].met(options):
            option = within.get(name, "--" + name.replace("_", "-"))
            need = needs[name]
            raise UserError(f"{need.what} with {option}", need.received, f"{need.do}, or leave {option} out")
