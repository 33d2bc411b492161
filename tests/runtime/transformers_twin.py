"""The tiny translator as a transformers model, whose `generate` is the reference for search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from runtime import translators
from runtime.translators import BANNED, START, TARGET, Eager
from t2r_runtime import Beam, Translation
from t2r_runtime.contract.options import BeamOptions

FIRST, FORCED = START  # read before the first choice, and the forced first token


class TwinConfig(PretrainedConfig):
    model_type = "t2r_twin"
    vocab_size = TARGET
    num_hidden_layers = 1
    is_encoder_decoder = False


class Twin(PreTrainedModel, GenerationMixin):
    """Reads the whole prefix anew at each token, with its source."""

    config_class = TwinConfig
    main_input_name = "input_ids"

    def __init__(self, eager: Eager) -> None:
        super().__init__(TwinConfig())
        self.eager = eager
        self.any = torch.nn.Parameter(torch.zeros(1))  # transformers asks for a model's dtype and device

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, ids: torch.Tensor, lengths: torch.Tensor, **_: Any
    ) -> dict[str, Any]:
        return {"input_ids": input_ids, "ids": ids, "lengths": lengths}

    def forward(self, input_ids: torch.Tensor, ids: torch.Tensor, lengths: torch.Tensor, **_: Any) -> CausalLMOutput:
        states = self.eager.encode(ids.numpy(), lengths.numpy())
        for column in input_ids.numpy().T:
            logits, states = self.eager.step(states, column)
        return CausalLMOutput(logits=torch.from_numpy(logits)[:, None])


def generated(eager: Eager, sources: Sequence[Sequence[int]], asked: Beam, max_tokens: int) -> list[list[Translation]]:
    """The n best translations of each source by transformers."""
    beam = asked.resolved()
    ids, lengths = (torch.from_numpy(array) for array in translators.padded(sources))
    options = {"num_beams": beam.width, "length_penalty": beam.length_penalty, "early_stopping": beam.early_stopping}
    if beam.width == 1:
        options = {}
    config = GenerationConfig(
        **options,
        max_new_tokens=max_tokens,
        min_new_tokens=beam.min_tokens,
        num_return_sequences=beam.n_best,
        forced_bos_token_id=FORCED,
        forced_eos_token_id=eager.ends[0] if beam.forced_end else None,
        suppress_tokens=list(BANNED),
        repetition_penalty=float(beam.repetition_penalty),
        no_repeat_ngram_size=beam.no_repeat_ngram,
        eos_token_id=list(eager.ends),
        pad_token_id=0,
        do_sample=False,
        use_cache=False,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
    )
    start = torch.tensor([[FIRST]] * len(sources))
    with torch.no_grad():
        found = Twin(eager).generate(start, generation_config=config, ids=ids, lengths=lengths)
    texts = [until_the_end(row.tolist()[1:], eager.ends) for row in found.sequences]
    scores = found.sequences_scores.tolist() if beam.width > 1 else _greedy_scores(found, texts, beam, max_tokens)
    best = [Translation(text, score) for text, score in zip(texts, scores, strict=True)]
    return [best[i : i + beam.n_best] for i in range(0, len(best), beam.n_best)]


def until_the_end(tokens: list[int], ends: Sequence[int]) -> list[int]:
    """The tokens up to the first end, without padding."""
    return next((tokens[: i + 1] for i, token in enumerate(tokens) if token in ends), tokens)


def _greedy_scores(found: Any, texts: list[list[int]], beam: BeamOptions, max_tokens: int) -> list[float]:
    """Greedy search returns none: the score sums each token's processed logit less the logsumexp of all logits."""
    scores = []
    for row, text in enumerate(texts):
        total = 0.0
        for place, token in enumerate(text):
            forced = place == 0 or (beam.forced_end and place == max_tokens - 1)
            processed, logits = found.scores[place][row, token].double(), found.logits[place][row].double()
            total += 0.0 if forced else float(processed - logits.logsumexp(0))
        scores.append(total / len(text) ** beam.length_penalty)
    return scores


def assert_same(received: Sequence[Sequence[Translation]], expected: Sequence[Sequence[Translation]]) -> None:
    """Equal tokens in equal order, and scores within 1e-4, or float32's rounding if they are large."""
    assert [[one.tokens for one in best] for best in received] == [[one.tokens for one in best] for best in expected]
    for ours, theirs in zip(received, expected, strict=True):
        scores = [[one.score for one in best] for best in (ours, theirs)]
        np.testing.assert_allclose(*scores, rtol=1e-5, atol=1e-4)
