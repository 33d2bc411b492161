"""Training on pairs: batches, padding, and bit-identical resuming."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import small
import texts
from runs import ended, resumed, stop_at
from t2r_export.batches.batch import Batch
from t2r_export.batches.pair_batches import Tokenizers, TokenPairs, read_pair_corpus, tokenize_pairs
from t2r_export.batches.ragged import Ragged
from t2r_export.checkpoints import checkpoint
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.finetune import FinetuneConfig, Shares
from t2r_export.config.mixers import LinearConfig, MixerConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.config.stages import parse_plan
from t2r_export.convert import convert, provenance
from t2r_export.data.pairs import Pair, write_pairs
from t2r_export.finetune import finetune
from t2r_export.lab.config.average import AverageConfig
from t2r_export.lab.config.merged import MergeConfig
from t2r_export.model.transformer import Transformer
from t2r_export.quality.evaluate import evaluate
from t2r_export.training.curves import read_curves
from t2r_export.training.layerwise import Align, Transfer
from t2r_export.training.stages import Distill, LossWeights, Task
from t2r_runtime.errors import UserError

TRANSLATOR = dataclasses.replace(
    small.translator(base="softmax", source_vocabulary=None),
    vocab_size=len(texts.LETTERS) + 2,
    bos_token=None,
    eos_tokens=(texts.EOS,),
    start_tokens=(texts.BOS, texts.EOS),
)
TOKENIZERS = Tokenizers(texts.tokenizer())
SOURCES = [[3, 1], [4, 4, 4, 2], [5], [6, 1, 2]]
TARGETS = [[7, 1, 2], [1], [2, 3, 3, 3], [4, 5]]


def token_pairs(model: ModelConfig = TRANSLATOR) -> TokenPairs:
    targets = [[*model.start_tokens, *target, *model.eos_tokens] for target in TARGETS]
    return TokenPairs(Ragged.of(SOURCES), Ragged.of(targets), len(model.start_tokens))


def pairs(count: int = 60) -> list[Pair]:
    """Words and their reversals."""
    words = {document[:3] + document[-4:-1] * (n % 4) for n, document in enumerate(texts.documents(count))}
    return [(word, word[::-1]) for word in sorted(words)]


def alone(model: Transformer, pair: int) -> Tensor:
    """Cross-entropy of each token of one target, (T), step by step without padding."""
    source = torch.tensor([SOURCES[pair]])
    states = model.start(source, torch.tensor([source.shape[1]]))
    row = [*model.config.start_tokens, *TARGETS[pair], *model.config.eos_tokens]
    losses = []
    for place, token in enumerate(row[:-1]):
        logits, states = model.step(torch.tensor([token]), states)
        if place >= len(model.config.start_tokens) - 1:
            losses.append(F.cross_entropy(logits, torch.tensor([row[place + 1]])))
    return torch.stack(losses)


def test_pair_batch_has_start_and_end_tokens() -> None:
    batch = token_pairs().batch(torch.tensor([2, 0]))
    bos, eos = texts.BOS, texts.EOS
    assert batch.ids.tolist() == [[bos, eos, 2, 3, 3, 3], [bos, eos, 7, 1, 2, eos]]
    assert batch.source is not None and batch.source_lengths is not None
    assert (batch.source.tolist(), batch.source_lengths.tolist()) == ([[5, 0], [3, 1]], [1, 2])
    assert batch.labels.tolist() == [2, 3, 3, 3, eos, 7, 1, 2, eos]
    assert batch.count == 9
    assert [part.labels.tolist() for part in batch.split(1)] == [[2, 3, 3, 3, eos], [7, 1, 2, eos]]


@torch.no_grad()
def test_loss_is_mean_over_target_tokens() -> None:
    model, everything = small.model(TRANSLATOR), token_pairs()
    losses = torch.cat([alone(model, pair) for pair in range(4)])
    batch = everything.batch(torch.arange(4))
    assert float(Task(model, None)(batch)) == pytest.approx(float(losses.mean()), rel=1e-5)
    for batches in ([batch], batch.split(1), everything.batches(12)):
        found = evaluate(model, batches)
        assert (found.nats, found.tokens) == (pytest.approx(float(losses.mean()), rel=1e-5), len(losses))


def test_padding_does_not_affect_loss() -> None:
    model, batch = small.model(TRANSLATOR), token_pairs().batch(torch.arange(4))
    expected = Task(model, None)(batch)
    assert batch.source is not None and batch.source_lengths is not None
    inside = torch.arange(batch.source.shape[1]) < batch.source_lengths[:, None]
    lengths = torch.tensor([len(target) + 2 for target in TARGETS])
    read = torch.arange(batch.ids.shape[1]) < lengths[:, None]
    assert not inside.all() and not read.all()
    other = dataclasses.replace(
        batch,
        source=batch.source.where(inside, 8),
        ids=batch.ids.where(read, 8),
        targets=batch.targets.where(read, 8),
    )
    torch.testing.assert_close(Task(model, None)(other), expected)
    expected.backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_label_smoothing() -> None:
    model, batch = small.model(TRANSLATOR), token_pairs().batch(torch.arange(4))
    rows = model.logits_of(batch.predicted(model.traces(batch.ids, started(model, batch))[-1].output))
    logs = rows.log_softmax(-1)
    plain = -logs.gather(1, batch.labels[:, None]).mean()
    found = Task(model, None, LossWeights(label_smoothing=0.25))(batch)
    torch.testing.assert_close(found, 0.75 * plain - 0.25 * logs.mean())


def started(model: Transformer, batch: Batch) -> Any:
    assert batch.source is not None and batch.source_lengths is not None
    return model.start(batch.source, batch.source_lengths)


@torch.no_grad()
def test_distill_compares_predicted_tokens() -> None:
    student, teacher = small.model(TRANSLATOR), small.model(TRANSLATOR, seed=5)
    batch = token_pairs().batch(torch.arange(4))
    stage = Distill(student, teacher, LossWeights(hidden=2.0))
    stage.measure(batch)
    outputs, logits = [], []
    for model in (student, teacher):
        traces = [part for one in batch.split(1) for part in [model.traces(one.ids, started(model, one))]]
        chosen = [[one.predicted(t.output) for t in trace] for one, trace in zip(batch.split(1), traces, strict=True)]
        outputs.append([torch.cat(layer) for layer in zip(*chosen, strict=True)])
        logits.append(model.logits_of(outputs[-1][-1]).log_softmax(-1))
    expected = F.kl_div(logits[0], logits[1], log_target=True, reduction="batchmean")
    shares = [F.mse_loss(a, b) / v for a, b, v in zip(*outputs, stage.variance, strict=True)]
    torch.testing.assert_close(stage(batch), expected + 2.0 * torch.stack(shares).mean())
    same = small.model(TRANSLATOR)
    assert float(Distill(student, same)(batch)) == pytest.approx(0, abs=1e-6)


def converted() -> tuple[Transformer, Transformer]:
    teacher = small.model(TRANSLATOR)
    return convert(teacher, LinearConfig(5), cross=LinearConfig(7)), teacher


def test_transfer_trains_cross_attention() -> None:
    student, teacher = converted()
    batch = token_pairs().batch(torch.arange(4))
    stage = Transfer(student, teacher)
    assert [*stage.new] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    stage.measure(batch)
    loss = stage(batch)
    loss.backward()
    trained = {name for name, weight in student.named_parameters() if weight.grad is not None}
    assert trained == set(stage.trainable()) == student.state_dict().keys() - teacher.state_dict().keys()
    expected = 0.0
    with torch.no_grad():
        blocks = teacher.traces(batch.ids, started(teacher, batch))
        states = started(student, batch)
        step = student.context(states, student.ops(batch.ids.shape[1]))
        for (n, m), variance in zip(stage.new, stage.variance, strict=True):
            part, mixer = blocks[n].parts[m], student.blocks[n].parts[m]
            found = mixer(part.normed, student.blocks[n].own(m, student.layer_state(states, n)), step)[0]
            expected += float(F.mse_loss(batch.predicted(found), batch.predicted(part.mixed)) / variance)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)


def test_align_compares_each_block_once() -> None:
    student, teacher = converted()
    batch = token_pairs().batch(torch.arange(4))
    stage = Align(student, teacher)
    assert [*stage.new] == [(0, 0), (1, 0)]
    assert {name.rpartition(".parts.")[2][0] for name in stage.trainable()} == {"0", "1"}
    stage.measure(batch)
    assert stage(batch).isfinite()
    only = convert(teacher, LinearConfig(5), layers="1")
    assert [*Align(only, teacher).new] == [(1, 0)]


def test_long_pairs_are_skipped() -> None:
    given = [("abc", "cba"), ("ab", "ba" * 9), ("ab" * 9, "ba"), ("a", "b")]
    made, left_out = tokenize_pairs(given, TOKENIZERS, TRANSLATOR, 9)
    assert (len(made), left_out) == (2, 2)
    assert made.targets.padded(torch.tensor([1]))[0].tolist() == [[texts.BOS, texts.EOS, 1, texts.EOS]]
    with pytest.raises(UserError, match="pairs of at most 9 tokens on the source's side .*; received 2 longer ones"):
        tokenize_pairs(given[1:3], TOKENIZERS, TRANSLATOR, 9)
    narrow = dataclasses.replace(TRANSLATOR, vocab_size=6, eos_tokens=(1,), start_tokens=(1,))
    with pytest.raises(UserError, match="tokens from 0 to 5, the model's vocabulary; received token"):
        tokenize_pairs([("abh", "a")], TOKENIZERS, narrow, 9)
    with pytest.raises(UserError, match="a tokenizer in the checkpoint"):
        tokenize_pairs(given, Tokenizers(None), TRANSLATOR, 9)


def test_parts_from_files_or_groups(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.tsv" for name in ("train", "valid", "test")}
    write_pairs(files["train"], pairs())
    write_pairs(files["valid"], [("ab", "ba")] * 3)
    write_pairs(files["test"], [("cd", "dc")] * 2)

    def sizes(valid: str | None, test: str | None) -> tuple[int, int, int]:
        chosen = (files[name] if name else None for name in (valid, test))
        corpus = read_pair_corpus([files["train"]], *chosen, TOKENIZERS, TRANSLATOR, Shares(0.1, 0.2), 30)
        return len(corpus.train), len(corpus.valid), len(corpus.test)

    count = len(pairs())
    valid, test = round(0.1 * count), round(0.2 * count)
    assert sizes(None, None) == (count - valid - test, valid, test)
    assert sizes("valid", "test") == (count, 3, 2)
    assert sizes("valid", None) == (count - test, 3, test)
    assert sizes(None, "test") == (count - valid, valid, 2)


@pytest.fixture
def config(tmp_path: Path) -> FinetuneConfig:
    checkpoint.save(tmp_path / "model.pt", small.model(TRANSLATOR), texts.tokenizer(), {"origin": "random"})
    write_pairs(tmp_path / "pairs.tsv", pairs())
    return FinetuneConfig(
        model=tmp_path / "model.pt",
        output=tmp_path / "tuned.pt",
        pairs=(tmp_path / "pairs.tsv",),
        plan=parse_plan("task", "12", "0.02"),
        pair_tokens=120,
        valid_share=0.1,
        test_share=0.1,
        label_smoothing=0.1,
        device="cpu",
        checkpoint_every=5,
        validate_every=4,
    )


def test_translator_learns_from_pairs(config: FinetuneConfig) -> None:
    report = finetune(config)
    assert report.after.nats < 0.9 * report.before.nats
    done = checkpoint.load(config.output)
    assert done.provenance["finetune"][0]["pair_tokens"] == 120
    assert done.provenance["finetune"][0]["files"] == ["pairs.tsv"]
    (curve,) = read_curves([config.log_path])
    assert curve.points[-1].tokens == done.provenance["finetune"][0]["tokens"] == report.tokens


@pytest.mark.parametrize("layers", [(AverageConfig(), AverageConfig(12)), (small.SOFTMAX, small.SHARED)])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_fast_decoding_layers_learn_from_pairs(
    layers: tuple[MixerConfig, ...], precision: str, config: FinetuneConfig
) -> None:
    model = dataclasses.replace(TRANSLATOR, layers=layers, crosses=(small.SOFTMAX, small.SHARED))
    checkpoint.save(config.model, small.model(model), texts.tokenizer(), {"origin": "random"})
    report = finetune(dataclasses.replace(config, precision=precision, dropout=0.1))
    assert report.after.nats < 0.9 * report.before.nats


def open_model() -> ModelConfig:
    """A translator without a position limit."""
    assert TRANSLATOR.encoder is not None
    encoder = dataclasses.replace(TRANSLATOR.encoder, max_positions=None)
    return dataclasses.replace(TRANSLATOR, position="sinusoidal", max_positions=None, encoder=encoder).build()


def letters(given: Sequence[Pair]) -> TokenPairs:
    """Tokenize like `texts.tokenizer`, but with nine tokens per capital letter."""
    sides = ["".join("bacabdabc" if c.isupper() else c for c in side) for pair in given for side in pair]
    return tokenize_pairs([*zip(sides[::2], sides[1::2], strict=True)], TOKENIZERS, open_model(), 10_000)[0]


def size(batch: Batch) -> int:
    """Number of tokens, including padding."""
    assert batch.source is not None
    return batch.source.numel() + batch.ids.numel()


def test_resume_on_pairs_is_bit_identical(config: FinetuneConfig) -> None:
    whole = ended(config)
    stop_at(config, 7)
    assert resumed(config) == whole
    logs = (config.log_path, config.log_path.with_name("whole.pt.jsonl"))
    last, expected = (read_curves([log])[0].points[-1] for log in logs)
    assert (last.step, last.tokens) == (expected.step, expected.tokens)


def test_converted_translator_learns_from_its_teacher(config: FinetuneConfig) -> None:
    """The teacher is rebuilt from the student's weights; the usual stages run on pairs."""
    loaded = checkpoint.load(config.model)
    student = convert(loaded.model, LinearConfig(5), cross=LinearConfig(7))
    checkpoint.save(config.model, student, loaded.tokenizer, provenance(loaded, layers="all"))
    plan = parse_plan("transfer,distill", "6,8", "0.02,0.01")
    report = finetune(dataclasses.replace(config, plan=plan, label_smoothing=0.0))
    assert report.teacher is not None
    assert [kept.stage for kept in report.kept] == ["transfer", "distill"]
    assert report.kept[0].step > 0  # closer to the teacher's layers than before
    other = small.translator(base="softmax", source_vocabulary=9)
    teacher = config.model.with_name("teacher.pt")
    checkpoint.save(teacher, small.model(other), None, {"origin": "random"})
    with pytest.raises(UserError, match="a teacher that is a translator whose sources have 12 tokens"):
        finetune(dataclasses.replace(config, plan=plan, teacher=teacher, label_smoothing=0.0, force=True))


