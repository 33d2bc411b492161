"""Draft heads in the runtime: texts stay the same, drafts are those of the head, and a right head is always right."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import small
from runtime.clock import set_even
from runtime.test_speculation import PROMPT, SAMPLINGS, assert_same_text, by_steps
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.draft_head import DraftHeadConfig
from t2r_export.config.export import ExportConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.export import export
from t2r_export.model.draft_head import model_of
from t2r_runtime import Decoder, Sampling
from t2r_runtime.contract.signature import MOST_CHECKED
from t2r_runtime.decode.drafts import Head
from t2r_runtime.decode.generate import Request
from t2r_runtime.decode.pace import Pace, Times
from t2r_runtime.decode.pool import Pool
from t2r_runtime.errors import UserError
from t2r_runtime.session.states import WITH_HIDDEN
from t2r_runtime.session.stepper import TokenIds

NORM, LONG = NormConfig("rms", 1e-3), [n * n % small.VOCABULARY for n in range(MOST_CHECKED + 9)]
CYCLE = 23  # tokens of the trunk that repeats a cycle, and its width


def exported(path: Path, config: UniformConfig, weights: dict[str, torch.Tensor] | None = None) -> Decoder:
    """The draft head of a model with this config, with these weights or random ones."""
    same = {field.name: getattr(config.build(), field.name) for field in dataclasses.fields(config.build())}
    made = model_of(DraftHeadConfig(**same, hidden_norm=NORM)).eval()
    for number, weight in enumerate(made.parameters()):
        weight.data = 0.5 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
    if weights is not None:
        made.load_state_dict(weights)
    export(Checkpoint(made.config, made, None, {}, "0" * 64), path, ExportConfig())
    return Decoder(path, threads=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, Decoder, Decoder]:
    """Random models, one with growing caches, and a head for both."""
    folder = tmp_path_factory.mktemp("heads")
    for name in ("gated_rotary", "hybrid"):
        small.graph(folder / f"{name}.onnx", name, draft_check=True, prefill=True, output_hidden=True, top_k=3)
    head = exported(folder / "head.onnx", small.with_layers(small.LLAMA, small.SOFTMAX))
    return (*(Decoder(folder / f"{name}.onnx", threads=1) for name in ("gated_rotary", "hybrid")), head)


class Noted(Head):
    """Notes each proposal, and the number of tokens before it."""

    def __init__(self, head: Decoder, decoder: Decoder) -> None:
        head.reset()
        super().__init__(head, decoder.signature)
        self.before, self.proposed = 0, list[tuple[int, list[int]]]()

    def read(self, tokens: Sequence[int]) -> None:
        self.before += len(tokens)

    def propose(self, most: int, request: Request) -> Sequence[int]:
        found = list(super().propose(most, request))
        self.proposed.append((self.before, found))
        return found


def alone(pool: Pool, prompt: list[int], count: int, rules: Sampling) -> list[int]:
    """The text of a pool that has no other."""
    [text] = pool.add(prompt, count, [rules])
    while pool.busy:
        pool.step()
    return text.tokens


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("caches", [0, 1])
def test_a_text_is_the_same(made: tuple[Decoder, ...], caches: int, sampling: str) -> None:
    assert_same_text(made[caches], 90, SAMPLINGS[sampling], made[2])


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("prompt", [PROMPT, LONG, [9]])
def test_drafts_are_those_of_the_head(
    made: tuple[Decoder, ...], prompt: list[int], pooled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head has read each token of the text with the vector before it, and then its own tokens and vectors."""
    decoder, head = made[0], made[2]
    monkeypatch.setattr(Pace, "depth", lambda *_: 3)
    monkeypatch.setattr(decoder, "run_times", Times({1: 1.0}))
    decoder.reset()
    noted = Noted(head.fork(), decoder)
    rules = SAMPLINGS["greedy"]
    written = alone(Pool(decoder, draft=noted), prompt, 40, rules) if pooled else None
    text = [*prompt, *(written or decoder.generate(prompt, 40, rules, draft=noted))]
    decoder.reset()
    vectors = [decoder.with_hidden([token])[1] for token in text]
    first = max(len(prompt) - MOST_CHECKED, 1)
    assert len({tuple(tokens) for _, tokens in noted.proposed}) > 5
    for before, tokens in noted.proposed:
        head.reset()
        for place in range(first, before):
            head.set_state({**head.state(), "hidden": vectors[place - 1]}, head.position)
            logits = head.step(text[place])
        for n, token in enumerate(tokens):
            assert token == logits.argmax(), (before, n)
            logits = head.step(token)


