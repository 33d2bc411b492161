"""Random generation settings of tiny folders, against transformers' `generate`: equal text, or a note says why."""

from __future__ import annotations

import json
import math
import random
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError

from fuzz.kinds import kind
from runtime.transformers_twin import until_the_end
from t2r_export.checkpoints import checkpoint
from t2r_export.export import export
from t2r_runtime import Beam, Decoder, Sampler, Sampling, Translator
from t2r_runtime.errors import T2RError

PROMPT, SOURCE = [4, 9, 20], [4, 9, 20, 5, 1]
END, COUNT = 1, 9  # end token, and number of new tokens if the folder sets none
FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_inner": 17, "n_positions": 40}),
    "llama": (
        "LlamaForCausalLM",
        {"hidden_size": 12, "intermediate_size": 17, "num_hidden_layers": 2, "num_attention_heads": 3},
    ),
    "bart": ("BartForConditionalGeneration", {}),
    "marian": ("MarianMTModel", {}),
}
SHAPE = {
    "d_model": 12,
    "encoder_layers": 1,
    "encoder_ffn_dim": 17,
    "encoder_attention_heads": 3,
    "decoder_layers": 2,
    "decoder_ffn_dim": 11,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 40,
    "decoder_start_token_id": 3,
    "forced_eos_token_id": None,
}
SPECIAL = {"vocab_size": 29, "bos_token_id": 0, "eos_token_id": END, "pad_token_id": 0}
VALUES: dict[str, Sequence[Any]] = {
    "bad_words_ids": ([[5]], [[9], [4, 5]], [[END], [8]]),
    "begin_suppress_tokens": ([], [3, 8]),
    "bos_token_id": (0, 2),
    "decoder_start_token_id": (3, 6),
    "do_sample": (True, False),
    "early_stopping": (True, False, "never"),
    "encoder_no_repeat_ngram_size": (0, 1, 2),
    "encoder_repetition_penalty": (1.0, 1.5),
    "eos_token_id": (END, [7, END]),
    "epsilon_cutoff": (0.0, 0.03),
    "exponential_decay_length_penalty": ([2, 1.5],),
    "forced_bos_token_id": (4, END),
    "forced_eos_token_id": (END, 6, [END]),
    "length_penalty": (0.0, 0.5, 1.0, 2.0, -1.0),
    "max_length": (6, 9, 12),
    "max_new_tokens": (5, 8),
    "min_length": (0, 3, 5),
    "min_new_tokens": (0, 4),
    "min_p": (0.0, 0.1),
    "no_repeat_ngram_size": (0, 1, 2, 3),
    "num_beams": (1, 2, 3, 4),
    "renormalize_logits": (True, False),
    "repetition_penalty": (0.8, 1.0, 1.5, 2.0),
    "sequence_bias": ([[[5], 4.0]],),
    "suppress_tokens": ([], [5], [8, 5]),
    "temperature": (0.7, 1.0, 1.8),
    "top_k": (0, 3, 50),
    "top_p": (0.5, 0.9, 1.0),
    "typical_p": (0.5, 1.0),
}


def make(folder: Path) -> None:
    """One folder per family; the random weights write texts of many tokens."""
    import transformers

    for name, (class_name, shape) in FAMILIES.items():
        model_class = getattr(transformers, class_name)
        translates = name in ("bart", "marian")
        torch.manual_seed(len(name))
        model = model_class(model_class.config_class(**SPECIAL, **shape, **(SHAPE if translates else {}))).eval()
        for parameter in model.parameters():
            if parameter.requires_grad:  # sinusoidal tables are frozen
                torch.nn.init.normal_(parameter, mean=0.1 if parameter.ndim == 1 else 0.0, std=0.4)
        model.tie_weights()
        model.save_pretrained(folder / f"generates-{name}")


def drawn(chance: random.Random) -> dict[str, Any]:
    """Random settings; every value may be null."""
    keys = chance.sample(sorted(VALUES), chance.randrange(7))
    return {key: chance.choice((*VALUES[key], None)) for key in keys}


