"""Parity of one checkpoint on every provider in every precision, or the reason why a pair cannot be measured.

A cell exports the model in its provider's form (t2r_export.providers.graphs), quantizes it, and compares it with the
float32 eager model (t2r_export.verify). Graphs run in separate processes: a provider that aborts loses one cell, and
each provider may have its own Python with its own ONNX Runtime.
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.quantize import MIN_CALIBRATION, SCHEMES, QuantizeConfig, scheme
from t2r_export.export import export
from t2r_export.model.sample import sample
from t2r_export.model.transformer import Transformer
from t2r_export.proof.report import Report
from t2r_export.proof.tolerances import tolerance
from t2r_export.providers.graphs import PROVIDER_GRAPHS, ProviderGraph
from t2r_export.providers.subprocess import Remote, remote_versions
from t2r_export.python import THIS
from t2r_export.quantize import calibration_data, quantize
from t2r_export.verify import verify
from t2r_runtime import PROVIDERS, Decoder, Translator
from t2r_runtime.errors import UserError
from t2r_runtime.session.providers import named

NONE = "none"
PRECISIONS = (NONE, *SCHEMES)
SAMPLED = 512  # tokens per text sampled from the model to calibrate int8-static
Key = tuple[str, str]  # provider, precision


@dataclass(frozen=True)
class Cell:
    """One provider in one precision; measured if `reason` is None."""

    provider: str
    precision: str
    reason: str | None = None  # why nothing was measured
    passed: bool = False
    logits: float = math.nan  # worst absolute difference
    state: float = math.nan  # worst difference, relative to that state's largest value
    greedy: float = math.nan  # share of steps with the same greedy token
    exact: bool = True  # whether all greedy tokens must agree
    steps: int = 0
    placement: Mapping[str, int] = field(default_factory=dict)  # provider → number of nodes


@dataclass(frozen=True)
class Matrix:
    """The cells of one checkpoint, in the order of PROVIDERS and PRECISIONS."""

    checkpoint_sha256: str
    versions: Mapping[str, Mapping[str, str]]  # installed provider → package → version
    cells: Sequence[Cell]

    @property
    def failed(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.reason is None and not cell.passed]


def parity_matrix(
    checkpoint: Checkpoint,
    providers: Sequence[str] = tuple(PROVIDERS),
    precisions: Sequence[str] = PRECISIONS,
    steps: int = 256,
    calibrate: Path | None = None,
    pythons: Mapping[str, str] | None = None,
    earlier: Iterable[Matrix] = (),
    on_progress: Callable[[Cell], None] = lambda _: None,
    allow_fallback: bool = False,
) -> Matrix:
    """Measure every cell of `providers` and `precisions` that is available on this machine.

    Args:
        steps: chained steps per cell.
        calibrate: text for int8-static; None samples one from the model.
        pythons: provider → command of the Python that has it. Default: this Python.
        earlier: matrices of the same checkpoint, whose measured cells are kept.
        on_progress: called with each new cell.
        allow_fallback: also measure cells in which the CPU runs some nodes; `Cell.placement` counts them. Providers
            that support no whole step are always measured this way.

    Raises:
        UserError: an unknown provider or precision, an unusable calibration text, or an earlier matrix of another
            checkpoint.
    """
    for name in (*providers, *(pythons or {})):
        named(name)
    for name in precisions:
        if name != NONE:
            scheme(name)
    known, versions = _joined(checkpoint, earlier)
    with tempfile.TemporaryDirectory() as folder:
        graphs = _Graphs(checkpoint, Path(folder), calibrate)
        if calibrate is not None and any(name != NONE and SCHEMES[name].calibrated for name in precisions):
            # fail here: an unusable text is the caller's mistake, not the reason of a cell
            calibration_data(calibrate, Decoder(graphs.path(PROVIDER_GRAPHS["cpu"], NONE)).signature)
        for provider in providers:
            command = (pythons or {}).get(provider, THIS)
            missing = None
            if any(_open(known, provider, precision) for precision in precisions):
                try:
                    versions[provider] = remote_versions(command, provider)
                except UserError as error:
                    missing = f"expected {error.expected}: {error.do}"
            for precision in precisions:
                if not _open(known, provider, precision):
                    continue
                if missing is None:
                    known[provider, precision] = _measured(graphs, provider, precision, command, steps, allow_fallback)
                    on_progress(known[provider, precision])
                else:  # an earlier reason comes from a machine with the provider, or is the same
                    known.setdefault((provider, precision), Cell(provider, precision, missing))
    order = {name: i for i, name in enumerate((*PROVIDERS, *PRECISIONS))}
    cells = sorted(known.values(), key=lambda cell: (order[cell.provider], order[cell.precision]))
    return Matrix(checkpoint.sha256, versions, cells)


def read_matrix(path: Path) -> Matrix:
    """Read the output of `t2r verify --json`.

    Raises:
        UserError: no such file, or another kind of file.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        cells = [_cell_of(cell) for cell in data["cells"]]
        if all(cell.provider in PROVIDERS and cell.precision in PRECISIONS for cell in cells):
            return Matrix(data["checkpoint_sha256"], dict(data["versions"]), cells)
        problem = "an unknown provider or precision"
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise UserError(f"the output of t2r verify --json in {path}", problem, "write it again")


