"""Reports of export and verification as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from t2r_export.cli.output import parameters, size, table
from t2r_export.config.layer import kinds_of
from t2r_export.config.layer_numbers import ranges
from t2r_runtime.contract.signature import DRAFT_CHECK, ENCODER, PREFILL

ILL_CONDITIONED = (
    "its float32 differs from its float64 by as much, so verification cannot detect a faulty graph. Train it further."
)
COMPANIONS = {
    PREFILL: "prefill graph: reads many tokens of a prompt per run",
    DRAFT_CHECK: "draft-check graph: checks several draft tokens per run",
    ENCODER: "encoder graph: reads a source once",
}

GROUPS = {"layers": "layers", "crosses": "at the source, layers", "encoder": "encoder, layers"}  # titles of part groups

if TYPE_CHECKING:
    from t2r_export.export import ExportReport
    from t2r_export.proof.report import Report


def export_text(report: ExportReport, files: dict[str, int]) -> str:
    """Format an export report; `files` maps names to bytes."""
    states = report.signature.states
    kinds = [" and ".join(kinds_of(layer)) or "feed-forward" for layer in report.signature.layers]
    lines = [
        *(f"{name}: {size(count)}" for name, count in files.items()),
        f"{parameters(report.parameters, report.active_parameters)}, {report.nodes} operators, {len(states)} states",
        f"{' and '.join(f'{kinds.count(kind)} {kind}' for kind in dict.fromkeys(kinds))} layers",
        f"state: {_state_size(report)}",
    ]
    lines += [line for role, line in COMPANIONS.items() if role in report.signature.graphs]
    groups: dict[tuple[str, str], list[int]] = {}
    for fold in report.folds:
        groups.setdefault((fold.group, fold.status), []).append(fold.layer)
    lines += [f"{GROUPS[group]} {ranges(layers)}: {status}" for (group, status), layers in groups.items()]
    return "\n".join(lines)


def _state_size(report: ExportReport) -> str:
    """Bytes of the states of one sequence, and those that a token adds."""
    start, states = state_bytes(report), report.signature.states
    growth = sum(state.bytes(length=1) for state in states) - start
    return f"{size(start)} per sequence, " + (f"and {size(growth)} per token" if growth else "constant")


def state_bytes(report: ExportReport) -> int:
    """Bytes of all states of one sequence, before its first token."""
    return sum(state.bytes() for state in report.signature.states)


def parity_text(report: Report) -> str:
    """Format the parity table: worst difference, the model's own rounding if measured, and tolerance."""
    rows = [
        [check.name, f"{check.worst:.1e}", _rounding(check.rounding), f"{check.tolerance:.0e}", _ok(check.passed)]
        for check in report.checks
    ]
    if report.greedy_bound == 1:
        first = report.first_greedy_mismatch
        row = ["first greedy mismatch", "none" if first is None else f"step {first}", "", "none"]
    else:
        row = ["same greedy token", f"{report.greedy_agreement:.1%}", "", f"{report.greedy_bound:.0%}"]
    rows.append([*row, _ok(report.greedy_passed)])
    against = "" if report.reference == "float32" else f" against {report.reference}"
    text = table(rows, [f"{report.steps} steps, {report.provider}{against}", "worst", "own rounding", "tolerance", ""])
    if report.redrawn:
        text += f"\nRepeated with other texts, because the model's own rounding hid the error: {report.redrawn}"
    if report.undecided:
        text += f"\nThe model is ill-conditioned: {ILL_CONDITIONED}"
    return text


def _rounding(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _ok(passed: bool) -> str:
    return "ok" if passed else "FAILED"
