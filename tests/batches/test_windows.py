"""Windows within documents equal a definition on whole lists."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import texts
from t2r_export.batches.batch import Batch
from t2r_export.batches.windows import Documents
from t2r_export.cli import main
from t2r_export.config.stages import parse_plan
from t2r_export.finetune import finetune
from t2r_runtime.errors import UserError

BEGINS = texts.TEACHER
ENDS = dataclasses.replace(texts.TEACHER, bos_token=None)
NEITHER = dataclasses.replace(ENDS, eos_tokens=())


def listed(documents: list[list[int]], length: int, begins: bool) -> list[list[int]]:
    """The definition: each window's input tokens and its last target."""
    found = []
    for number, document in enumerate(documents):
        whole = [texts.BOS, *document] if begins else [*document, texts.EOS]
        if begins and number + 1 < len(documents):
            whole = [*whole, texts.BOS]
        found += [whole[at : at + length + 1] for at in range(0, len(whole) - 1, length)]
    return sorted(found)


def read(batch: Batch) -> list[list[int]]:
    """The same for each row of a batch."""
    rows = torch.zeros(batch.ids.numel(), dtype=torch.bool)
    rows[batch.places] = True
    counts = rows.view_as(batch.ids).sum(1).tolist()
    assert batch.places is not None and batch.count == sum(counts) and batch.ids.shape[1] == max(counts)
    pairs = zip(batch.ids.tolist(), batch.targets.tolist(), counts, strict=True)
    return [[*ids[:count], targets[count - 1]] for ids, targets, count in pairs]


@pytest.mark.parametrize("model", [BEGINS, ENDS], ids=["begins", "ends"])
@given(
    documents=st.lists(st.lists(st.integers(0, 7), max_size=9), min_size=1, max_size=12),
    length=st.integers(1, 6),
    batch=st.integers(1, 5),
)
def test_windows_within_documents(
    model: texts.ModelConfig, documents: list[list[int]], length: int, batch: int
) -> None:
    begins = model is BEGINS
    stream = [[texts.BOS, *each] if begins else [*each, texts.EOS] for each in documents]
    tokens = np.array(sum(stream, []), np.uint16)
    expected = listed(documents, length, begins)
    if not expected:
        with pytest.raises(UserError, match="at least 2 tokens|a document of at least two tokens"):
            Documents(tokens, length, 1, 3, model)
        return
    one, several = (Documents(tokens, length, size, 3, model) for size in (1, batch))
    found = [read(one(step))[0] for step in range(3 * len(expected))]
    epochs = [found[at : at + len(expected)] for at in range(0, len(found), len(expected))]
    assert [sorted(epoch) for epoch in epochs] == [expected] * 3
    assert read(several(1)) == [read(one(step))[0] for step in range(batch, 2 * batch)]


@pytest.mark.parametrize(
    "tokens, model, received",
    [
        (np.zeros((3, 5), np.uint16), BEGINS, "rows of tokens"),
        (np.zeros(9, np.uint16), NEITHER, "a model without such a token"),
    ],
)
def test_windows_need_borders(tokens: np.ndarray, model: texts.ModelConfig, received: str) -> None:
    with pytest.raises(UserError, match=f"received {received}; leave out --split pack=false"):
        Documents(tokens, 4, 2, 0, model)


def test_training_within_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = texts.run(tmp_path, parse_plan("transfer,distill", "2,40", "1e-2"), pack=False)
    report = finetune(config)
    assert report.after.nats < report.before.nats - 0.02
    assert report.tokens < 42 * config.batch * 16  # windows of 16 tokens are cut at document ends
    with pytest.raises(UserError, match="expected pack [fF]alse, as in the run saved in"):
        finetune(dataclasses.replace(config, pack=True, resume=True))
    (text,) = config.data
    assert main(["evaluate", str(config.model), str(text), "--split", "pack=false"]) == 2
    assert "windows across documents, as every evaluation reads" in capsys.readouterr().err
    assert main(["tokenize", str(config.model), str(text), "--split", "pack=false"]) == 0
