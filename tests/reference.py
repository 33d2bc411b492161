"""The definition in plain NumPy: slow, float64, readable line by line against the papers.

Kasai et al. 2021 (arXiv 2103.13076), eq. 4 to 6, the other feature maps of docs/mixers.md, softmax attention over the
first and the last tokens (Xiao et al. 2023, arXiv 2309.17453) or over learned spans (Sukhbaatar et al. 2019, arXiv
1905.07799), and a softmax window with linear attention (Zhang et al. 2024, arXiv 2410.10254). Every other form (eager
step, chunked, graph, runtimes) is tested against this file; where they disagree, this file is right.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from t2r_export.config.mixers import Guard

Array = NDArray[np.float64]


def relu(x: Array, weight: Array, bias: Array) -> Array:
    """φ(x) = relu(W_φ x + b_φ) (Kasai et al. 2021, eq. 6). x (d), weight (K, d), bias (K) -> (K)."""
    return np.maximum(weight @ x + bias, 0.0)


def elu(x: Array) -> Array:
    """φ(x) = elu(x) + 1 (Katharopoulos et al. 2020). x (d) -> (d)."""
    return np.where(x > 0, x + 1, np.exp(x))


def random_fourier(x: Array, weight: Array) -> Array:
    """φ(x) = √(1/D) [sin(W x̂), cos(W x̂)], x̂ = x/|x|, or 0 for 0 (Peng et al. 2021). x (d), W (D, d) -> (2D)."""
    angles = weight @ (x / np.sqrt(x @ x + 1e-6 * len(x)))
    features: Array = np.concatenate([np.sin(angles), np.cos(angles)]) / np.sqrt(len(weight))
    return features


def favor(x: Array, weight: Array) -> Array:
    """φ(x) = exp(W x' - |x'|²/2) / √m, x' = x d^-¼ (Choromanski et al. 2021). x (d), weight (m, d) -> (m)."""
    x = x / len(x) ** 0.25
    features: Array = np.exp(weight @ x - x @ x / 2) / np.sqrt(len(weight))
    return features


def dpfp(x: Array, n: int) -> Array:
    """φ_{iν}(x) = r_i r_{i+ν}, ν = 1..n, over its sum (Schlag et al. 2021). x (d) -> (2dn)."""
    r = np.maximum(np.concatenate([x, -x]), 0.0)
    features = np.array([r[i] * r[(i + shift) % len(r)] for shift in range(1, n + 1) for i in range(len(r))])
    share: Array = features / (features.sum() + 1e-6)
    return share


def hedgehog(x: Array, weight: Array) -> Array:
    """φ(x) = [softmax(W x), softmax(-W x)] (Zhang et al. 2024). x (d), weight (K/2, d) -> (K)."""
    up, down = np.exp(weight @ x), np.exp(-weight @ x)
    return np.concatenate([up / up.sum(), down / down.sum()])


def head_norm(o: Array, scale: Array, shift: Array | None, eps: float) -> Array:
    """One head's output (V) normalized to mean 0 and variance 1, scaled and shifted; without a shift: RMS norm.

    Wu and He 2018, one group per head; Zhang and Sennrich 2019.
    """
    if shift is not None:
        o = o - o.mean()
    normed: Array = o / np.sqrt((o**2).mean() + eps) * scale
    return normed if shift is None else normed + shift


def guarded(denominator: float, guard: Guard) -> float:
    """Guard the denominator against zero: max(den, eps) or den + eps."""
    return max(denominator, guard.eps) if guard.kind == "clamp" else denominator + guard.eps


def convolved(x: Array, weight: Array, past: Array) -> Array:
    """A depthwise causal convolution: y_t = Σ_j w_j ⊙ x_{t-n+1+j}.

    x (B, T, C); weight (n, C), the last row for the current token; past (B, n - 1, C), the inputs before -> (B, T, C).
    """
    n, joined = len(weight), np.concatenate([past, x], axis=1)
    y = np.zeros_like(x)
    for t in range(x.shape[1]):
        for j in range(n):
            y[:, t] += weight[j] * joined[:, t + j]
    return y