def _cell_of(data: dict[str, Any]) -> Cell:
    numbers = {key: math.nan if data[key] is None else data[key] for key in ("logits", "state", "greedy")}
    return Cell(**{**data, **numbers})  # JSON has no NaN


class _Graphs:
    """The exported graphs of one checkpoint, written on first use."""

    def __init__(self, checkpoint: Checkpoint, folder: Path, calibrate: Path | None) -> None:
        self.checkpoint, self._folder, self._calibrate = checkpoint, folder, calibrate
        self._made: dict[Any, Path] = {}

    def path(self, wanted: ProviderGraph, precision: str) -> Path:
        """The graph's file. Raises UserError if it cannot be exported or quantized."""
        calibrated = precision != NONE and SCHEMES[precision].calibrated
        bits = wanted.activation_bits if calibrated else 8
        key = (wanted.config, precision, bits)
        if key not in self._made:
            source = None if precision == NONE else self.path(wanted, NONE)
            out = self._folder / f"{len(self._made)}.onnx"
            if source is None:
                export(self.checkpoint, out, wanted.config_of(self.checkpoint.config.encoder))
            else:
                text = self._text() if calibrated else None
                quantize(source, out, QuantizeConfig(scheme=precision, calibrate=text, activation_bits=bits))
            self._made[key] = out
        return self._made[key]

    def _text(self) -> Path:
        if self._calibrate is None:
            self.checkpoint.model.require_decoder("whose text is its own", "give pairs with --calibrate")
            self._calibrate = self._folder / "sampled.npy"
            np.save(self._calibrate, calibration_text(self.checkpoint.model))
        return self._calibrate


def calibration_text(model: Transformer) -> npt.NDArray[np.int32]:
    """Token ids (N,) sampled from the model: twice the minimum for calibration."""
    length = min(model.config.max_positions or SAMPLED, SAMPLED)
    return sample(model, 2 * MIN_CALIBRATION, length)


def _open(known: Mapping[Key, Cell], provider: str, precision: str) -> bool:
    """Whether the cell has not been measured."""
    cell = known.get((provider, precision))
    return cell is None or cell.reason is not None


def _joined(checkpoint: Checkpoint, earlier: Iterable[Matrix]) -> tuple[dict[Key, Cell], dict[str, Mapping[str, str]]]:
    """Cells and versions of all matrices. The first measured cell wins, then the first with its provider installed."""
    known: dict[Key, Cell] = {}
    ranks: dict[Key, int] = {}
    versions: dict[str, Mapping[str, str]] = {}
    for matrix in earlier:
        if matrix.checkpoint_sha256 != checkpoint.sha256:
            raise UserError("a matrix of the same checkpoint to merge", "another checkpoint's", "measure it again")
        for cell in matrix.cells:
            key = (cell.provider, cell.precision)
            rank = 2 if cell.reason is None else int(cell.provider in matrix.versions)
            if rank > ranks.get(key, -1):
                known[key], ranks[key] = cell, rank
        for provider, found in matrix.versions.items():
            versions.setdefault(provider, found)
    return known, versions


def _measured(graphs: _Graphs, provider: str, precision: str, command: str, steps: int, allow_fallback: bool) -> Cell:
    """Measure the cell of an installed provider."""
    wanted, partial = PROVIDER_GRAPHS[provider], PROVIDERS[provider].partial or allow_fallback
    if not wanted.growing and any(spec.grows for spec in graphs.checkpoint.model.state_spec()):
        return Cell(provider, precision, "takes no caches that grow: convert every layer")
    with contextlib.ExitStack() as stack:

        def opened(kind: type) -> Remote:
            remote = Remote(kind, command, path, provider, threads=1, allow_fallback=partial)
            return stack.enter_context(contextlib.closing(remote))

        try:
            tolerance(provider, precision)
            path = graphs.path(wanted, precision)
            decoder = opened(Decoder)
            encoder = None if decoder.signature.source is None else opened(Translator)
            placement = decoder.placement
            if provider not in placement:
                return Cell(provider, precision, f"takes none of the graph's {sum(placement.values())} nodes")
            report = verify(graphs.checkpoint, path, provider, steps, decoder=decoder, encoder=encoder)
        except UserError as error:
            return Cell(provider, precision, f"expected {error.expected}; received {error.received}")
    return _cell(report, precision, placement)


def _cell(report: Report, precision: str, placement: Mapping[str, int]) -> Cell:
    def worst(what: str) -> float:
        return float(np.max([check.worst for check in report.checks if what in check.name]))  # NaN if any is

    return Cell(
        report.provider,
        precision,
        None,
        report.passed,
        worst("logits"),
        worst("states"),
        report.greedy_agreement,
        report.greedy_bound == 1,
        report.steps,
        dict(placement),
    )
