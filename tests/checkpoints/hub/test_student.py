"""modeling_t2r.py computes our models: logits, states, generation; and a saved folder is read back unchanged."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

import small
import texts
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.hub import save_transformers
from t2r_export.checkpoints.hub.student import COVERED, LAYER, MODEL, not_covered
from t2r_export.cli import main
from t2r_export.config.attention import PositionScale
from t2r_export.config.generation import GenerationOptions
from t2r_export.config.layer import LayerConfig
from t2r_export.config.mixers import INSIDES, LinearConfig, SoftmaxConfig, WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import PARTS
from t2r_export.config.positions import POSITIONS, RotaryConfig
from t2r_export.config.saved import TransformersForm
from t2r_export.config.scalings import LongropeScaling
from t2r_export.convert import convert
from t2r_runtime.errors import UserError

STUDENT = LinearConfig(6, positions="after", update_rule="gated", gate="data", conv=2)  # as t2r convert makes it
BESIDE = dataclasses.replace(small.LLAMA, parallel=True, norm_position="both", embedding_scale=2.0, logit_scale=0.5)
OTHERS = {  # layer options that small.MODELS lacks
    "sink": small.with_layers(
        small.LLAMA.with_attention(sink=True, softcap=2.0, scale=0.7), SoftmaxConfig(), WindowConfig(3, 2), STUDENT
    ),
    "norms": small.with_layers(
        small.LLAMA.with_attention(qk_norm=True, qk_norm_wide=True, gate=True, gate_per_head=True), STUDENT
    ),
    "norms after": small.with_layers(
        small.LLAMA.with_attention(qk_norm=True, qk_norm_after=True, gate=True), SoftmaxConfig(), WindowConfig(3, 2)
    ),
    "scaled": small.with_layers(
        small.LLAMA.with_attention(
            position_scale=PositionScale(factor=0.4, length=3), positions=RotaryConfig(50.0, size=2)
        ),
        SoftmaxConfig(),
        small.LINEAR,
    ),
    "dilated": small.with_layers(small.GPT2, WindowConfig(6, 1, dilation=2, local=2)),
    "beside": small.with_layers(BESIDE, STUDENT, SoftmaxConfig(), logit_softcap=3.0, embedding_norm=True),
}
ALL = {**small.MODELS, **OTHERS}
COMPUTED = [name for name, config in ALL.items() if not not_covered(small.built(config))]


def loaded(folder: Path) -> Any:
    """Loads the folder in transformers, with the class that it names."""
    from transformers import AutoModelForCausalLM

    from t2r_export.checkpoints.hub.remote.model import T2RForCausalLM

    code = "auto_map" in json.loads((folder / "config.json").read_text())
    return (T2RForCausalLM if code else AutoModelForCausalLM).from_pretrained(folder).eval()


def saved(made: Checkpoint, folder: Path) -> Any:
    save_transformers(made, folder)
    return loaded(folder)


@torch.no_grad()
def by_steps(theirs: Any, ids: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
    logits = []
    for token in ids.split(1, 1):
        out = theirs(token, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        logits.append(out.logits)
    return torch.cat(logits, 1), cache


@pytest.mark.parametrize("name", COMPUTED)
def test_logits_and_states_are_ours(name: str, tmp_path: Path) -> None:
    """Compares in float64, where random models round by at most 1e-6; frequencies are float32 in both."""
    made = small.checkpoint(ALL[name])
    theirs = saved(made, tmp_path / "f").double()
    model, ids = made.model.double(), small.ids(2, 13)
    with torch.no_grad():
        expected, states = model.prefill(ids, model.init_state(2))
        full = theirs(ids).logits
    stepped, cache = by_steps(theirs, ids)
    assert float((full - expected).abs().max()) < 1e-6
    assert float((stepped - expected).abs().max()) < 1e-6
    if hasattr(cache, "states"):
        assert {key: value for key, value in cache.states.items() if key in states}.keys() == states.keys()
        for key, state in states.items():
            torch.testing.assert_close(cache.states[key], state, rtol=1e-6, atol=1e-6, check_dtype=False)


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Any]:
    """A student, and transformers' float32 model of its folder."""
    layers = (STUDENT, small.HYBRID, SoftmaxConfig(), WindowConfig(4, 2))
    config = small.with_layers(small.LLAMA, *layers, eos_tokens=(), bos_token=None)
    made = small.checkpoint(config)
    return made, saved(made, tmp_path_factory.mktemp("hub") / "student")


