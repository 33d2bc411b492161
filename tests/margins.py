"""How close proofs come to their bounds: T2R_MARGINS=FILE pytest tests; sort -rn FILE | head.

Each line: error / bound, error / the model's own rounding, test, check. With T2R_MARGINS the own rounding is measured
for all checks, not only where a fixed bound does not hold.
"""

from __future__ import annotations

import os

from t2r_export.proof.report import Report

FILE = os.environ.get("T2R_MARGINS")


def noted(report: Report) -> Report:
    """Returns the report; writes its float32 checks to $T2R_MARGINS."""
    if FILE:
        test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        measured = [check for check in report.checks if check.rounding]
        with open(FILE, "a", encoding="utf-8") as file:
            for check in measured:
                own = check.worst / (check.rounding or 1)
                file.write(f"{check.worst / check.tolerance:.3f} {own:.3f} {test}: {check.name}\n")
    return report
