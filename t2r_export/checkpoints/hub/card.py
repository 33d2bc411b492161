"""README.md of a folder for transformers: the model's properties, and results of verify, evaluate and bench.

A section without a measurement names the command that makes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.untrained import untrained
from t2r_runtime.contract.state_spec import GROWING
from t2r_runtime.errors import UserError, printable

Report = Mapping[str, Any]
USE = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER"{trust})
model = AutoModelForCausalLM.from_pretrained("FOLDER"{trust})
text = tokenizer("{prompt}", return_tensors="pt")
print(tokenizer.decode(model.generate(**text, max_new_tokens=50)[0]))
```
"""
CODE = """
`trust_remote_code=True` runs modeling_t2r.py of this folder, which needs torch and transformers alone. A call returns
the states as `past_key_values` (a `T2RCache`).
"""
GRAPH = """
    t2r-export FOLDER model.onnx

makes a single-step ONNX graph of it.
"""


def model_card(loaded: Checkpoint, config: Mapping[str, Any], code: bool, reports: Mapping[str, Report]) -> str:
    """The card as Markdown with its metadata.

    Args:
        config: the folder's config.json. code: whether it needs modeling_t2r.py.
        reports: results of `read_report`, by verb.
    """
    use = USE.format(trust=", trust_remote_code=True" * code, prompt="Once upon a time")
    parts = [
        _head(loaded, code),
        f"# {_title(loaded)}\n\n{_about(loaded, config)}",
        f"## Use\n\n{use if loaded.tokenizer is not None else ''}{CODE if code else ''}{GRAPH}",
        _making(loaded.provenance),
        *(_section(verb, reports.get(verb)) for verb in SECTIONS),
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


GRAPHS = """\
    t2r-run generate {graph} --prompt "Once upon a time"

| file | |
|---|---|
| tuned.pt, tuned.pt.jsonl | the trained student, and the log of its training |
| model.onnx | its step graph in float32; all files whose names begin with model. are needed |
{quantized}| student.pt | the student before training |
| plan.json, training.json, verify.json, quantize.json | results of the stages |
| made.json | what each file was made of, so that a second run repeats no stage |
| train.npy, valid.npy | token ids that the quantization was calibrated and checked on |
"""


def student_card(loaded: Checkpoint, trained: Report, verified: Report, quantized: Report) -> str:
    """The card of a folder of `t2r distill`, as Markdown; the arguments are the results of its stages."""
    graph, tried = quantized["graph"], quantized["tried"]
    line = f"| {graph} | the same in {tried[-1]['scheme']} |\n" if graph else ""
    use = GRAPHS.format(graph=graph or "model.onnx", quantized=line)
    teacher = trained["teacher"]["nats"]
    nats = [
        (name, f"{one['nats']:.4f}", f"{one['nats'] - teacher:+.4f}", f"{one['tokens']:,}")
        for name, one in ((name, trained[key]) for name, key in TRAINED.items())
    ]
    losses = [
        (one["scheme"], f"{one['loss']:+.2%}", f"{one['bound']:+.2%}", "yes" if one["passed"] else "no")
        for one in tried
    ]
    about = f"A recurrent student, made by `t2r distill`.\n\n{_table(['', ''], _rows(loaded))}"
    parts = [
        f"# {_title(loaded)}\n\n{about}",
        f"## Use\n\n{use}",
        f"## Quality\n\n{_table(['test part', 'nats/token', 'above the teacher', 'tokens'], nats)}",
        f"## Quantization\n\n{_table(['scheme', 'nats/token, valid part', 'bound', 'written'], losses)}",
        _making(loaded.provenance),
        f"## Verification\n\n{_verified(verified)}",
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


TRAINED = {"teacher": "teacher", "student before training": "before", "student": "after"}


def _head(loaded: Checkpoint, code: bool) -> str:
    name = _origin(loaded).get("name")
    base = [f"base_model: {name}"] if isinstance(name, str) and name.count("/") == 1 and name.isprintable() else []
    tags = ["tags:", "- t2r-export", *(["- linear-attention", "- custom_code"] if code else [])]
    return "\n".join(["---", "library_name: transformers", "pipeline_tag: text-generation", *base, *tags, "---"])


def _origin(loaded: Checkpoint) -> Mapping[str, Any]:
    origin = loaded.provenance.get("origin")
    return origin if isinstance(origin, dict) else {}


def _title(loaded: Checkpoint) -> str:
    name = _origin(loaded).get("name")
    return printable(name, 80) if isinstance(name, str) else "A decoder"


def _about(loaded: Checkpoint, config: Mapping[str, Any]) -> str:
    rows = _rows(loaded)
    return _table(
        ["", ""], [("class of transformers", config["architectures"][0]), *rows, ("weights", config["dtype"])]
    )


def _rows(loaded: Checkpoint) -> list[tuple[str, str]]:
    labels = [" and ".join(part.label for part in layer.mixers) or "feed-forward" for layer in loaded.config.layers]
    layers = ", ".join(f"{labels.count(label)} {label}" for label in dict.fromkeys(labels))
    states = loaded.model.state_spec()
    size = f"{sum(state.bytes() for state in states):,} bytes for each text"
    grows = any(GROWING in state.shape for state in states)
    return [
        ("parameters", f"{sum(weight.numel() for weight in loaded.model.parameters()):,}"),
        ("layers", f"{len(labels)}: {layers}"),
        ("width, vocabulary", f"{loaded.config.width:,}, {loaded.config.vocab_size:,}"),
        ("positions", loaded.config.positions_summary),
        ("state", "a cache that grows with every token" if grows else f"{size}, however long it is"),
    ]


def _making(provenance: Mapping[str, Any]) -> str:
    """Conversion and training, from the checkpoint's provenance."""
    lines = []
    convert, finetunes = provenance.get("convert"), provenance.get("finetune")
    if isinstance(convert, dict):
        said = {name: value for name, value in convert.items() if isinstance(value, str | int | float | bool)}
        how = ", ".join(f"{name} {value}" for name, value in said.items())
        lines.append(f"Converted by `t2r convert`{f' ({how})' if how else ''}.\n")
    if parts := len(untrained(provenance)):
        lines.append(f"**Untrained**: no training has trained {parts} converted parts, so the output is noise.\n")
    runs = [run for run in finetunes if isinstance(run, dict)] if isinstance(finetunes, list) else []
    for run in runs:
        lines.append(_training(run))
    return "## How it was made\n\n" + "\n".join(lines) if lines else ""


def _training(run: Mapping[str, Any]) -> str:
    stages = [stage for stage in run.get("stages", ()) if isinstance(stage, dict)]
    done = ", ".join(f"{stage.get('stage')} {stage.get('steps')}" for stage in stages)
    files = ", ".join(map(str, run.get("files", ())))
    line = f"Trained by `t2r finetune`: steps of {done}; {run.get('tokens')} tokens of {files}."
    found = run.get("evaluation")
    if isinstance(found, dict) and isinstance(found.get("finetuned"), float):
        known = {"teacher": "teacher", "student": "before", "finetuned": "after"}
        nats = ", ".join(
            f"{said} {found[name]:.3f}" for name, said in known.items() if isinstance(found.get(name), float)
        )
        line += f" Nats per token of {found.get('tokens')} held-out tokens: {nats}."
    return printable(line, 1000) + "\n"


def _verified(report: Report) -> str:
    rows = [(check["name"], f"{check['worst']:.1e}", f"{check['tolerance']:.0e}") for check in report["checks"]]
    mismatch = report["first_greedy_mismatch"]
    same = f"{report['greedy_agreement']:.1%} of greedy tokens are equal" if mismatch is not None else ""
    scheme = "" if report["quantization"] == "none" else f"{report['quantization']}, "
    graph = f"{report['provider']}, {scheme}{report['steps']:,} steps"
    of_another = "" if report["same_checkpoint"] else " The graph was exported from another file of the model."
    verdict = "Within its tolerances." if report["passed"] else "Not within its tolerances."
    table = _table([f"graph against model: {graph}", "worst", "tolerance"], rows)
    return f"{table}\n{verdict}{of_another} {same or 'Every greedy token is equal.'}\n"


def _evaluated(report: Report) -> str:
    rows = [
        (f"{one['length']:,}", f"{one['nats']:.4f}", f"{one['end_nats']:.4f}", f"{one['tokens']:,}")
        for one in report["lengths"]
    ]
    return f"Part `{report['part']}` of the text.\n\n{_table(['length', 'nats/token', 'last quarter', 'tokens'], rows)}"


def _benched(report: Report) -> str:
    rows = [
        (
            str(one["graph"]).rpartition("/")[2],
            f"{one['milliseconds']['median']:.3g}",
            f"{one['prompt']['median']:.0f}",
            "-" if one["memory"] is None else f"{one['memory'] / 1e6:.0f} MB",
        )
        for one in report["graphs"]
    ]
    machine = ", ".join(f"{name} {value}" for name, value in report["machine"].items() if isinstance(value, str | int))
    return f"{machine}\n\n{_table(['graph', 'ms per step', 'prompt tokens/s', 'memory'], rows)}"


# verb -> title of its section, function that writes it, and command that makes a report
SECTIONS: dict[str, tuple[str, Callable[[Report], str], str]] = {
    "verify": ("Verification", _verified, "t2r verify MODEL GRAPH --json"),
    "evaluate": ("Quality", _evaluated, "t2r evaluate MODEL TEXT --json"),
    "bench": ("Speed", _benched, "t2r bench GRAPH --json"),
}


def read_report(path: Path, verb: str) -> Report:
    """The output of a verb of SECTIONS with --json. Raises UserError for another file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        SECTIONS[verb][1](found)
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        expected, received = f"the output of `{SECTIONS[verb][2]}` in {path}", type(error).__name__
        raise UserError(expected, received, "write it again, or leave it out") from error
    report: Report = found
    return report


def _section(verb: str, report: Report | None) -> str:
    title, written, command = SECTIONS[verb]
    if report is None:
        said = f"Not measured: `{command} > {verb}.json`, and `--as transformers:{verb}={verb}.json` fills this.\n"
    else:
        said = f"Measured by `{command}`.\n\n{written(report)}"
    return f"## {title}\n\n{said}"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(printable(str(cell), 200) for cell in line)} |\n" for line in lines)