@pytest.mark.parametrize("stages", ["transfer,distill", "align"])
@pytest.mark.parametrize("merged", [MergeConfig(), MergeConfig(shared=True), MergeConfig(feed_forward=True)])
def test_merged_layers_learn_from_their_teacher(
    merged: MergeConfig, stages: str, config: FinetuneConfig, tmp_path: Path
) -> None:
    """Targets are the joint output of the teacher's two layers, or of a whole block with the feed-forward."""
    attention = HeadsConfig(heads=3, kv_heads=3, head_size=4)
    model = small.model(dataclasses.replace(TRANSLATOR, attention=attention, ffn_size=12))
    teacher = tmp_path / "teacher.pt"
    checkpoint.save(teacher, model, texts.tokenizer(), {"origin": "random"})
    mixer = small.SOFTMAX if merged.feed_forward else LinearConfig(5)
    loaded, student = checkpoint.load(teacher), convert(model, mixer, cross=merged)
    checkpoint.save(config.model, student, loaded.tokenizer, provenance(loaded, layers="all"))
    plan = parse_plan(stages, *(("6,6", "0.02,0.01") if "," in stages else ("6", "0.01")))
    config = dataclasses.replace(config, plan=plan, teacher=teacher, label_smoothing=0.0)
    if merged.feed_forward and "transfer" in stages:
        with pytest.raises(UserError, match="leave transfer out"):
            finetune(config)
        return
    assert finetune(config).kept[0].step > 0
    with pytest.raises(UserError, match="name the teacher, --teacher TEACHER.pt"):
        finetune(dataclasses.replace(config, teacher=None, force=True))


def test_text_for_decoders_pairs_for_translators(config: FinetuneConfig, tmp_path: Path) -> None:
    text = texts.write_text(tmp_path / "text")
    with pytest.raises(UserError, match="expected pairs, to train a translator; received a text; pass --pairs"):
        finetune(dataclasses.replace(config, pairs=(), pair_tokens=4096, data=(text,)))
    rounded = {"plan": parse_plan("round"), "rounding": QuantizeConfig(scheme="w4"), "label_smoothing": 0.0}
    with pytest.raises(UserError, match="expected a decoder, to train through rounding; received a translator"):
        finetune(dataclasses.replace(config, **rounded))
    texts.write_teacher(config.model)
    with pytest.raises(UserError, match="expected a translator, to train on pairs; received a decoder alone"):
        finetune(config)
    with pytest.raises(UserError, match="expected pairs, or a text; received both"):
        dataclasses.replace(config, data=(text,))
    with pytest.raises(UserError, match="--pairs with --valid; received none"):
        dataclasses.replace(config, pairs=(), pair_tokens=4096, valid=text)
