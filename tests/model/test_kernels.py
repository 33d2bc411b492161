"""The kernels of flash-linear-attention: their arguments, by the NumPy definition, and on a GPU their results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from t2r_export.model import kernels
from t2r_export.model.chunks import chunked_linear_attention
from t2r_export.model.torch_ops import TorchOps

RULES = list(kernels.KERNELS)
B, G, R, T, K, V = 2, 3, 2, 70, 5, 4  # T: two chunks of a kernel


def by_definition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[Tensor, Tensor]:
    """What a kernel computes."""
    assert q.shape == k.shape == (B, T, G * R, K)
    assert v.shape[:3] == q.shape[:3]
    assert output_final_state
    assert {x.dtype for x in (q, k, v)} == {torch.float32}
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    arrays: Any = (None if x is None else x.double().numpy() for x in (q, k, v, initial_state, g, beta))
    o, S = reference.recurrence(*arrays)
    return torch.from_numpy(o).float(), torch.from_numpy(S).float()


def inputs(delta: bool, gate: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Arguments of `chunked_linear_attention`."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (B, G * R, T, K), "k": (B, G, T, K), "v": (B, G, T, V), "S": (B, G, K, V)}
    found: dict[str, Any] = {
        name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in shapes.items()
    }
    found["k"] = torch.nn.functional.normalize(found["k"].relu() + 0.1, dim=-1)
    if gate:
        found["log_gate"] = -torch.rand(B, G, T, {"1": 1, "K": K}[gate], generator=generator, dtype=dtype)
    if delta:
        found["beta"] = torch.rand(B, G, T, 1, generator=generator, dtype=dtype)
    return found


@pytest.mark.parametrize("delta, gate", RULES)
def test_kernels_are_called_by_the_formulas(delta: bool, gate: str) -> None:
    given = inputs(delta, gate)
    found = kernels.attention(by_definition, **{"z": None, "log_gate": None, "beta": None, **given})
    for received, expected in zip(found[::2], chunked_linear_attention(**given)[::2], strict=True):
        assert received is not None and expected is not None
        torch.testing.assert_close(received, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "changes, name",
    [
        ({}, "fla.ops.gla:chunk_gla"),
        ({"log_gate": (B, G, T, 1)}, "fla.ops.simple_gla:chunk_simple_gla"),
        ({"log_gate": None}, "fla.ops.simple_gla:chunk_simple_gla"),
        ({"beta": (B, G, T, 1)}, "fla.ops.kda:chunk_kda"),
        ({"q": (B, G, T, 300)}, "fla.ops.gla:chunk_gla"),
        ({"q": (B, G, T, 300), "beta": (B, G, T, 1)}, None),
        ({"dtype": torch.float64}, None),
        ({"is_cuda": False}, None),
        ({"installed": False}, None),
    ],
)
def test_kernels_are_chosen(changes: dict[str, Any], name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"q": (B, G, T, K), "v": (B, G, T, V), "S": (B, G, K, V), "log_gate": (B, G, T, K), "beta": None}
    kind = {"is_cuda": True, "dtype": torch.float32}
    given = {**shapes, **kind, "installed": True, **changes}
    monkeypatch.setattr(kernels, "installed", lambda: given["installed"])
    monkeypatch.setattr("pkgutil.resolve_name", lambda name: name)
    of = {key: given[key] for key in kind}
    tensors: dict[str, Any] = {
        key: None if given[key] is None else SimpleNamespace(shape=given[key], **of) for key in shapes
    }
    assert kernels.kernel(**tensors) == name


@pytest.mark.gpu
@pytest.mark.parametrize("delta, gate", RULES)
def test_kernels_compute_the_formulas(delta: bool, gate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients, for a normalizer too where the rule has one; their products have 10 bits of precision."""
    pytest.importorskip("fla", reason="pip install 't2r-export[fla]'")

    def computed() -> list[Tensor]:
        given = {name: x.cuda().requires_grad_() for name, x in inputs(delta, gate).items()}
        z = None if delta else torch.rand(B, G, K, device="cuda")
        rest = {"log_gate": None, "beta": None}
        outputs = [x for x in TorchOps(T).linear_attention(z=z, **{**rest, **given}) if x is not None]
        weighted = sum((x * torch.linspace(-1, 1, x.numel(), device="cuda").view(x.shape)).sum() for x in outputs)
        return [*outputs, *torch.autograd.grad(weighted, list(given.values()))]  # type: ignore[arg-type]

    torch.manual_seed(0)
    found = computed()
    monkeypatch.setattr(kernels, "installed", lambda: False)
    torch.manual_seed(0)
    for received, expected in zip(found, computed(), strict=True):
        difference = (received - expected).norm() / expected.norm()
        assert difference < 5e-3