@hypothesis.given(lengths=st.lists(st.integers(1, 9), min_size=2, max_size=4), seed=st.integers(0, 99))
@hypothesis.settings(max_examples=12, deadline=None)
def test_a_text_in_pieces_is_the_text(student: tuple[Checkpoint, Any], lengths: list[int], seed: int) -> None:
    made, theirs = student
    ids, cache, found = small.ids(2, sum(lengths), seed), None, []
    with torch.no_grad():
        for piece in ids.split(lengths, 1):
            out = theirs(piece, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            found.append(out.logits)
        expected = made.model(ids)
    assert float((torch.cat(found, 1) - expected).abs().max()) < 1e-5


def test_chunks_of_a_long_text_are_the_text(student: tuple[Checkpoint, Any]) -> None:
    made, theirs = student
    ids = small.ids(1, 300)
    with torch.no_grad():
        assert float((theirs(ids).logits - made.model(ids)).abs().max()) < 1e-5
        some = theirs(ids, logits_to_keep=3).logits
        torch.testing.assert_close(some, theirs(ids).logits[:, -3:], rtol=0, atol=1e-5)


@hypothesis.given(pads=st.lists(st.integers(0, 6), min_size=2, max_size=3), seed=st.integers(0, 99))
@hypothesis.settings(max_examples=12, deadline=None)
def test_padding_before_a_text_changes_nothing(student: tuple[Checkpoint, Any], pads: list[int], seed: int) -> None:
    """Each row's logits, and those of later tokens, equal those of the row alone."""
    _, theirs = student
    length = 8
    ids, more = small.ids(len(pads), length, seed), small.ids(len(pads), 3, seed + 1)
    mask = torch.tensor([[int(place >= pad) for place in range(length)] for pad in pads])
    with torch.no_grad():
        out = theirs(ids, attention_mask=mask, use_cache=True)
        after, _ = by_steps(theirs, more, out.past_key_values)
        for row, pad in enumerate(pads):
            alone = theirs(torch.cat([ids[row : row + 1, pad:], more[row : row + 1]], 1)).logits[0]
            both = torch.cat([out.logits[row, pad:], after[row]])
            assert float((both - alone).abs().max()) < 1e-5


def test_padding_behind_a_text_has_no_states(student: tuple[Checkpoint, Any]) -> None:
    _, theirs = student
    ids, mask = small.ids(2, 5), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    with torch.no_grad():
        out = theirs(ids, attention_mask=mask)
        assert out.past_key_values is None
        assert float((out.logits[1, :3] - theirs(ids[1:, :3]).logits[0]).abs().max()) < 1e-5
    with pytest.raises(ValueError, match="padding stands before a text"):
        theirs(ids, attention_mask=mask, use_cache=True)


def test_generate_is_greedy_steps(student: tuple[Checkpoint, Any]) -> None:
    made, theirs = student
    ids, model = small.ids(2, 7), made.model
    with torch.no_grad():
        logits, states = model.prefill(ids, model.init_state(2))
        found, token = [], logits[:, -1].argmax(-1)
        for _ in range(9):
            found.append(token)
            logits, states = model.step(token, states)
            token = logits.argmax(-1)
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 9, "do_sample": False}
    written = theirs.generate(ids, **options)
    assert written[:, 7:].tolist() == torch.stack(found, 1).tolist()
    assert theirs.generate(ids, **options, use_cache=False).tolist() == written.tolist()
    beams = theirs.generate(ids, **options, num_beams=3)
    assert beams.tolist() == theirs.generate(ids, **options, num_beams=3, use_cache=False).tolist()


def test_the_cache_of_linear_layers_and_windows_does_not_grow(tmp_path: Path) -> None:
    made = small.checkpoint(small.with_layers(small.LLAMA, STUDENT, small.HYBRID, WindowConfig(4, 2)))
    theirs = saved(made, tmp_path / "f")
    _, cache = by_steps(theirs, small.ids(2, 1))
    before = cache.nbytes()
    _, cache = by_steps(theirs, small.ids(2, 40), cache)
    assert cache.nbytes() == before == 2 * sum(state.bytes() for state in made.model.state_spec())
    assert cache.get_seq_length() == 41


def test_losses_and_gradients_are_ours(student: tuple[Checkpoint, Any]) -> None:
    """Trainer can finetune the model."""
    made, theirs = student
    ids = small.ids(2, 9)
    loss = theirs(ids, labels=ids).loss
    logits = made.model(ids)
    ours = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(loss, ours, rtol=0, atol=1e-5)
    loss.backward()
    ours.backward()
    pairs = dict(made.model.named_parameters())
    for name, weight in theirs.named_parameters():
        torch.testing.assert_close(weight.grad, pairs[name].grad, rtol=1e-3, atol=1e-5)
    theirs.zero_grad(set_to_none=True)


