"""A text continues from a prefix shared with an earlier text, with unchanged results."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime import graphs
from runtime.conftest import Open, OpenTranslator
from t2r_runtime import Decoder, PrefixCache, Sampling, UserError
from t2r_runtime.decode.prefix import SUFFIX

GREEDY = Sampling(temperature=0, stop_tokens=())
BLOCK = 3
texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=8)  # shared prefixes


def same_states(one: Decoder, other: Decoder) -> None:
    assert one.position == other.position
    assert one.history().tolist() == other.history().tolist()
    for name, state in one.state().items():
        np.testing.assert_array_equal(state, other.state()[name])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["constant", "growing", "both", "silent"]),
    read=texts,
    room=st.sampled_from([0, 200, 600, 1 << 20]),
    on_disk=st.booleans(),
)
def test_batch_isolation(
    kind: str, read: list[list[int]], room: int, on_disk: bool, opened: Open, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("states") if on_disk else None
    cache, alone = PrefixCache(opened(kind), room, BLOCK, folder, 1000), opened(kind)
    for text in read:
        logits = cache.read(text)
        alone.reset()
        for first in range(0, (len(text) - 1) // BLOCK * BLOCK, BLOCK):
            alone.prefill(text[first : first + BLOCK])
        np.testing.assert_array_equal(logits, alone.prefill(text[(len(text) - 1) // BLOCK * BLOCK :]))
        same_states(cache.decoder, alone)
        assert cache.kept_bytes <= room
        if folder is not None:
            assert sum(file.stat().st_size for file in folder.iterdir()) <= 1000 or len(list(folder.iterdir())) == 1


def test_shared_prefix_read_once(opened: Open) -> None:
    cache = PrefixCache(opened(), block=BLOCK)
    for text, reused in (
        ([1, 2, 3, 4, 5, 6, 7], 0),
        ([1, 2, 3, 4, 5, 6, 7], 6),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 6),
        ([1, 2, 3, 4, 0, 6, 7], 3),
        ([1, 2, 3], 0),  # its last token must be read for its logits
        ([2, 2, 3, 4, 5, 6, 7], 0),
        ([1, 2, 3, 4, 0, 6, 7, 7], 6),
    ):
        cache.read(text)
        assert cache.reused == reused, text


def test_eviction_order(opened: Open) -> None:
    decoder = opened()
    size = sum(state.nbytes for state in decoder.state().values())
    cache = PrefixCache(decoder, 2 * size, BLOCK)
    cache.read([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    assert cache.kept_bytes == 2 * size
    cache.read([1, 2, 3, 4, 5, 6, 0])
    assert cache.reused == 6


def test_source_memory_limit(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = opened()
    size = sum(state.nbytes for state in decoder.state().values())
    cache, prefill, seen = PrefixCache(decoder, 2 * size, BLOCK), decoder.prefill, list[int]()

    def watched(ids: list[int]) -> np.ndarray:
        seen.append(cache.kept_bytes)
        return prefill(ids)

    monkeypatch.setattr(decoder, "prefill", watched)
    cache.read([7, 7, 7, 7])
    cache.read([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4])
    assert max(seen) == 2 * size and len(seen) == 2 + 5


def test_generate_equals_decoder(opened: Open) -> None:
    cache, alone = PrefixCache(opened("both"), block=BLOCK), opened("both")
    sampling = Sampling(seed=5, stop_tokens=(), repetition_penalty=1.3, no_repeat_ngram=2)  # these read earlier tokens
    for text in ([3], [3, 1, 4, 1, 5], [3, 1, 4, 1, 5, 9, 2], [3, 1, 4, 1, 5]):
        alone.reset()
        assert cache.generate(text, 7, sampling) == alone.generate(text, 7, sampling)
    assert cache.reused == 3
    seen: list[int] = []
    assert cache.generate([3, 1, 4, 1, 5], 4, GREEDY, seen.append) == seen


@pytest.mark.parametrize("count", [0, 1, 2, 5, 9, 12])
def test_rewind(count: int, opened: Open) -> None:
    cache, alone = PrefixCache(opened("both"), block=BLOCK), opened("both")
    written = cache.generate([3, 1, 4, 1, 5], 8, GREEDY)
    whole = [3, 1, 4, 1, 5, *written[:-1]]
    cache.rewind(count)
    for token in whole[: len(whole) - count]:
        alone.step(token)
    assert alone.position == 12 - count
    same_states(cache.decoder, alone)


def test_invalid_rewind(opened: Open) -> None:
    cache = PrefixCache(opened(), block=BLOCK)
    cache.read([1, 2, 3])
    for count in (-1, 4, "1", True):
        with pytest.raises(UserError, match="a count in 0 … 3"):
            cache.rewind(count)  # type: ignore[arg-type]
    cache.decoder.set_state(cache.decoder.state(), 3)  # its text is unknown
    with pytest.raises(UserError, match="read by this cache; received 3 tokens"):
        cache.rewind(0)


def test_prefix_folder_shared_between_processes(opened: Open, tmp_path: Path) -> None:
    text = [1, 2, 3, 4, 5, 6, 7]
    first, second = (PrefixCache(opened("both"), 1 << 20, BLOCK, tmp_path / "new") for _ in range(2))
    logits = first.read(text)
    np.testing.assert_array_equal(second.read(text), logits)
    assert second.reused == 6
    other = PrefixCache(opened("both", checkpoint_sha256="1" * 64), 1 << 20, BLOCK, tmp_path / "new")
    other.read(text)
    assert other.reused == 0, "a state of another model"
    for file in (tmp_path / "new").iterdir():
        file.write_bytes(file.read_bytes()[:-9])
    third = PrefixCache(opened("both"), 1 << 20, BLOCK, tmp_path / "new")
    np.testing.assert_array_equal(third.read(text), logits)
    assert third.reused == 0, "damaged files"
    fourth = PrefixCache(opened("both"), 1 << 20, BLOCK, tmp_path / "new")
    fourth.read(text)
    assert fourth.reused == 6, "written anew"


def test_mismatched_prefix_state_ignored(opened: Open, tmp_path: Path) -> None:
    cache = PrefixCache(opened("both"), 1 << 20, BLOCK, tmp_path)
    cache.read([1, 2, 3, 4, 5, 6, 7])
    short, long = sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_size)
    short.replace(long)
    again = PrefixCache(opened("both"), 1 << 20, BLOCK, tmp_path)
    again.read([1, 2, 3, 4, 5, 6, 7])
    assert again.reused == 0, "a state that has read fewer tokens"


def test_prefix_folder_evicts_oldest_files(opened: Open, tmp_path: Path) -> None:
    cache = PrefixCache(opened(), 0, BLOCK, tmp_path)
    cache.read([1, 2, 3, 4])
    (one,) = tmp_path.iterdir()
    os.utime(one, (1, 1))
    size = one.stat().st_size
    small = PrefixCache(opened(), 0, BLOCK, tmp_path, max_disk_bytes=2 * size)
    for first in (2, 3):
        small.read([first, 2, 3, 4])
    assert len(list(tmp_path.iterdir())) == 2 and not one.exists()


def test_prefix_file_that_another_process_deletes(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = PrefixCache(opened(), 0, BLOCK, tmp_path).read([1, 2, 3, 4])
    (tmp_path / f"gone{SUFFIX}").symlink_to("nowhere")  # listed, but without a size
    monkeypatch.setattr(os, "utime", lambda path: Path(path).unlink() or Path(path).stat())
    again = PrefixCache(opened(), 0, BLOCK, tmp_path)
    np.testing.assert_array_equal(again.read([1, 2, 3, 4]), logits)
    assert again.reused == 3
    again.read([2, 3, 4, 5])
    assert len([file for file in tmp_path.iterdir() if file.is_file()]) == 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_bytes": -1}, "max_bytes of at least 0; received -1"),
        ({"max_bytes": 1.5}, "max_bytes of at least 0; received 1.5"),
        ({"block": 0}, "block of at least 1; received 0"),
        ({"max_disk_bytes": None}, "max_disk_bytes of at least 0; received None"),
    ],
)
def test_invalid_values(options: dict[str, int], message: str, opened: Open) -> None:
    with pytest.raises(UserError, match=message):
        PrefixCache(opened(), **options)


def test_non_text_arguments(opened: Open, translator: OpenTranslator, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a Decoder as decoder"):
        PrefixCache("x")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="a decoder without a source; received a translator's"):
        PrefixCache(translator().start([[1, 2]]))
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="expected a writable folder"):
        PrefixCache(opened(), folder=tmp_path / "file")
    cache = PrefixCache(opened("table"), block=BLOCK)
    with pytest.raises(UserError, match="ids in 0"):
        cache.read([99])
    with pytest.raises(UserError, match="positions end"):
        cache.read([1] * 200)
    assert cache.decoder.position == 0


def test_two_threads_at_once(opened: Open) -> None:
    cache, found = PrefixCache(opened(), block=BLOCK), []

    def other() -> None:
        with pytest.raises(UserError, match="one thread at a time in a prefix cache") as caught:
            cache.read([1])
        found.append(caught.value)

    with cache.in_use:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert found


def test_invalid_history(opened: Open) -> None:
    decoder = opened()
    for history in ([[1, 2]], [0.5]):
        with pytest.raises(UserError, match="a history of one sequence, integers"):
            decoder.set_state(decoder.state(), 2, history)
    decoder.set_state(decoder.state(), 2, [3, 4])
    assert decoder.history().tolist() == [3, 4]
    assert graphs.VOCABULARY > 4
