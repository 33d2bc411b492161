from __future__ import annotations

from collections.abc import Iterator

import pytest

from t2r_export.graph import file as graph_file


@pytest.fixture(scope="module")
def without_trial() -> Iterator[None]:
    """Skip the trial run, for tests of the file format on graphs that are no step graphs; test_trial tests it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_file, "run_once", lambda path: None)
        yield
