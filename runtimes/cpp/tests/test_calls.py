"""Calls that another thread cancels, and decoders that are copies of others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from cpp_build import GOLDEN, Run
from numpy.typing import NDArray
from t2r_library import Decoder, Failed, Library

MOST = 1 << 24  # tokens, which would take hours


def cancelled(decoder: Decoder, call: Callable[[], object]) -> Failed:
    """Run a call in another thread, cancel it from this one, and return its error."""
    failed: list[Failed] = []

    def run() -> None:
        try:
            call()
        except Failed as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    for _ in range(600):
        thread.join(0.1)
        decoder.cancel()  # no effect until the call has begun
        if not thread.is_alive():
            break
    assert not thread.is_alive() and len(failed) == 1
    return failed[0]


def fresh(decoder: Decoder, tokens: list[int], next_token: int) -> NDArray[np.float32]:
    """The logits of a decoder that has read these tokens, and one more."""
    other = decoder.fork()
    if tokens:
        other.prefill([tokens])
    return other.step([next_token])


def test_a_text_that_is_cancelled(library: Library) -> None:
    """The chosen tokens are returned, and the decoder has read all but the last."""
    decoder = Decoder(library, GOLDEN / "tiny.onnx")
    options = {"temperature": 0.0, "stop_tokens": []}
    written = list[int]()
    while not written:  # until a call is cancelled after its prompt
        decoder.reset()
        failed = cancelled(decoder, lambda: decoder.generate([1, 3], MOST, **options))
        written = list(decoder.written)
    assert str(failed).startswith("cancelled: expected the call to go on; received t2r_cancel from another thread; ")
    assert decoder.info.position == 1 + len(written)
    again = decoder.fork().generate([1, 3], len(written) + 5, **options)
    assert again[: len(written)] == written
    assert decoder.generate(written[-1:], 5, **options) == again[len(written) :]  # as without the cancellation


def test_a_prompt_that_is_cancelled(library: Library) -> None:
    """Exactly `position` tokens have been read."""
    decoder = Decoder(library, GOLDEN / "tiny.onnx")
    prompt = [place % 17 for place in range(1 << 21)]
    assert cancelled(decoder, lambda: decoder.prefill([prompt])).kind == "cancelled"
    read = decoder.info.position
    assert read < len(prompt)
    np.testing.assert_array_equal(decoder.step([4]), fresh(decoder, prompt[:read], 4))


def test_a_prompt_that_fails_has_been_read_up_to_there(library: Library, tmp_path: Path) -> None:
    """The graph's table has fewer positions than its metadata: the graph itself refuses the token after the last."""
    model = onnx.load(GOLDEN / "ends.onnx")
    (promised,) = (entry for entry in model.metadata_props if entry.key == "t2r.max_positions")
    most, promised.value = int(promised.value), "99"
    onnx.save(model, tmp_path / "breaks.onnx")
    decoder = Decoder(library, tmp_path / "breaks.onnx")
    prompts = [[step * place % 17 for place in range(most + 7)] for step in range(3, 3 + decoder.info.batch)]
    with pytest.raises(Failed, match="^runtime: "):
        decoder.prefill(prompts)
    assert decoder.info.position == most
    other = decoder.fork()
    other.prefill([prompt[:most] for prompt in prompts])
    for name, state in other.states().items():
        np.testing.assert_array_equal(decoder.states()[name], state)


def test_logits_that_are_not_finite_have_been_read(library: Library) -> None:
    """The prompt has been read, and no token was chosen."""
    decoder = Decoder(library, GOLDEN / "bad" / "not-finite.onnx")
    with pytest.raises(Failed, match="^graph: expected finite logits; "):
        decoder.generate([4, 3, 2], 6)
    assert decoder.info.position == 3 and decoder.written == []


def test_a_callback_cancels(library: Library) -> None:
    decoder, seen = Decoder(library, GOLDEN / "tiny.onnx"), list[int]()

    def third(token: int) -> int:
        seen.append(token)
        if len(seen) == 3:
            decoder.cancel()
        return 1

    with pytest.raises(Failed, match="^cancelled: "):
        decoder.generate([1], 20, third, stop_tokens=[])
    assert decoder.written == seen and len(seen) == 3 and decoder.info.position == 3


def test_nothing_to_cancel(library: Library) -> None:
    """Between calls, cancel has no effect on the next one; with a closed handle it is an error."""
    decoder = Decoder(library, GOLDEN / "tiny.onnx")
    decoder.cancel()
    decoder.step([1])
    decoder.cancel()
    assert len(decoder.generate([1], 3, stop_tokens=[])) == 3
    decoder.close()
    with pytest.raises(Failed, match="^state: expected an open decoder; received one that was closed"):
        decoder.cancel()


@pytest.mark.parametrize("name", ["tiny", "tiny-hybrid", "window", "translator"])
def test_a_copy_goes_on_where_it_is_taken(library: Library, name: str) -> None:
    """A copy of a batch continues from the same states; later steps of the two are independent."""
    decoder = Decoder(library, GOLDEN / f"{name}.onnx")
    decoder.reset(2)
    decoder.prefill([[1, 2, 3], [4, 5, 6]])
    other = decoder.copy()
    assert (other.info.batch, other.info.position) == (2, 3)
    np.testing.assert_array_equal(other.step([7, 8]), decoder.step([7, 8]))
    other.step([1, 1])
    assert (decoder.info.position, other.info.position) == (4, 5)
    np.testing.assert_array_equal(decoder.copy().step([2, 9]), decoder.step([2, 9]))


def test_a_copy_looks_back(library: Library) -> None:
    decoder = Decoder(library, GOLDEN / "tiny.onnx")
    decoder.prefill([[1, 2, 3, 1, 2]])
    options = {"temperature": 0.0, "repetition_penalty": 1.5, "no_repeat_ngram": 2, "stop_tokens": []}
    other = decoder.copy()
    decoder.close()
    wanted = Decoder(library, GOLDEN / "tiny.onnx")
    wanted.prefill([[1, 2, 3, 1, 2]])
    assert other.generate([3], 12, **options) == wanted.generate([3], 12, **options)


def test_threads_that_cancel(raced: Path, run: Run) -> None:
    """One thread decodes and another cancels it, under ThreadSanitizer."""
    assert run(raced / "cancels", GOLDEN / "tiny.onnx").stdout == "good\n"
