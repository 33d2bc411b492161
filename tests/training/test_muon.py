"""Muon against torch's, which always multiplies in bfloat16."""

from __future__ import annotations

import pytest
import torch

from t2r_export.training import muon
from t2r_export.training.muon import Muon, batches, fast_dtype, orthogonal

SHAPES = ((5, 7), (9, 4), (6, 6), (5, 7), (1, 3))
RATE, DECAY = 0.03, 0.2


def matrices() -> list[torch.nn.Parameter]:
    random = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(shape, generator=random)) for shape in SHAPES]


def stepped(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The matrices after three steps; the last matrix has no gradient in the second."""
    random = torch.Generator().manual_seed(5)
    found: list[torch.nn.Parameter] = optimizer.param_groups[0]["params"]
    for step in range(3):
        for p in found:
            p.grad = torch.randn(p.shape, generator=random)
        if step == 1:
            found[-1].grad = None
        optimizer.step()
    return [p.detach() for p in found]


def by_shape(found: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    return [[p for p in found if p.shape == shape] for shape in dict.fromkeys(p.shape for p in found)]


def test_in_bfloat16_it_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "fast_dtype", lambda device: torch.bfloat16)
    theirs = torch.optim.Muon(matrices(), lr=RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
    for mine, other in zip(stepped(Muon(matrices(), RATE, DECAY)), stepped(theirs), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)


def test_in_float32_it_is_the_same_but_for_its_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for dtype in (torch.bfloat16, torch.float32):
        monkeypatch.setattr(muon, "fast_dtype", lambda device, dtype=dtype: dtype)
        found[dtype] = stepped(Muon(matrices(), RATE, DECAY))
    for rounded, exact in zip(*found.values(), strict=True):
        torch.testing.assert_close(rounded, exact, rtol=0, atol=0.02)
        assert not torch.equal(rounded, exact)


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_are_near_one(shape: tuple[int, int]) -> None:
    matrices = torch.randn((2, *shape), generator=torch.Generator().manual_seed(7))
    found = orthogonal(matrices, torch.float32)
    values = torch.linalg.svdvals(found)
    assert ((values > 0.6) & (values < 1.3)).all()
    torch.testing.assert_close(found[1:], orthogonal(matrices[1:], torch.float32))
    assert (orthogonal(torch.zeros(1, *shape), torch.float32) == 0).all()


def test_matrices_of_a_shape_are_orthogonalized_at_once_but_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "AT_ONCE", 2 * 35)
    shapes = ((5, 7), (9, 8), (5, 7), (7, 5), (5, 7), (9, 8))  # two of the first shape fit, none of the second
    for device, expected in (("cpu", [[0], [2], [4], [1], [5], [3]]), ("meta", [[0, 2], [4], [1], [5], [3]])):
        given = [torch.empty(shape, device=device) for shape in shapes]
        places = {id(matrix): place for place, matrix in enumerate(given)}
        assert [[places[id(matrix)] for matrix in alike] for alike in batches(given)] == expected


def test_batches_are_stepped_as_single_matrices_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "fast_dtype", lambda device: torch.float32)
    expected = stepped(Muon(matrices(), RATE, DECAY))
    monkeypatch.setattr(muon, "batches", by_shape)
    for one, other in zip(stepped(Muon(matrices(), RATE, DECAY)), expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("fast", [False, True])
def test_a_cpu_without_bfloat16_multiplies_in_float32(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: fast)
    assert fast_dtype(torch.device("cpu")) == (torch.bfloat16 if fast else torch.float32)
    assert fast_dtype(torch.device("cuda")) == torch.bfloat16
