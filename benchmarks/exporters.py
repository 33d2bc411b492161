"""Compare exporters on tiny models with random weights: the error of their graphs for prompts of several lengths.

    python benchmarks/exporters.py [--python EXPORTER=COMMAND …] [--models NAME …] [--seconds]
        [--save benchmarks/results/exporters.json] [--page docs/comparison.md]

Each exporter runs in its own process on a folder that transformers writes; `--python` names an exporter's interpreter
if it is installed elsewhere. ONNX Runtime then reads prompts of 5, 12 and 29 tokens, each followed by 8 single tokens,
and a batch of 3 texts; transformers' eager model reads the same texts without a cache. A cell is the largest difference
of any logit, or the reason why the export failed. `--seconds` times each export as a whole process, on an idle machine.

    t2r           t2r export --prefill
    transformers  OnnxExporter, the graphs of the prompt and of a step, traced with 2 texts of 12 tokens, dynamic=True
    optimum       optimum-cli export onnx --task text-generation-with-past (pip install optimum-onnx)
    mobius        mobius build --config (pip install mobius-onnx)
    genai         python -m onnxruntime_genai.models.builder -p fp32 -e cpu
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from builds import add_outputs, show
from comparison.tables import Table
from comparison.timing import run
from t2r_export.python import ARGUMENTS
from t2r_runtime import Decoder

Ids = NDArray[np.int64]
Logits = NDArray[np.float32]
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
WINDOW = 6
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
# model -> prefix of its class names in transformers, and its config
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("Llama", SIZES),
    "Mistral, window of 6": ("Mistral", {**SIZES, "sliding_window": WINDOW}),
    "LFM2": ("Lfm2", {**SIZES, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "Qwen3.5": (
        "Qwen3_5",
        {
            **SIZES,
            "layer_types": ["linear_attention", "full_attention"],
            "head_dim": 16,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    ),
    "Mamba-2": (
        "Mamba2",
        {"vocab_size": 96, "hidden_size": 32, "state_size": 16, "num_heads": 8, "head_dim": 8, "n_groups": 1}
        | {"num_hidden_layers": 2},
    ),
}
STUDENT = "T2R student of the Llama"
TEXT_CONFIGS = {"Qwen3_5": "Qwen3_5Text"}
LENGTHS, STEPS, TEXTS, TRACED = (5, 12, 29), 8, 3, (2, 12)
LIMIT = 600  # seconds of an export
HEAD = ["model", "exporter", "export, s", "nodes", *(f"{n} tokens" for n in LENGTHS), f"{STEPS} steps after each"]
HEAD += [f"{TEXTS} texts", "bytes of states, after 13 and 37 tokens"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], metavar="EXPORTER=COMMAND")
    parser.add_argument("--models", nargs="*", default=[*MODELS, STUDENT])
    parser.add_argument("--exporters", nargs="*", default=list(EXPORTERS))
    parser.add_argument("--seconds", action="store_true")
    parser.add_argument("--theirs", nargs=2, type=Path, metavar=("FOLDER", "OUT"), help=argparse.SUPPRESS)
    add_outputs(parser)
    options = parser.parse_args()
    if options.theirs:
        return export_theirs(*options.theirs)
    pythons = dict(given.split("=", 1) for given in options.python)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for name in options.models:
            folder = write_model(name, Path(place))
            for exporter in options.exporters:
                out = Path(place) / exporter / folder.name
                row = [name, exporter, *cells(exporter, pythons, folder, out, options.seconds)]
                print(row, flush=True)
                rows += [] if row[2].startswith("none: ") else [row]
    show(Table("", HEAD, rows), options)


# -- models


def write_model(name: str, place: Path) -> Path:
    """A folder of the model with random weights and a tokenizer, for every exporter."""
    import torch
    import transformers

    folder = place / re.sub(r"\W+", "_", name)
    if name == STUDENT:
        return write_student(write_model("Llama", place / "teacher"), folder)
    family, changes = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{TEXT_CONFIGS.get(family, family)}Config")(**changes, **ENDS)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    for weight in model.parameters():
        if weight.ndim > 1:  # large enough that each weight affects the logits
            torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE({chr(32 + number): number for number in range(95)}, []))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}\n')
    return folder


def write_student(teacher: Path, folder: Path) -> Path:
    """The untrained student of `t2r convert`, written by `t2r save --as transformers`."""
    made = teacher.parent / "student.pt"
    for arguments in (["convert", teacher, made, "--mixer", "linear"], ["save", made, folder, "--as", "transformers"]):
        run([*ARGUMENTS, "-m", "t2r_export", *map(str, arguments)])
    return folder


def expected(folder: Path, ids: Ids) -> Logits:
    """Logits (B, T, V) of the eager model without a cache."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=True).eval()
    with torch.no_grad():
        found: Logits = model(torch.from_numpy(ids), use_cache=False).logits.numpy()
    return found