def write(folder: Path, own: dict[str, Any] | None, config: dict[str, Any]) -> None:
    """Write settings to generation_config.json (None: no file) and to config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if own is not None:
        (folder / "generation_config.json").write_text(json.dumps(own))


def compared(folder: Path) -> str:
    """Returns `refused` by either side, `noted`, `same`, or the difference."""
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loaded = checkpoint.load(folder)
        except T2RError as error:
            return f"refused: {error}"
        if loaded.notes:
            return f"noted: {loaded.notes}"
        translates = loaded.config.encoder is not None
        auto = transformers.AutoModelForSeq2SeqLM if translates else transformers.AutoModelForCausalLM
        try:
            theirs = auto.from_pretrained(folder).eval()
            settings = theirs.generation_config
            short = settings.max_length is None and settings.max_new_tokens is None
            count = {"max_new_tokens": COUNT} if short or not translates else {}
            torch.manual_seed(0)
            prompt = torch.tensor([SOURCE if translates else PROMPT])
            found = theirs.generate(prompt, **count, return_dict_in_generate=True, output_scores=True)
        except (ValueError, TypeError, IndexError, StrictDataclassError) as error:  # transformers refuses the settings
            return f"refused: {error!r}"
        export(loaded, folder / "made.onnx")
        return (_translation if translates else _text)(found, folder, count)


def _text(theirs: Any, folder: Path, count: dict[str, int]) -> str:
    """Compare the allowed tokens and their probabilities at each of transformers' tokens."""
    decoder = Decoder(folder / "made.onnx", threads=1)
    silent = Sampling(temperature=0) if decoder.signature.generation is None else Sampling()
    sampler = Sampler(silent, decoder.signature.generation)
    text = theirs.sequences[0].tolist()
    for place, scores in enumerate(theirs.scores, len(PROMPT)):
        decoder.reset()
        logits = decoder.prefill(text[:place])[0]
        if sampler.sampling.looks_back:
            logits = sampler._penalized(logits, None, text[:place])
        chosen = text[place]
        if sampler.sampling.temperature == 0:
            if int(np.argmax(logits)) != chosen:
                return f"token {place}: {int(np.argmax(logits))} for {chosen}"
            continue
        allowed, values = sampler._allowed(logits, int(np.argmax(logits)))
        allowed, values = allowed[values > -math.inf], values[values > -math.inf]  # the rest has probability 0
        peers = scores[0].double().numpy()
        if allowed.tolist() != np.flatnonzero(peers > -math.inf).tolist():
            return f"token {place}: {allowed.tolist()} for {np.flatnonzero(peers > -math.inf).tolist()}"
        if np.abs(values - (peers - peers.max())[allowed]).max() > 1e-3:
            return f"token {place}: other probabilities"
    ends = decoder.signature.eos_tokens
    first = next((n for n, token in enumerate(text[len(PROMPT) :], 1) if token in ends), COUNT)
    return "same" if len(text) == len(PROMPT) + first else "another end"


def _translation(theirs: Any, folder: Path, count: dict[str, int]) -> str:
    translator = Translator(folder / "made.onnx", threads=1)
    width = None if "width" in (translator.signature.generation or {}) else 1
    ((best,),) = translator.translate([SOURCE], Beam(width, max_tokens=count.get("max_new_tokens")))
    text = until_the_end(theirs.sequences[0].tolist()[1:], translator.signature.eos_tokens)
    return "same" if best.tokens == text else f"{best.tokens} for {text}"


@kind
def generation_settings(base: Path, here: Path, chance: random.Random) -> str:
    shutil.copytree(base / f"generates-{chance.choice(sorted(FAMILIES))}", here / "hf")
    config = drawn(chance) if chance.randrange(2) else {}
    own = None if chance.randrange(3) == 0 else {**SPECIAL, "decoder_start_token_id": 3, **drawn(chance)}
    write(here / "hf", own, config)
    said = compared(here / "hf")
    print(json.dumps([own, config]), said)
    if said.startswith(("refused", "noted")):
        return "refused"
    return "accepted" if said == "same" else "silently wrong"
