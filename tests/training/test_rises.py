"""A rising loss is noticed within twenty steps, and noise is not."""

from __future__ import annotations

import numpy as np
import pytest

from t2r_export.training.rises import Watch

NOISE = np.random.default_rng(0).normal(1.0, 0.05, 400)


def looks(losses: np.ndarray, watch: Watch) -> dict[int, bool]:
    """Whether the stage is worse off than at its start, by the step of each rise."""
    found = {}
    for step, loss in enumerate(losses.tolist(), 1):
        if (rise := watch.add([loss], step)) is not None:
            found[step] = rise.worse
    return found


@pytest.mark.parametrize("start", [0, 3, 40, 97])
def test_divergence_is_noticed_within_twenty_steps(start: int) -> None:
    rising = np.concatenate([np.linspace(7.5, 5.0, start), 7.5 * 1.12 ** np.arange(60)]) * NOISE[: start + 60]
    watch = Watch()
    found = looks(rising[: start + 20], watch)
    assert start < min(found)
    assert watch.factor == 0.5 ** len(found)


def test_rise_at_once_is_noticed_while_the_loss_falls_again() -> None:
    watch = Watch()
    assert looks(np.array([0.3, 6.0, 5.5, 5.1, 4.6, 4.0, 3.0, 2.5, 2.0, 1.5]), watch) == {10: True}
    assert watch.lowest == watch.first == 0.3


def test_plateau_above_the_best_is_no_second_rise() -> None:
    losses = np.concatenate([np.linspace(8, 2, 40), np.full(40, 3.0)]) * NOISE[:80]
    watch = Watch()
    assert looks(losses, watch) == {50: False}
    assert watch.factor == 0.5


@pytest.mark.parametrize("fall", [0.0, 0.01])
def test_noise_is_no_rise(fall: float) -> None:
    assert looks(np.exp(-fall * np.arange(400)) * NOISE, Watch()) == {}


def test_a_stopped_watch_resumes() -> None:
    losses = np.concatenate([np.linspace(8, 2, 43), np.linspace(2, 20, 40)])
    whole, watch = Watch(), Watch()
    expected = looks(losses, whole)
    found = {}
    for step, loss in enumerate(losses.tolist(), 1):
        watch = Watch(**{**vars(watch), "losses": list(watch.losses)})
        if (rise := watch.add([loss], step)) is not None:
            found[step] = rise.worse
    assert (found, watch) == (expected, whole)
    assert True in expected.values()
