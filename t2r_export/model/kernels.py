"""Kernels of flash-linear-attention for linear attention on CUDA; they need the extra `fla` (fla-core).

They compute `t2r_export.model.chunks.chunked_linear_attention`, by the formulas there, with the token axis before
the head axis: q, k (B, T, H, K), v (B, T, H, V), g = log g_t (B, T, H), or (B, T, H, K) for a decay per key channel,
beta (B, T, H), initial_state and the state after (B, H, K, V). q is multiplied by `scale`: K^-½ by default, and 1 here.
The kernels' options for normalizers, key norms and variable sequence lengths are unused: normalizers are columns of v,
keys are normalized before, and sequences have equal lengths.
"""

from __future__ import annotations

import functools
import importlib.util
import pkgutil
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Kernel = Callable[..., tuple[Tensor, Tensor]]

# (whether the rule is a delta rule, values of log g per head and token: none, one, one per key channel) -> function
KERNELS = {
    (False, ""): "fla.ops.simple_gla:chunk_simple_gla",  # S_t = S_{t-1} + k_t v_tᵀ, without g
    (False, "1"): "fla.ops.simple_gla:chunk_simple_gla",  # S_t = e^g S_{t-1} + k_t v_tᵀ
    (False, "K"): "fla.ops.gla:chunk_gla",  # S_t = diag(e^g) S_{t-1} + k_t v_tᵀ
    # S_t = e^g S_{t-1} + β k_t (v_t - e^g S_{t-1}ᵀ k_t)ᵀ; with g = 0, since chunk_delta_rule refuses float32
    (True, ""): "fla.ops.gated_delta_rule:chunk_gated_delta_rule",
    (True, "1"): "fla.ops.gated_delta_rule:chunk_gated_delta_rule",
    (True, "K"): "fla.ops.kda:chunk_kda",  # the same with diag(e^g)
}
LARGEST_KEY = 256  # maximum K of the delta rules' kernels


def kernel(q: Tensor, v: Tensor, S: Tensor, log_gate: Tensor | None, beta: Tensor | None) -> Kernel | None:
    """The kernel for these tensors, as in `chunked_linear_attention`; None to compute with torch.

    torch computes without the package, on other devices, in float64, and for K above LARGEST_KEY in delta rules.
    """
    narrow = torch.float64 not in (v.dtype, S.dtype)
    if not (q.is_cuda and narrow and installed()) or beta is not None and q.shape[-1] > LARGEST_KEY:
        return None
    gate = "" if log_gate is None else "1" if log_gate.shape[-1] == 1 else "K"
    found: Kernel = pkgutil.resolve_name(KERNELS[beta is not None, gate])
    return found


@functools.cache
def installed() -> bool:
    """Whether fla-core is installed."""
    return importlib.util.find_spec("fla") is not None


def attention(
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    S: Tensor,
    z: Tensor | None,
    log_gate: Tensor | None,
    beta: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """`chunked_linear_attention` by a kernel, in float32; key heads that queries share are repeated.

    z is S for v = 1: an additional column of v and S computes the denominator.
    """
    if z is not None:
        v, S = F.pad(v, (0, 1), value=1.0), torch.cat([S, z.unsqueeze(-1)], dim=-1)
    repeats = q.shape[1] // k.shape[1]

    def tokens_first(x: Tensor) -> Tensor:
        """x (B, heads, T, n) -> (B, T, H, n)."""
        return x.float().repeat_interleave(q.shape[1] // x.shape[1], dim=1).transpose(1, 2)

    gates = {}
    if beta is not None:
        gates["beta"] = tokens_first(beta)[..., 0]
        log_gate = torch.zeros_like(beta) if log_gate is None else log_gate
    if log_gate is not None:
        g = tokens_first(log_gate)
        gates["g"] = g[..., 0] if log_gate.shape[-1] == 1 else g
    start = S.float().repeat_interleave(repeats, dim=1)
    with torch.autocast(q.device.type, enabled=False):
        inputs = (tokens_first(x) for x in (q, k, v))
        o, after = kernel(*inputs, scale=1.0, initial_state=start, output_final_state=True, **gates)
    o, after = o.transpose(1, 2), after[:, ::repeats]
    if z is None:
        return o, None, after, None
    return o[..., :-1], o[..., -1:], after[..., :-1], after[..., -1]
