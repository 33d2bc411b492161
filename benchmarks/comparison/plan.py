"""Read benchmarks/plan.toml: named forms of graphs, and a measurement per result file."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comparison.aims import FORMS
from comparison.batches import BatchPlan, bench_batches
from comparison.decode import Plan, bench_decode
from comparison.exports import bench_export
from comparison.profile import bench_profile
from comparison.serve import ServePlan, bench_serve
from comparison.soak import SoakPlan, bench_soak
from comparison.tables import EXPORT
from comparison.timing import machine
from comparison.translate import TranslatePlan, bench_translate
from t2r_runtime.errors import UserError

Note = Callable[[str], object]
Measure = Callable[[Note], dict[str, Any]]
Forms = Mapping[str, str]  # name → candidate; the aims refer to those in FORMS


@dataclass(frozen=True)
class Measurement:
    """One result file and how it is measured."""

    file: str
    kind: str  # a key of KINDS
    plots: tuple[str, ...]  # candidates that are drawn; none: no plots
    optional: bool  # skipped if not possible, unless requested by name
    alone: bool  # measured only if requested by name
    options: Mapping[str, Any]

    def prepare(self) -> Measure:
        """The function that measures it. Raises UserError for invalid options."""
        try:
            return KINDS[self.kind](**self.options)
        except TypeError as error:
            raise UserError(
                f"options of the kind {self.kind} for {self.file}", str(error), "correct the plan"
            ) from error


def read_plan(path: Path) -> tuple[Forms, list[Measurement]]:
    """Read forms and measurements; names of forms in candidates are expanded.

    Raises:
        UserError: invalid TOML, an unknown key or kind, or a repeated file.
    """
    try:
        plan = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"a plan in TOML at {path}", str(error), "correct it, or name another") from error
    unknown = plan.keys() - {"forms", "measurement"}
    if unknown or not FORMS.keys() <= plan.get("forms", {}).keys():
        raise UserError(
            f"[forms] with {', '.join(FORMS)}, and [[measurement]]s, in {path}", ", ".join(plan), "correct it"
        )
    measurements = [_measurement(dict(entry), plan["forms"]) for entry in plan.get("measurement", ())]
    files = [measurement.file for measurement in measurements]
    if len(set(files)) != len(files):
        raise UserError("a file of its own for each measurement", ", ".join(files), f"correct {path}")
    return plan["forms"], measurements


def _measurement(entry: dict[str, Any], forms: Forms) -> Measurement:
    kind, file = entry.pop("kind", None), entry.pop("file", None)
    if kind not in KINDS or not isinstance(file, str):
        raise UserError(f"a measurement with a file and a kind of {', '.join(KINDS)}", repr(kind), "correct the plan")
    optional, alone = (entry.pop(name, False) for name in ("optional", "alone"))
    plots = tuple(_named(text, forms) for text in entry.pop("plots", ()))
    if "engines" in entry:
        entry["engines"] = tuple(_named(text, forms) for text in entry["engines"])
    return Measurement(file, kind, plots, optional, alone, entry)


def _named(text: str, forms: Forms) -> str:
    """Expand the name of a form, as in `fast:K=16`."""
    name, colon, options = text.partition(":")
    return f"{forms.get(name, name)}{colon}{options}"


def _decode(**options: Any) -> Measure:
    plan = Plan(**options)
    return lambda note: bench_decode(plan, note)


def _batch(**options: Any) -> Measure:
    plan = BatchPlan(**options)
    return lambda note: bench_batches(plan, note)


def _profile(size: str, engines: tuple[str, ...], threads: int) -> Measure:
    return lambda note: bench_profile(size, engines, threads, note=note)


def _export(sizes: list[str], engines: tuple[str, ...], rounds: int) -> Measure:
    def measure(note: Note) -> dict[str, Any]:
        figures = bench_export(sizes, engines, rounds)
        rows = [asdict(f) | {"memory_ratio": f.memory_ratio} for f in figures]
        return {"format": EXPORT, "machine": machine(), "export": rows}

    return measure


def _translate(**options: Any) -> Measure:
    plan = TranslatePlan(**options)
    return lambda note: bench_translate(plan, note)


def _serve(**options: Any) -> Measure:
    plan = ServePlan(**options)
    return lambda note: bench_serve(plan, note)


def _soak(**options: Any) -> Measure:
    plan = SoakPlan(**options)
    return lambda note: bench_soak(plan, note)


KINDS: dict[str, Callable[..., Measure]] = {
    "decode": _decode,
    "batch": _batch,
    "profile": _profile,
    "export": _export,
    "translate": _translate,
    "serve": _serve,
    "soak": _soak,
}
