"""Time and peak memory of exports as whole processes: `t2r export` and the builder of onnxruntime-genai."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from comparison.engines import STUDENT, Candidate, genai_command, parse, require_installed, student_model, whole
from comparison.peer_files import write_folder
from comparison.sizes import config_of, softmax_model
from comparison.timing import run
from t2r_export.checkpoints import checkpoint
from t2r_export.config.options import written
from t2r_export.model.transformer import Transformer
from t2r_export.providers.bench import Spread, turns
from t2r_export.python import ARGUMENTS
from t2r_runtime.errors import UserError


@dataclass(frozen=True)
class ExportFigures:
    """Measurements of the exports of a model with random weights."""

    name: str
    size: str
    parameters: int
    weight_bytes: int
    seconds: float  # median
    low: float
    high: float
    peak_bytes: int  # peak resident bytes of the process
    file_bytes: int
    ratio: float = 1.0  # of seconds, to the first of that size

    @property
    def memory_ratio(self) -> float:
        return self.peak_bytes / self.weight_bytes


def bench_export(
    sizes: Sequence[str], engines: Sequence[str], rounds: int = 1, folder: Path | None = None
) -> list[ExportFigures]:
    """Export each size with each engine in turns; measures seconds and peak memory of the process.

    Raises:
        UserError: an unknown size or engine, or an engine without exporter. CheckFailed: an export failed.
    """
    candidates = [parse(text) for text in engines]
    for size in sizes:
        config_of(size)
    for candidate in candidates:
        if candidate.engine not in PREPARE:
            raise UserError(f"an exporter of {', '.join(PREPARE)}", candidate.name, "leave that one out")
    require_installed(candidates)
    figures = []
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            figures += _of_size(size, candidates, rounds, Path(place))
    return figures


@dataclass
class _Export:
    """A command line for a new output folder, and its measurements."""

    command: Callable[[Path], list[str]]
    parameters: int
    seconds: list[float]
    peak: int = 0
    written: int = 0


def _of_size(size: str, candidates: Sequence[Candidate], rounds: int, folder: Path) -> list[ExportFigures]:
    exports: dict[str, _Export] = {}
    for number, candidate in enumerate(candidates):
        source = folder / str(number)
        source.mkdir()
        exports[candidate.name] = PREPARE[candidate.engine](candidate, size, source)
    for name in turns(list(exports), rounds):
        export = exports[name]
        with tempfile.TemporaryDirectory(dir=folder) as place:
            seconds, peak = run(export.command(Path(place)))
            export.seconds.append(seconds)
            export.peak = max(export.peak, peak)
            export.written = sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file())
    base = Spread.of(exports[candidates[0].name].seconds).median
    figures = []
    for name, export in exports.items():
        spread, n = Spread.of(export.seconds), export.parameters
        one = ExportFigures(name, size, n, 4 * n, spread.median, spread.low, spread.high, export.peak, export.written)
        figures.append(replace(one, ratio=spread.median / base))
    return figures


# candidate options → options of `t2r export` and of its scheme
OPTIONS = {"target": "--target", "top_k": "--top-k"}
OF_SCHEME = {"block": "block_size", "head_bits": "head_bits", "embedding_bits": "embedding_bits"}


def _prepare_t2r(candidate: Candidate, size: str, source: Path) -> _Export:
    model = student_model(candidate, size)
    checkpoint.save(source / "model.pt", model, None, {"origin": f"random weights, {size}"})
    program = [*ARGUMENTS, "-m", "t2r_export", "export", str(source / "model.pt")]
    scheme = written({OF_SCHEME[name]: value for name, value in candidate.options.items() if name in OF_SCHEME})
    options = [] if candidate.form == "float32" else ["--quantize", f"{candidate.form}:{scheme}"]
    options += ["--prefill"] if whole(candidate, "prefill", 0) else []
    given = {name: value for name, value in candidate.options.items() if name not in (*STUDENT, "prefill")}
    unknown = given.keys() - OPTIONS.keys() - OF_SCHEME.keys()
    if unknown:
        raise UserError(
            f"options of an export: {', '.join((*STUDENT, 'prefill', *OPTIONS, *OF_SCHEME))}",
            ", ".join(unknown),
            "leave it out",
        )
    options += [part for name, value in given.items() if name in OPTIONS for part in (OPTIONS[name], value)]
    return _Export(lambda place: [*program, str(place / "out.onnx"), *options], _count(model), [])


def _prepare_genai(candidate: Candidate, size: str, source: Path) -> _Export:
    model = softmax_model(size)
    folder = write_folder(model, source / "folder")
    return _Export(lambda place: genai_command(folder, place / "out", candidate), _count(model), [])


def _count(model: Transformer) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


PREPARE: dict[str, Callable[[Candidate, str, Path], _Export]] = {"t2r": _prepare_t2r, "genai": _prepare_genai}
