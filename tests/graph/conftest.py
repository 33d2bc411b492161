from __future__ import annotations

from collections.abc import Iterator

import pytest

from t2r_export.graph import file as graph_file


@pytest.fixture(scope="module")
def without_trial() -> Iterator[None]:
    """For tests of a file's form alone, on graphs that are no steps: test_trial has what runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_file, "run_once", lambda path: None)
        yield