@pytest.mark.parametrize(
    "name, message",
    [
        ("mamba2", "received mamba2; export a graph"),
        ("rfa", "received linear with feature_map 'rfa'"),
        ("memory_window", "received window with memory 4"),
        ("repeats", "received model with repeats 2"),
        ("residual_gate", "received attention with residual_gate"),
        ("moe", "received moe"),
    ],
)
def test_what_the_file_does_not_compute_is_refused_by_name(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        save_transformers(small.checkpoint(name), tmp_path / "f")
    assert message in str(caught.value)
    assert not any(tmp_path.iterdir())


def test_frequencies_that_change_with_the_length_are_refused() -> None:
    both = LongropeScaling((1.0, 2.0), 1.2, (3.0, 4.0), 9)
    config = small.built(small.LLAMA.with_attention(positions=RotaryConfig(scaling=both)))
    assert not_covered(config) == ["rotary with other frequencies beyond 9 tokens"]


def test_covered_fields_exist() -> None:
    kinds = {**PARTS, **INSIDES, **POSITIONS}
    tables = [(ModelConfig, MODEL), (LayerConfig, LAYER), *((kinds[kind].config, COVERED[kind]) for kind in COVERED)]
    for config, covered in tables:
        assert not set(covered.split()) - {field.name for field in dataclasses.fields(config)}, config


def test_a_translator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="received model with encoder"):
        save_transformers(checkpoint.made(small.model(small.translator()), None, {}), tmp_path / "f")


PROVENANCE = {
    "origin": {"format": "huggingface", "name": "someone/tiny", "chat_template": {"template": "{{ x }}", "tokens": {}}},
    "convert": {"feature_size": 6, "layers": "all"},
}


@pytest.mark.parametrize("name", ["conv_after", "hybrid_token", "yarn", "learned", "short_conv"])
def test_a_saved_folder_is_the_model(name: str, tmp_path: Path) -> None:
    """Config, weights, tokenizer, chat template and provenance are unchanged."""
    made = small.checkpoint(name)
    drawn = GenerationOptions(temperature=0.7, top_k=11, top_p=0.9, min_p=0.1, repetition_penalty=1.2)
    model = small.model(dataclasses.replace(made.config, generation=drawn, vocab_size=len(texts.LETTERS)))
    checkpoint.save(tmp_path / "model.pt", model, texts.tokenizer(), PROVENANCE)
    assert main(["save", str(tmp_path / "model.pt"), str(tmp_path / "f"), "--as", "transformers"]) == 0
    first, again = checkpoint.load(tmp_path / "model.pt"), checkpoint.load(tmp_path / "f")
    assert (again.config, again.tokenizer, again.provenance) == (first.config, first.tokenizer, first.provenance)
    assert again.notes == ()
    torch.testing.assert_close(again.model.state_dict(), first.model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "options",
    [None, GenerationOptions(temperature=0), GenerationOptions(temperature=0.5, top_k=0, top_p=1.0, no_repeat_ngram=3)],
)
@pytest.mark.parametrize("ends, bos", [((), None), ((2, 5), 1)])
def test_options_of_generation_come_back(options: Any, ends: Any, bos: Any, tmp_path: Path) -> None:
    config = small.with_layers(small.LLAMA, STUDENT, eos_tokens=ends, bos_token=bos)
    made = small.checkpoint(dataclasses.replace(small.built(config), generation=options))
    save_transformers(made, tmp_path / "f")
    assert checkpoint.load(tmp_path / "f").config == made.config


@torch.no_grad()
def test_weights_in_16_bits(tmp_path: Path) -> None:
    made = small.checkpoint("rotary_after")
    save_transformers(made, tmp_path / "f", TransformersForm(weights="float16"))
    theirs = loaded(tmp_path / "f")
    assert theirs.dtype == torch.float16
    out = theirs(small.ids(2, 6), use_cache=True)
    assert out.past_key_values.states["S.0"].dtype == torch.float32
    assert float((out.logits - made.model(small.ids(2, 6))).abs().max()) < 0.05


ALONE = """
import sys
sys.modules["t2r_export"] = sys.modules["t2r_runtime"] = None
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, again = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
ids = tokenizer("abca", return_tensors="pt")["input_ids"]
torch.save({"ids": ids, "logits": model(ids).logits, "text": model.generate(ids, max_new_tokens=3)}, again + ".pt")
model.save_pretrained(again)
"""


@pytest.mark.slow
def test_it_runs_without_t2r_export(tmp_path: Path) -> None:
    """transformers alone runs the folder; the folder that it saves again loads as before."""
    source = small.model(
        small.with_layers(small.LLAMA, *[SoftmaxConfig()] * 2, vocab_size=len(texts.LETTERS), tied_head=True)
    )
    model = convert(source, STUDENT).eval()
    made = checkpoint.made(model, texts.tokenizer(), {"convert": {"layers": "all"}})
    save_transformers(made, tmp_path / "f")
    program = [sys.executable, "-c", ALONE, str(tmp_path / "f"), str(tmp_path / "again")]
    environment = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "PATH": ""}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "run the custom code" not in done.stdout
    found = torch.load(tmp_path / "again.pt")
    with torch.no_grad():
        assert float((found["logits"] - model(found["ids"])).abs().max()) < 1e-5
    assert found["text"].shape[1] > found["ids"].shape[1]
    again = checkpoint.load(tmp_path / "again")
    assert (again.config, again.provenance) == (made.config, made.provenance)
    torch.testing.assert_close(again.model.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert (tmp_path / "again" / "modeling_t2r.py").is_file()