def recurrent(
    phi_q: Array, phi_k: Array, v: Array, S: Array, z: Array, guard: Guard | None, angles: Array | None = None
) -> tuple[Array, Array, Array]:
    """Token-by-token recurrence (eq. 4 and 5).

    Args:
        phi_q: φ(q), (B, T, H, K). phi_k: φ(k), (B, T, G, K). v: (B, T, G, V). G divides H.
        S: (B, G, K, V) and z: (B, G, K), the state before the first token.
        guard: of the denominator; None: no denominator, o is φ(q)ᵀS.
        angles: (B, T, F), rotation angles of the first 2F features in the numerator (Su et al. 2021, arXiv 2104.09864,
            eq. 19).

    Returns:
        o (B, T, H, V), and S and z after the last token.
    """

    def rotated(phi: Array, b: int, t: int) -> Array:
        if angles is None:
            return phi
        count = 2 * angles.shape[-1]
        return np.concatenate([turned(phi[:count], angles[b, t]), phi[count:]])

    B, T, H, _ = phi_q.shape
    G, V = v.shape[2:]
    S, z = S.astype(np.float64), z.astype(np.float64)
    o = np.empty((B, T, H, V))
    for b in range(B):
        for t in range(T):
            for g in range(G):
                S[b, g] = S[b, g] + np.outer(rotated(phi_k[b, t, g], b, t), v[b, t, g])
                z[b, g] = z[b, g] + phi_k[b, t, g]
            for h in range(H):
                g = h // (H // G)  # query head h reads the state of its group
                denominator = 1.0 if guard is None else guarded(phi_q[b, t, h] @ z[b, g], guard)
                o[b, t, h] = rotated(phi_q[b, t, h], b, t) @ S[b, g] / denominator
    return o, S, z


def updated(S: Array, k: Array, v: Array, log_gate: Array | float = 0.0, beta: float | None = None) -> Array:
    """S of one head after one token, by the update rule of the arguments.

    S (K, V), k (K), v (V). log_gate: log of the kept share of S, a scalar or per feature (K).
    beta: the delta rule's rate. Neither: the sum of the paper. Both: the gated delta rule (2412.06464, eq. 10).
    """
    S = np.exp(log_gate) * S if np.ndim(log_gate) == 0 else np.exp(log_gate)[:, None] * S
    if beta is None:
        return S + np.outer(k, v)
    return S + beta * np.outer(k, v - S.T @ k)