# -- exporters


def export_theirs(folder: Path, out: Path) -> None:
    """Export with transformers: a prompt graph and a step graph."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter
    from transformers.exporters.utils import decompose_for_generation

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=True).eval()
    ids = torch.randint(3, 90, TRACED, generator=torch.Generator().manual_seed(0))
    for name, stage in decompose_for_generation(model, {"input_ids": ids, "attention_mask": ids * 0 + 1}).items():
        with torch.no_grad():
            step: tuple[Any, Any] = stage
            program = OnnxExporter().export(*step, OnnxConfig(dynamic=True)).program
        OnnxExporter.save_program(program, out / f"{name}.onnx")


def _of_python(*arguments: str) -> Callable[[str, Path, Path], list[str]]:
    return lambda python, folder, out: [python, *(text.format(folder=folder, out=out) for text in arguments)]


# command of each exporter, given its interpreter
EXPORTERS: dict[str, Callable[[str, Path, Path], list[str]]] = {
    "t2r": _of_python(*ARGUMENTS[1:], "-m", "t2r_export", "export", "{folder}", "{out}/model.onnx", "--prefill"),
    "transformers": _of_python(__file__, "--theirs", "{folder}", "{out}"),
    "optimum": _of_python(
        *("-m", "optimum.commands.optimum_cli", "export", "onnx", "--trust-remote-code"),
        *("--task", "text-generation-with-past", "--model", "{folder}", "{out}"),
    ),
    "mobius": _of_python("-m", "mobius", "build", "--trust-remote-code", "--config", "{folder}", "{out}"),
    "genai": _of_python(
        *("-m", "onnxruntime_genai.models.builder", "-i", "{folder}", "-o", "{out}", "-p", "fp32", "-e", "cpu"),
        *("-c", "{out}/cache", "--extra_options", "hf_remote=true"),
    ),
}


def cells(exporter: str, pythons: Mapping[str, str], folder: Path, out: Path, timed: bool) -> list[str]:
    """The cells of a row after its names."""
    out.mkdir(parents=True)
    command = EXPORTERS[exporter](pythons.get(exporter, ARGUMENTS[0]), folder, out)
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment(exporter))
    if done.returncode:
        return [f"none: {reason(done.stderr)}", *[""] * (len(HEAD) - 3)]
    seconds = "not timed"
    if timed:
        again = out / "again"
        again.mkdir()
        seconds = f"{run(EXPORTERS[exporter](pythons.get(exporter, ARGUMENTS[0]), folder, again))[0]:.1f}"
    graphs = sorted(file for file in out.glob("*.onnx"))
    return [seconds, " + ".join(f"{nodes(graph):,}" for graph in graphs), *compared(exporter, out, folder)]


def environment(exporter: str) -> dict[str, str]:
    """Environment variables: the source tree is visible to t2r and transformers only, the network to no exporter."""
    hidden = set() if exporter in ("t2r", "transformers") else {"PYTHONPATH"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**kept, "HF_HUB_OFFLINE": "1"}


def reason(text: str) -> str:
    """The last line of an error, without this machine's paths."""
    lines = [
        line.strip() for line in text.splitlines() if re.match(r"\w*(\.\w+)*(Error|Exception)\b|t2r: ", line.strip())
    ]
    line = re.sub(r"/[\w./-]+/", "…/", (lines or text.strip().splitlines() or ["no message"])[-1])
    return line.split(". ")[0].replace("|", "/")[:110]


def nodes(graph: Path) -> int:
    """Nodes of a graph and of the functions and graphs in it, each counted once."""
    import onnx

    model = onnx.load(graph, load_external_data=False)

    def count(found: Sequence[Any]) -> int:
        inner = (one.g.node for node in found for one in node.attribute if one.HasField("g"))
        return len(found) + sum(map(count, inner))

    return count(model.graph.node) + sum(count(function.node) for function in model.functions)


# -- graphs


class Reads(Protocol):
    """A text in a graph."""

    def prompt(self, ids: Ids) -> Logits:
        """ids (B, T) of new texts -> logits (B, V) after the last token."""

    def step(self, ids: Ids) -> Logits:
        """One more token of each text, (B,) -> logits (B, V)."""

    def bytes(self) -> int:
        """Bytes of all states."""


