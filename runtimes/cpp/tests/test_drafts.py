"""Drafts of libt2r: texts, positions, histories and states are those of single steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from cpp_build import GOLDEN, Run
from t2r_library import Decoder, Failed, Library

import small


@pytest.mark.parametrize("name", ["none", "gated_rotary", "hybrid_gated", "lstm", "softmax"])
def test_texts_and_states_are_those_of_steps(name: str, release: Path, run: Run, tmp_path: Path) -> None:
    """Greedy and sampled, with penalties, ended by a callback at any token; and continued."""
    options = {"prefill": name != "lstm", "top_k": 3, "output_hidden": name == "gated_rotary"}
    small.graph(tmp_path / "g.onnx", name, draft_check=True, **options)
    done = run(release / "drafts", tmp_path / "g.onnx")
    assert int(done.stdout.split()[0]) < 60 or name == "lstm", "107 tokens of a text that repeats itself"


def test_runs_are_those_of_python(release: Path, run: Run) -> None:
    assert run(release / "drafts", GOLDEN / "drafts.json", "--given").stdout == "6 texts\n"


def test_a_graph_without_a_draft_check_graph(library: Library) -> None:
    decoder = Decoder(library, GOLDEN / "prefill.onnx")
    with pytest.raises(Failed, match="graph: expected a draft-check graph beside the step graph; received none"):
        library.call("t2r_draft", decoder.handle, 1)
    library.call("t2r_draft", decoder.handle, 0)