def recurrence(
    q: Array, k: Array, v: Array, S: Array, log_gate: Array | None = None, beta: Array | None = None
) -> tuple[Array, Array]:
    """Token-by-token recurrence with any update rule, without a denominator.

    q (B, T, H, K), k (B, T, G, K), v (B, T, G, V), S (B, G, K, V); log_gate (B, T, G) or (B, T, G, K); beta (B, T, G).
    Returns q_tᵀ S_t (B, T, H, V) and S after the last token.
    """
    B, T, H, _ = q.shape
    G, V = v.shape[2:]
    S = S.astype(np.float64)
    o = np.empty((B, T, H, V))
    for b, t in np.ndindex(B, T):
        for g in range(G):
            kept = 0.0 if log_gate is None else log_gate[b, t, g]
            S[b, g] = updated(S[b, g], k[b, t, g], v[b, t, g], kept, None if beta is None else beta[b, t, g])
        for h in range(H):
            o[b, t, h] = q[b, t, h] @ S[b, h // (H // G)]
    return o, S


def parallel(phi_q: Array, phi_k: Array, v: Array, guard: Guard) -> Array:
    """The same outputs from an empty state, with a T × T weight matrix per head: o (B, T, H, V)."""
    B, T, H, _ = phi_q.shape
    G, V = v.shape[2:]
    o = np.empty((B, T, H, V))
    for b in range(B):
        for h in range(H):
            g = h // (H // G)
            weights = np.tril(phi_q[b, :, h] @ phi_k[b, :, g].T)  # (T, T)
            sums = np.array([guarded(row, guard) for row in weights.sum(axis=1)])
            o[b, :, h] = weights @ v[b, :, g] / sums[:, None]
    return o


def windowed(
    q: Array,
    k: Array,
    v: Array,
    window: int,
    sinks: int,
    frequencies: Array | None = None,
    memory: tuple[Array, Array] | None = None,
    score: Callable[[Array, Array, int, int], float] | None = None,
    dilation: int = 1,
    local: int = 1,
) -> Array:
    """Softmax attention over the first `sinks` tokens and the last `window` ones, including the current one.

    Args:
        q: (B, T, H, d), scaled. k and v: (B, T, G, d). G divides H. From the first token of the text.
        frequencies: (d/2), of rotary positions; None without. A window token has its true distance; a sink has at most
            that of its place in a full buffer of `sinks` + `window` tokens.
        memory: keys and values (G, N, d) that every query attends to, at no distance.
        score: of a scaled query, a key, its distance and the head; default: their product.
        dilation, local: of the window, tokens nearer than `local` and those whose distance `dilation` divides are
            attended to (Beltagy et al. 2020, arXiv 2004.05150; Child et al. 2019, arXiv 1904.10509).

    Returns:
        o (B, T, H, d).
    """
    B, T, H, _ = q.shape
    o = np.empty(q.shape)
    for b, t, h in np.ndindex(B, T, H):
        g = h // (H // k.shape[2])
        recent = {i: t - i for i in range(max(t - window + 1, 0), t + 1)}  # token -> its distance
        recent = {i: n for i, n in recent.items() if n < local or n % dilation == 0}
        first = {i: min(t, sinks + window - 1) - i for i in range(min(sinks, t + 1))}
        distances = first | recent
        keys = [k[b, i, g] for i in distances]
        if frequencies is not None:
            keys = [turned(key, -n * frequencies) for key, n in zip(keys, distances.values(), strict=True)]
        values = [v[b, i, g] for i in distances]
        if memory is not None:
            keys, values = [*keys, *memory[0][g]], [*values, *memory[1][g]]
        scores = [q[b, t, h] @ key for key in keys]
        if score is not None:
            scores = [score(q[b, t, h], key, n, h) for key, n in zip(keys, distances.values(), strict=True)]
        weights = np.exp(scores)
        o[b, t, h] = weights / weights.sum() @ np.array(values)
    return o


def spanned(q: Array, k: Array, v: Array, masks: Array) -> Array:
    """Softmax attention with weights multiplied by a distance mask (Sukhbaatar et al. 2019, eq. 2 and 3).

    Args:
        q: (B, T, H, d), scaled; k and v: (B, T, G, d). G divides H. From the first token of the text.
        masks: (H, S), per head at the distances 0 to S - 1; 0 beyond.

    Returns:
        o (B, T, H, d).
    """
    B, T, H, _ = q.shape
    o = np.empty(q.shape)
    for b, t, h in np.ndindex(B, T, H):
        g, seen = h // (H // k.shape[2]), range(max(t - masks.shape[1] + 1, 0), t + 1)
        weights = np.array([masks[h, t - i] * np.exp(q[b, t, h] @ k[b, i, g]) for i in seen])
        o[b, t, h] = weights / weights.sum() @ v[b, list(seen), g]
    return o


def merged(
    q: Array,
    k: Array,
    v: Array,
    phi_q: Array,
    phi_k: Array,
    window: int,
    share: Array,
    gate: bool,
    guard: Guard,
    sinks: int = 0,
    log_gate: Array | None = None,
    sink_q: Array | None = None,
    turned_phi: tuple[Array, Array] | None = None,
) -> Array:
    """Softmax on the last `window` tokens and linear attention on all before them (Zhang et al. 2024, eq. 6).

    Args:
        q: (B, T, H, d), scaled; k and v: (B, T, G, d). phi_q: (B, T, H, K) and phi_k: (B, T, G, K), their features.
        share: broadcasts to (B, T, H), the factor of the window's exponentials relative to the sums, or, with `gate`,
            the window's share of o.
        sinks: first tokens of the text, part of the window and never of the sums.
        log_gate: (B, T, G) or (B, T, G, K), log of the share of the sums kept at token t, before the token that
            leaves the window is added.
        sink_q: (B, T, H, d), the queries for the sinks, if they rotate by another position than q.
        turned_phi: phi_q and phi_k in the numerator, if features rotate.

    Returns:
        o (B, T, H, d).
    """
    B, T, H, _ = q.shape
    sink_q = q if sink_q is None else sink_q
    upper_q, upper_k = turned_phi or (phi_q, phi_k)
    o, shares = np.empty(q.shape), np.broadcast_to(share, (B, T, H))
    for b, t, h in np.ndindex(B, T, H):
        g, share = h // (H // k.shape[2]), shares[b, t, h]
        left = range(sinks, t - window + 1)  # tokens that left the window, token i at step i + window
        seen = [i for i in range(t + 1) if i not in left]
        scores = np.array([k[b, i, g] @ (sink_q if i < sinks else q)[b, t, h] for i in seen])
        near = np.exp(scores - scores.max())
        kept = np.ones((len(left), 1))
        if log_gate is not None and left:
            kept = np.exp([log_gate[b, i + window + 1 : t + 1, g].sum(0) for i in left]).reshape(len(left), -1)
        far = (kept * phi_k[b, left, g]) @ phi_q[b, t, h]
        upper = (kept * upper_k[b, left, g]) @ upper_q[b, t, h]
        sums = near @ v[b, seen, g], upper @ v[b, left, g]
        if not gate:
            o[b, t, h] = (share * sums[0] + sums[1]) / (share * near.sum() + far.sum())
        else:
            open = share if left else 1.0  # with no far tokens only the window counts
            o[b, t, h] = open * sums[0] / near.sum() + (1 - open) * sums[1] / guarded(far.sum(), guard)
    return o


def turned(x: Array, angles: Array) -> Array:
    """x (d) as d/2 complex numbers, each rotated by its angle: number i is x[i] + j·x[i + d/2]."""
    half = len(x) // 2
    pairs = (x[:half] + 1j * x[half:]) * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag])