class Ours:
    def __init__(self, out: Path) -> None:
        self._decoder = Decoder(out / "model.onnx")

    def prompt(self, ids: Ids) -> Logits:
        self._decoder.reset(len(ids))
        return self._decoder.prefill(ids)

    def step(self, ids: Ids) -> Logits:
        return self._decoder.step(ids)

    def bytes(self) -> int:
        return sum(state.nbytes for state in self._decoder.state().values())


class Peer:
    """Another exporter's graphs: one for prompts and steps, or two. Outputs are fed to inputs with the same `core`."""

    def __init__(self, out: Path) -> None:
        import onnxruntime

        names = ["prefill.onnx", "decode.onnx"] if (out / "decode.onnx").exists() else ["model.onnx"] * 2
        self._prompt, self._step = (onnxruntime.InferenceSession(str(out / name)) for name in names)
        self._states: dict[str, NDArray[Any]] = {}
        self._read = 0

    def prompt(self, ids: Ids) -> Logits:
        self._states, self._read = {}, 0
        return self._run(self._prompt, ids)

    def step(self, ids: Ids) -> Logits:
        return self._run(self._step, ids[:, None])

    def bytes(self) -> int:
        return sum(state.nbytes for state in self._states.values())

    def _run(self, session: Any, ids: Ids) -> Logits:
        feeds = {given.name: self._feed(given, ids) for given in session.get_inputs()}
        outputs = [found.name for found in session.get_outputs()]
        found = dict(zip(outputs, session.run(None, feeds), strict=True))
        self._read += ids.shape[1]
        self._states = {core(name): value for name, value in found.items() if name != "logits"}
        logits: Logits = found["logits"]
        return logits[:, -1]

    def _feed(self, given: Any, ids: Ids) -> NDArray[Any]:
        batch, length = ids.shape
        if given.name == "input_ids":
            return ids
        if given.name == "attention_mask":
            return np.ones((batch, self._read + length), np.int64)
        if given.name.startswith("position"):
            return np.tile(np.arange(self._read, self._read + length), (batch, 1))
        if given.name.endswith("_sliding_window_tensor"):  # a constant input of transformers' graphs
            return np.array(WINDOW)
        if self._states:
            return self._states[core(given.name)]
        head_size = SIZES["hidden_size"] // SIZES["num_attention_heads"]
        free = {"kv_cache_dim": head_size}  # other free dimensions count the tokens read
        shape = [int(n) if str(n).isdigit() else free.get(n, 0) for n in given.shape[1:]]
        return np.zeros((batch, *shape), np.float32)


def core(name: str) -> str:
    """A state's name, without the prefix of an input or output."""
    return re.sub(r"^(input\.|output\.)?(past_key_values|past|present)?\.?", "", name)


def compared(exporter: str, out: Path, folder: Path) -> list[str]:
    """Errors of prompts, of the steps after them and of several texts, and bytes of states."""
    draw = np.random.default_rng(0)
    found: list[str] = []
    steps: list[float | str] = []
    sizes = []
    for batch, length in [*((1, length) for length in LENGTHS), (TEXTS, LENGTHS[-1])]:
        ids = draw.integers(3, 90, (batch, length + STEPS))
        want = expected(folder, ids)
        try:
            graph: Reads = Ours(out) if exporter == "t2r" else Peer(out)
            errors = [apart(graph.prompt(ids[:, :length]), want[:, length - 1])]
            found.append(f"{errors[0]:.0e}")
        except Exception as error:  # other exporters' graphs can fail with any exception
            found.append(f"fails: {reason(str(error))}")
            continue
        try:
            errors = [apart(graph.step(ids[:, at]), want[:, at]) for at in range(length, length + STEPS)]
            sizes += [graph.bytes()] if batch == 1 else []
            steps.append(max(errors))
        except Exception as error:
            steps.append(f"fails: {reason(str(error))}")
        if batch > 1:
            last = steps.pop()
            found[-1] += f", steps {last if isinstance(last, str) else f'{last:.0e}'}"
    wrong = [step for step in steps if isinstance(step, str)]
    numbers = [step for step in steps if not isinstance(step, str)]
    shown = wrong[0] if wrong else f"{max(numbers):.0e}" if numbers else ""
    held = f"{sizes[0]:,}, {sizes[-1]:,}" if len(sizes) == len(LENGTHS) else ""
    return [*found[: len(LENGTHS)], shown, found[-1], held]


def apart(logits: Logits, want: Logits) -> float:
    """The largest difference of any logit."""
    return float(np.abs(logits.reshape(want.shape) - want).max())


if __name__ == "__main__":
    main()
