"""The role of each field of transformers' GenerationConfig in an import: carried, noted, or harmless.

A test compares the tables with the fields of the class, to detect new fields.
"""

from __future__ import annotations

from typing import Any

from t2r_runtime.contract.options import DECODER


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TOKENS = _words(
    "bos_token_id eos_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id suppress_tokens "
    "bad_words_ids"
)
# options of a decoder and of its penalties -> keys, and transformers' values of absent keys where it samples
KEYS = {name: name for name in DECODER} | {"no_repeat_ngram": "no_repeat_ngram_size"}
SAMPLING_DEFAULTS = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
CHOICE = frozenset({"do_sample", "num_beams", *KEYS.values()})
# for translators; the length of other texts is set by the caller
SEARCH = _words("early_stopping length_penalty max_length max_new_tokens min_length min_new_tokens")
CARRIED = TOKENS | CHOICE | SEARCH
# keys that runtimes lack -> values without effect
NOTED: dict[str, tuple[Any, ...]] = {
    "begin_suppress_tokens": ([],),
    "constraints": (),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "guidance_scale": (1,),
    "max_time": (),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "renormalize_logits": (False,),
    "sequence_bias": (),
    "stop_strings": (),
    "token_healing": (False,),
    "top_h": (),
    "typical_p": (1,),
    "watermarking_config": (),
}
SAMPLED = _words("epsilon_cutoff eta_cutoff top_h typical_p")  # keys of NOTED that act in sampling only
DECODERS: dict[str, tuple[Any, ...]] = {  # supported for translators only
    "bad_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "num_beams": (1,),
    "suppress_tokens": ([],),
}
TRANSLATORS: dict[str, tuple[Any, ...]] = {"do_sample": (False,)}  # supported for decoders only
HARMLESS = _words(
    """
    assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight assistant_lookbehind cache_config
    cache_implementation compile_config continuous_batching_config disable_compile is_assistant low_memory
    max_cache_len max_matching_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_return_sequences
    output_attentions output_hidden_states output_logits output_scores pad_token_id prefill_chunk_size
    prompt_lookup_num_tokens remove_invalid_values return_dict_in_generate speculation_type target_lookbehind
    transformers_version use_cache use_mtp
    """
)
GENERATION = CARRIED | NOTED.keys() | HARMLESS
