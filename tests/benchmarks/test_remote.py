"""Remote decoders and translators equal local ones, errors included."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from comparison.remote import Remote, Worker
from runtime import graphs, translators
from t2r_runtime import Decoder, Translator, UserError


def test_remote_decoder_equals_decoder(tmp_path: Path) -> None:
    path = graphs.save(tmp_path / "g.onnx")
    here, there = Decoder(path, threads=1), Remote(Decoder, sys.executable, path, threads=1)
    for ids in (3, 5, 1):
        np.testing.assert_array_equal(there.step(ids), here.step(ids))
    assert there.history().tolist() == [3, 5, 1]
    assert there.position == 3 and there.signature == here.signature and there.placement == here.placement
    assert there.state().keys() == here.state().keys()
    there.set_state(here.state(), position=3)
    np.testing.assert_array_equal(there.prefill([4, 2]), here.prefill([4, 2]))
    there.reset(batch=2)
    assert there.batch == 2
    with pytest.raises(UserError, match="expected a graph with top-k outputs"):
        there.top_k([[1], [2]])
    there.close()


def test_remote_translator_equals_translator(tmp_path: Path) -> None:
    path = translators.save(tmp_path / "t")
    here, there = Translator(path, threads=1), Remote(Translator, sys.executable, path, threads=1)
    assert there.signature == here.signature
    found, expected = (reader.encode([[1, 2, 3], [4]]) for reader in (there, here))
    assert found.keys() == expected.keys()
    for name, state in expected.items():
        np.testing.assert_array_equal(found[name], state)
    with pytest.raises(UserError, match="expected at least one source; received none"):
        there.encode([])
    there.close()


def test_remote_errors_are_forwarded(tmp_path: Path) -> None:
    there = Remote(Decoder, sys.executable, graphs.save(tmp_path / "g.onnx"), threads=1)
    with pytest.raises(UserError, match="expected ids in 0 … 10; received 99; use the tokenizer") as caught:
        there.step(99)
    assert caught.value.received == "99"
    there.close()


def test_dead_process_is_error() -> None:
    there = Worker(f"{sys.executable} -c 'import os; os.abort()'")
    with pytest.raises(UserError, match="received the end of its process: SIGABRT"):
        there.call("__init__")
    there.close()
    with pytest.raises(UserError, match="expected a command that starts Python; received 'no/such/python'"):
        Worker("no/such/python")


def test_process_that_ends_amid_an_answer() -> None:
    answer = "import os, sys; os.write(1, b'\\x80\\x05\\x95\\xff'); os.kill(os.getpid(), 9)"
    there = Worker(f'{sys.executable} -c "{answer}"')
    with pytest.raises(UserError, match="received the end of its process: SIGKILL"):
        there.call("__init__")
    there.close()