CYCLIC = dataclasses.replace(small.LLAMA, vocab_size=CYCLE, width=CYCLE, layers=(small.LINEAR,))


def cyclic(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Decoder, dict[str, torch.Tensor], torch.Tensor]:
    """A model that writes each token's successor in a cycle, the weights of a head that only copies what it reads, and
    the matrix that maps a token's vector to its successor's."""
    made = small.model(CYCLIC)
    generator = torch.Generator().manual_seed(3)
    vectors = torch.linalg.qr(torch.randn(CYCLE, CYCLE, generator=generator))[0]
    order = torch.randperm(CYCLE, generator=generator)
    after = torch.empty_like(order)
    after[order] = order.roll(-1)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            weight.fill_(1.0 if "norm" in name else 0.0)
        made.embedding.weight.copy_(vectors)
        made.head.weight.copy_(0.7 * vectors[after.argsort()] + 0.1 * torch.randn(CYCLE, CYCLE, generator=generator))
    options = ExportConfig(draft_check=True, output_hidden=True)
    export(Checkpoint(made.config, made, None, {}, "0" * 64), folder / "model.onnx", options)
    decoder = Decoder(folder / "model.onnx", threads=1)
    set_even(monkeypatch, decoder)
    ones = {name: torch.ones(CYCLE) for name in ("token_norm.weight", "hidden_norm.weight")}
    return decoder, {**made.state_dict(), **ones}, vectors[after].T @ vectors


@pytest.mark.parametrize("what", ["token greedy", "hidden greedy", "both greedy", "token sampled", "hidden sampled"])
def test_a_right_head_is_always_right(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which token comes can be told from the newest one, and, in a greedy text, from the vector before it."""
    (decoder, weights, successor), (reads, sampling) = cyclic(tmp_path, monkeypatch), what.split()
    nothing = torch.zeros(CYCLE, CYCLE)
    weights["joined.weight"] = torch.cat(
        [nothing if reads == "hidden" else torch.eye(CYCLE), nothing if reads == "token" else successor], 1
    )
    head, rules = exported(tmp_path / "head.onnx", CYCLIC, weights), SAMPLINGS[sampling]
    assert_same_text(decoder, 90, rules, noted := Noted(head, decoder))
    text = [*PROMPT, *by_steps(decoder, 90, rules)]
    assert len(noted.proposed) > 4
    right = [text[before : before + len(tokens)] == tokens for before, tokens in noted.proposed]
    counts = list[tuple[int, int]]()
    pool = Pool(decoder, draft=head, drafted=lambda *pair: counts.append(pair))
    decoder.reset()
    prompt = text[len(PROMPT) :][:3]  # whose tokens follow each other as the model wants
    assert alone(pool, prompt, 90, rules) == list(decoder.stream(prompt, 90, rules))
    assert sum(checked for checked, _ in counts) > 9
    assert (what != "hidden sampled") == all(right) == all(checked == found for checked, found in counts)


def test_vectors_of_a_check_are_those_of_steps(made: tuple[Decoder, ...]) -> None:
    ids = small.ids(3, 7).numpy()
    for decoder in made[:2]:
        decoder.reset(batch=3)
        before = decoder.state()
        expected = [decoder.with_hidden(column[:, None])[1] for column in ids.T]
        decoder.set_state(before)
        np.testing.assert_allclose(
            decoder._check(TokenIds(ids), 2, WITH_HIDDEN)[1], np.stack(expected, 1), rtol=0, atol=2e-5
        )
        decoder.reset(batch=1)


def test_a_head_whose_positions_end(made: tuple[Decoder, ...], tmp_path: Path) -> None:
    decoder = made[0]
    head = exported(tmp_path / "head.onnx", small.with_layers(small.GPT2, small.SOFTMAX))
    assert head.signature.reach == small.POSITIONS
    assert_same_text(decoder, 2 * small.POSITIONS, SAMPLINGS["greedy"], head)


def test_refusals(made: tuple[Decoder, ...], tmp_path: Path) -> None:
    head = made[2]
    small.graph(tmp_path / "plain.onnx", "none", draft_check=True)
    wide = dataclasses.replace(small.PLAIN, width=12)
    small.graph(tmp_path / "wide.onnx", wide, draft_check=True, output_hidden=True)
    for name, received in {"plain": "one without", "wide": "12 elements"}.items():
        decoder = Decoder(tmp_path / f"{name}.onnx", threads=1)
        with pytest.raises(UserError, match=f"output hidden, 10 elements, for this draft head; received {received}"):
            decoder.generate([1], 3, Sampling(0), draft=head)
