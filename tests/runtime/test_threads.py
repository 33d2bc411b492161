"""One decoder in two threads: an error, and no lost step. Forks in their own threads: as if alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from runtime import graphs
from runtime.conftest import Open
from t2r_runtime import Batch, Decoder, UserError
from t2r_runtime.session.threads import InUse, once

IDS = [3, 1, 4, 1, 5]
ONE_MORE = graphs.GREEDY

DECODER_METHODS: dict[str, Callable[[Decoder, Path], object]] = {
    "step": lambda d, _: d.step(1),
    "prefill": lambda d, _: d.prefill(IDS),
    "top_k": lambda d, _: d.top_k(IDS),
    "reset": lambda d, _: d.reset(),
    "reorder": lambda d, _: d.reorder([0]),
    "take": lambda d, _: d.fork().take([(d, [0])]),
    "state": lambda d, _: d.state(),
    "set_state": lambda d, _: d.set_state(graphs.random_states("constant", 1)),
    "save_state": lambda d, folder: d.save_state(folder / "s.npz"),
    "load_state": lambda d, folder: d.load_state(folder / "s.npz"),
    "generate": lambda d, _: d.generate(IDS, 3, ONE_MORE),
    "stream": lambda d, _: list(d.stream(IDS, 3, ONE_MORE)),
}
BATCH_METHODS: dict[str, Callable[[Batch], object]] = {
    "add": lambda b: b.add(IDS, 3),
    "step": lambda b: b.step(),
    "remove": lambda b: b.remove(0),
}


@contextmanager
def used_elsewhere(in_use: InUse) -> Iterator[None]:
    """Another thread holds `in_use`."""
    inside, done = threading.Event(), threading.Event()

    def use() -> None:
        with in_use:
            inside.set()
            done.wait()

    thread = threading.Thread(target=use)
    thread.start()
    inside.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("method", DECODER_METHODS)
def test_decoder_concurrent_use(method: str, opened: Open, tmp_path: Path) -> None:
    decoder, use = opened(top_k=2), DECODER_METHODS[method]
    decoder.save_state(tmp_path / "s.npz")
    with (
        used_elsewhere(decoder.in_use),
        pytest.raises(UserError, match="one thread at a time in a decoder") as caught,
    ):
        use(decoder, tmp_path)
    assert (caught.value.kind, decoder.position) == ("state", 0)
    use(decoder, tmp_path)  # no lock is left held


@pytest.mark.parametrize("method", BATCH_METHODS)
def test_batch_concurrent_use(method: str, opened: Open) -> None:
    batch = Batch(opened())
    batch.add(IDS, 3)
    with used_elsewhere(batch.in_use), pytest.raises(UserError, match="one thread at a time in a batch"):
        BATCH_METHODS[method](batch)
    BATCH_METHODS[method](batch)


def test_steps_of_four_threads(opened: Open) -> None:
    decoder = opened()

    def steps(_: int) -> int:
        done = 0
        for _ in range(200):
            try:
                decoder.step(1)
                done += 1
            except UserError:
                pass
        return done

    with ThreadPoolExecutor(4) as pool:
        done = sum(pool.map(steps, range(4)))
    assert decoder.position == decoder.state()["position"][0] == done


def test_callback_may_use_decoder(opened: Open) -> None:
    decoder = opened()
    seen: list[int] = []
    decoder.generate(IDS, 3, ONE_MORE, callback=lambda _: seen.append(int(decoder.state()["position"][0])))
    assert seen == [5, 6, 7]


def test_forks_in_threads(opened: Open) -> None:
    decoder = opened()
    ids = np.random.default_rng(0).integers(0, graphs.VOCABULARY, (4, 60))
    alone = []
    for row in ids:
        decoder.reset()
        alone.append([decoder.step(token) for token in row])
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda row: [fork.step(token) for fork in [decoder.fork()] for token in row], ids))
    np.testing.assert_array_equal(np.array(together), np.array(alone))


def test_once_waits_and_tries_again_after_an_error() -> None:
    calls: list[int] = []

    @once
    def made() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError
        return len(calls)

    with pytest.raises(ValueError):
        made()
    assert (made(), made()) == (2, 2)
