"""The definition: by hand for small sizes, and its two forms against each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from reference import Array
from t2r_export.config.mixers import Guard

CLAMP, ADD = Guard("clamp", 1e-2), Guard("add", 1e-3)


def inputs(B: int = 2, T: int = 7, H: int = 6, G: int = 3, K: int = 5, V: int = 4, seed: int = 0) -> tuple[Array, ...]:
    """φ(q), φ(k), v, S, z with some features off, as a ReLU leaves them."""
    random = np.random.default_rng(seed)
    phi_q = np.maximum(random.normal(size=(B, T, H, K)), 0)
    phi_k = np.maximum(random.normal(size=(B, T, G, K)), 0)
    S, z = random.normal(size=(B, G, K, V)), random.uniform(0.5, 1.5, size=(B, G, K))
    return phi_q, phi_k, random.normal(size=(B, T, G, V)), S, z


def test_one_token_by_hand() -> None:
    phi_q, phi_k, v = (np.array(x, float).reshape(1, 1, 1, -1) for x in ([2, 1], [3, 4], [5, 7, 9]))
    S, z = np.ones((1, 1, 2, 3)), np.array([[[1.0, 0.0]]])
    o, S, z = reference.recurrent(phi_q, phi_k, v, S, z, CLAMP)
    np.testing.assert_array_equal(S[0, 0], [[16, 22, 28], [21, 29, 37]])
    np.testing.assert_array_equal(z[0, 0], [4, 4])
    np.testing.assert_allclose(o[0, 0, 0], np.array([53, 73, 93]) / 12)


def test_feature_maps_by_hand() -> None:
    weight, bias = np.array([[1.0, 2.0], [3.0, -4.0], [0.0, 1.0]]), np.array([0.5, 0.5, -9.0])
    np.testing.assert_array_equal(reference.relu(np.array([1.0, 1.0]), weight, bias), [3.5, 0, 0])
    np.testing.assert_allclose(reference.elu(np.array([2.0, 0.0, -np.log(4)])), [3, 1, 0.25])
    fourier = reference.random_fourier(np.array([0.0, 5.0]), np.array([[9.0, np.pi / 2], [9.0, np.pi]]))
    np.testing.assert_allclose(fourier, np.array([1, 0, 0, -1]) / np.sqrt(2), atol=1e-6)
    exponent = 1 / np.sqrt(2)  # of d^-¼ = 2^-¼, squared
    favor = reference.favor(np.array([2.0, 0.0]), np.array([[2**0.25, 9.0]]))
    np.testing.assert_allclose(favor, [np.exp(2 - 4 * exponent / 2)])
    # r = relu([2, -3, -2, 3]) = [2, 0, 0, 3]: its last with the first of the next round, for ν = 1, and no other pair
    np.testing.assert_allclose(reference.dpfp(np.array([2.0, -3.0]), 2), [0, 0, 0, 1, 0, 0, 0, 0], atol=1e-6)
    hedgehog = reference.hedgehog(np.array([np.log(3), 7.0]), np.array([[1.0, 0.0], [0.0, 0.0]]))
    np.testing.assert_allclose(hedgehog, [3 / 4, 1 / 4, 1 / 4, 3 / 4])


def test_favor_estimates_the_softmax_kernel() -> None:
    """The mean of φ(q)·φ(k) over random directions is exp(q·k/√d)."""
    random = np.random.default_rng(0)
    q, k = random.normal(size=(2, 4))
    weight = random.normal(size=(400_000, 4))
    estimate = reference.favor(q, weight) @ reference.favor(k, weight)
    assert abs(estimate / np.exp(q @ k / 2) - 1) < 0.03


def test_random_fourier_estimates_gaussian_kernel() -> None:
    random = np.random.default_rng(0)
    q, k = random.normal(size=(2, 4))
    weight = random.normal(size=(400_000, 4)) / 0.7
    q_unit, k_unit = q / np.linalg.norm(q), k / np.linalg.norm(k)
    estimate = reference.random_fourier(q, weight) @ reference.random_fourier(k, weight)
    assert abs(estimate - np.exp(-((q_unit - k_unit) ** 2).sum() / (2 * 0.7**2))) < 0.01


def test_head_norm_by_hand() -> None:
    o, scale = np.array([1.0, 3.0]), np.array([10.0, 20.0])
    np.testing.assert_allclose(reference.head_norm(o, scale, np.array([0.0, 1.0]), 0.0), [-10, 21])
    np.testing.assert_allclose(reference.head_norm(o, scale, None, 4.0), [10 / 3, 60 / 3])


@pytest.mark.parametrize(
    "denominator, guard, expected", [(0.5, CLAMP, 0.5), (0.004, CLAMP, 0.01), (0, CLAMP, 0.01), (0.5, ADD, 0.501)]
)
def test_guard(denominator: float, guard: Guard, expected: float) -> None:
    assert reference.guarded(denominator, guard) == expected


def test_nothing_to_look_at_gives_nothing() -> None:
    phi_q, phi_k, v, S, z = inputs()
    for guard in (CLAMP, ADD):
        o, *_ = reference.recurrent(phi_q, phi_k * 0, v, S * 0, z * 0, guard)
        np.testing.assert_array_equal(o, 0)


sizes = st.fixed_dictionaries({name: st.integers(1, 3) for name in ("B", "G", "K", "V")} | {"T": st.integers(1, 6)})


@given(sizes, st.integers(1, 3), st.sampled_from([CLAMP, ADD]))
def test_recurrent_is_parallel(sizes: dict[str, int], R: int, guard: Guard) -> None:
    phi_q, phi_k, v, S, z = inputs(H=R * sizes["G"], **sizes)
    o, *_ = reference.recurrent(phi_q, phi_k, v, S * 0, z * 0, guard)
    np.testing.assert_allclose(o, reference.parallel(phi_q, phi_k, v, guard), rtol=1e-12, atol=1e-12)


@given(st.integers(0, 7))
def test_split_anywhere(at: int) -> None:
    phi_q, phi_k, v, S, z = inputs()
    o, S_end, z_end = reference.recurrent(phi_q, phi_k, v, S, z, CLAMP)
    first, S, z = reference.recurrent(phi_q[:, :at], phi_k[:, :at], v[:, :at], S, z, CLAMP)
    second, S, z = reference.recurrent(phi_q[:, at:], phi_k[:, at:], v[:, at:], S, z, CLAMP)
    np.testing.assert_array_equal(np.concatenate([first, second], 1), o)
    np.testing.assert_array_equal(S, S_end)
    np.testing.assert_array_equal(z, z_end)


def test_a_group_is_read_by_its_own_query_heads() -> None:
    phi_q, phi_k, v, S, z = inputs()  # 6 query heads, 3 groups
    o, *_ = reference.recurrent(phi_q, phi_k, v, S, z, CLAMP)
    v[:, :, 1] += 1
    other, *_ = reference.recurrent(phi_q, phi_k, v, S, z, CLAMP)
    changed = (np.abs(o - other) > 0).any(axis=(0, 1, 3))
    np.testing.assert_array_equal(changed, [False, False, True, True, False, False])


def test_the_given_state_stays() -> None:
    phi_q, phi_k, v, S, z = inputs()
    before = S.copy(), z.copy()
    reference.recurrent(phi_q, phi_k, v, S, z, CLAMP)
    np.testing.assert_array_equal(S, before[0])
    np.testing.assert_array_equal(z, before[1])
