"""After a restart a text continues from its kept state: equal logits, no token read twice."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import small
from runtime.serve.server import Server, running
from t2r_export.config.export import ExportConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.export import export

KEPT = 4000  # tokens of the prefix
MODELS = {
    "t2r": small.with_layers(small.LLAMA, small.LINEAR, small.linear(positions="drop", feature_size=6)),
    "window": small.with_layers(small.LLAMA, small.WINDOW, small.LINEAR),
    "gated_delta": small.with_layers(small.LLAMA, small.GATED_DELTA, small.GATED_DELTA),
    "mamba2": small.with_layers(small.LLAMA, small.MAMBA2, small.MAMBA2),
}


def log_probabilities(answer: dict[str, Any]) -> list[dict[str, float]]:
    """Log-probabilities of the whole vocabulary after each generated token."""
    found: list[dict[str, float]] = answer["choices"][0]["logprobs"]["top_logprobs"]
    assert [len(each) for each in found] == [small.VOCABULARY] * 3
    return found


def asked(server: Server, ids: list[int], **fields: Any) -> tuple[int, list[dict[str, float]]]:
    """Number of cached tokens, and log-probabilities of three tokens."""
    answer = server.complete(ids, max_tokens=3, temperature=0, logprobs=small.VOCABULARY, ignore_eos=True, **fields)
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], log_probabilities(answer)


@pytest.mark.parametrize("name", MODELS)
def test_session_after_a_restart(name: str, tmp_path: Path) -> None:
    """The process is killed; a request after 4,000 kept tokens reads none of them and gets equal logits."""
    config: UniformConfig = MODELS[name]
    export(small.checkpoint(config), graph := tmp_path / "g.onnx", ExportConfig(prefill=True))
    random = np.random.default_rng(1)
    prefix, more = (random.integers(0, small.VOCABULARY, size).tolist() for size in (KEPT, 9))
    keep = tmp_path / "keep"
    with running(graph, "--keep", keep) as server:
        for session in ("one", "two"):
            warm = server.complete(prefix, max_tokens=1, temperature=0, session_id=session)
            assert warm["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        cached, before = asked(server, [*prefix, *more], session_id="one")
        assert cached == KEPT
        _, anew = asked(server, [*prefix, *more])
        server.end(signal.SIGKILL)
    with running(graph, "--keep", keep) as server:
        cached, after = asked(server, [*prefix, *more], session_id="two")
        assert cached == KEPT
        assert server.metric("t2r_cached_tokens_total") == KEPT
        other, _ = asked(server, [*prefix[:-1000], *more], session_id="two")
        assert other == 2560, "another text, from the last multiple of 512"
        assert asked(server, [*prefix, *more])[0] == KEPT + len(more) - 1, "no session"
    assert after == before
    for one, two in zip(after, anew, strict=True):
        assert one == pytest.approx(two, abs=1e-3)
