"""Pruning a model with a text: kept units, report, refusals, and later commands."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import small
import t2r_export
import texts
from cli_models import Output, run
from pruning_models import corpus
from t2r_export.batches.batch import window_batches
from t2r_export.checkpoints import checkpoint
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.pruning import KINDS, PruneConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.data.corpus import held_out_windows
from t2r_export.fold import fold
from t2r_export.pruning.prune import Pruned, prune
from t2r_export.pruning.versions import RUNGS, Version, assembled, chosen, sizes
from t2r_export.quality.evaluate import evaluate
from t2r_runtime.errors import UserError

STUDENT = small.with_layers(texts.TEACHER, *(small.linear(8, positions="after", update_rule="gated", gate="data"),) * 3)


def pruned(config: UniformConfig | str, **shares: float) -> tuple[Any, Pruned]:
    model = small.model(config)
    return model, prune(model, PruneConfig(**shares), corpus(model.config.vocab_size), window=16)


@pytest.mark.parametrize(
    "config, shares",
    [
        (dataclasses.replace(small.LLAMA, layers=(small.SOFTMAX,) * 2), {"heads": 0.3, "ffn": 0.5}),
        ("rotary_after", {"state": 0.2}),
        ("gated_delta", {"state": 0.5, "heads": 0.3}),
        ("mamba2", {"state": 0.4}),
        ("hybrid_token", {"state": 0.3, "heads": 0.3}),
        (dataclasses.replace(small.GPT2, layers=(small.SOFTMAX, small.LINEAR, small.WINDOW)), {"layers": 0.3}),
    ],
)
def test_what_is_said_is_what_went(config: UniformConfig | str, shares: dict[str, float], tmp_path: Path) -> None:
    model, found = pruned(config, **shares)
    before = {name: weight.clone() for name, weight in small.model(config).state_dict().items()}
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    for kind, share in shares.items():
        assert all(0 < version.kept <= version.of or kind == "layers" for version in found.chosen[kind])
        own = [version.bytes // version.kept * version.of for version in found.chosen[kind] if version.kept]
        if kind != "layers":
            assert sum(version.bytes for version in found.chosen[kind]) <= (1 - share) * sum(own)
    for which, size in ((found.bytes, weights), (found.state_bytes, states)):
        assert which == (size(model), size(found.model))
    if list(shares) == ["state"]:
        gone = sum(v.bytes // v.kept * (v.of - v.kept) for v in found.chosen["state"])
        assert found.state_bytes[0] - found.state_bytes[1] == gone > 0
    if "layers" in shares:
        assert len(found.model.config.layers) == sum(version.kept for version in found.chosen["layers"]) == 2
    made = checkpoint.Checkpoint(found.model.config, found.model, None, {}, "0" * 64)
    checkpoint.save(tmp_path / "model.pt", found.model, None, {})
    assert checkpoint.load(tmp_path / "model.pt").config == found.model.config
    small.export(made, tmp_path / "g.onnx", small.ExportConfig(prefill=True))
    assert small.proof(made, tmp_path / "g.onnx", steps=12).passed


def weights(model: Any) -> int:
    return sum(4 * weight.numel() for weight in model.parameters())


def states(model: Any) -> int:
    return sum(spec.bytes(1, 1) for spec in model.state_spec())


@pytest.mark.parametrize("feature_map", ["relu", "relu2"])
def test_a_pruned_student_folds(feature_map: str) -> None:
    layer = small.linear(8, feature_map, positions="after", update_rule="gated", gate="data")
    _, found = pruned(small.with_layers(texts.TEACHER, layer, layer, layer), state=0.5)
    sizes = [mixer.feature_size for mixer in small.mixers(found.model.config)]  # type: ignore[union-attr]
    assert sum(sizes) <= 12 and all(size % 2 == 0 for size in sizes)
    folded, report = fold(found.model)
    assert all(layer.folded for layer in report)
    ids = small.ids(vocabulary=texts.TEACHER.vocab_size)
    assert torch.allclose(folded(ids), found.model(ids), atol=1e-4)


def test_costs_are_those_of_one_change() -> None:
    model, found = pruned("gated", ffn=0.6)
    for version in found.chosen["ffn"]:
        alone = assembled(model, [version])
        batches = window_batches(held_out_windows(corpus().valid, 16, 32), 4)
        assert version.cost == pytest.approx(evaluate(alone, batches).nats - found.nats[0], abs=1e-6)


def test_all_kept_is_the_same_model() -> None:
    model = small.model("rotary_after")
    places = [Version(layer, 0, 5, 5, 20, lambda part=block.parts[0]: part) for layer, block in enumerate(model.blocks)]
    same = assembled(model, places)
    assert same.config == model.config
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in same.state_dict().items())
    assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in same.parameters()}


def test_a_layer_that_adds_nothing_may_go() -> None:
    model = small.model(dataclasses.replace(small.GPT2, layers=(small.SOFTMAX, small.LINEAR, small.WINDOW)))
    for part, name in zip(model.blocks[1].parts, ("o", "down"), strict=True):
        for weight in part.get_submodule(name).parameters():
            weight.data.zero_()
    found = prune(model, PruneConfig(layers=0.3), corpus(), window=16)
    assert [version.kept for version in found.chosen["layers"]] == [1, 0, 1]
    assert torch.equal(found.model(small.ids()), model(small.ids()))
    assert found.nats[0] == found.nats[1]


@given(st.integers(1, 300))
def test_sizes_go_down_to_one(count: int) -> None:
    found = sizes(count)
    assert found[0] == count and found[-1] >= 1 and found == sorted(set(found), reverse=True)
    assert len(found) == min(count, RUNGS)


@given(st.data(), st.floats(0.01, 0.99))
def test_chosen_versions_leave_the_share(data: st.DataObject, share: float) -> None:
    def version(kept: int, of: int, each: int, cost: float) -> Version:
        return Version(0, 0, kept, of, kept * each, lambda: None, 0.0 if kept == of else cost)

    counts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    places = [
        [version(kept, of, data.draw(st.just(4)), data.draw(st.floats(-0.1, 2.0))) for kept in sizes(of)]
        for of in counts
    ]
    total, least = 4 * sum(counts), 4 * len(counts)
    if least > int(total * (1 - share)):
        with pytest.raises(UserError, match="a share of ffn of at most"):
            chosen("ffn", share, places)
        return
    found = chosen("ffn", share, places)
    assert sum(one.bytes for one in found) <= (1 - share) * total
    assert all(one in place for one, place in zip(found, places, strict=True))


REFUSED: list[tuple[UniformConfig | str, dict[str, float], str]] = [
    ("moe", {"ffn": 0.5}, "received layer 0 keeps its ffn: experts"),
    ("alibi", {"heads": 0.5}, "alibi positions, which differ by the number of a head"),
    (small.LLAMA.with_attention(qk_norm=True, qk_norm_wide=True), {"heads": 0.5}, "qk_norm_wide"),
    (small.with_layers(small.GPT2, small.GATED[1]), {"heads": 0.5}, "fixed gates, which differ by the number"),
    (small.with_layers(small.GPT2, small.SOFTMAX, small.SHARED), {"heads": 0.5}, "weights that two layers share"),
    ("hedgehog", {"state": 0.5}, "features of the map hedgehog, which do not stand alone"),
    (small.with_layers(small.LLAMA, small.linear(6, positions="after", rotary_size=4)), {"state": 0.5}, "some rotate"),
    ("softmax", {"state": 0.5}, "parts with state that can be pruned; received parts of the kinds softmax, dense"),
    ("lstm", {"heads": 0.5}, "received parts of the kinds lstm"),
    ("translator_softmax", {"ffn": 0.5}, "a decoder alone, to prune by its text; received a translator"),
    (small.with_layers(small.GPT2, small.LINEAR), {"layers": 0.5}, "layers of which one can go"),
    ("softmax", {"layers": 0.99}, "a share of layers that leaves some; received 0.99"),
    ("softmax", {"ffn": 0.99}, "a share of ffn of at most 0.909, with at least one unit per group; received 0.99"),
]


@pytest.mark.parametrize("config, shares, message", REFUSED)
def test_refused(config: UniformConfig | str, shares: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        pruned(config, **shares)


def test_a_folded_layer_keeps_its_units() -> None:
    model, _ = fold(small.model("learned"))
    for kind in ("state", "heads"):
        with pytest.raises(UserError, match="a folded layer"):
            prune(model, PruneConfig(**{kind: 0.5}), corpus(), window=16)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 1.5, True, "half"])
def test_shares_between_none_and_all(share: Any) -> None:
    with pytest.raises(UserError, match="ffn to be a number above 0 and below 1"):
        PruneConfig(ffn=share)


def test_some_share_is_given() -> None:
    with pytest.raises(UserError, match=f"a share of {', '.join(KINDS)}; received none"):
        PruneConfig()


def test_too_little_text_is_refused() -> None:
    with pytest.raises(UserError, match="at least 257 tokens of text to measure on; received"):
        prune(small.model("none"), PruneConfig(ffn=0.5), corpus(length=100))


@pytest.mark.slow
def test_pruned_then_finetuned_by_the_whole_model(tmp_path: Path, capsys: Output) -> None:
    texts.write_teacher(tmp_path / "teacher.pt", small.built(STUDENT))
    data = texts.write_text(tmp_path / "text.txt", 400)
    arguments = ["prune", tmp_path / "teacher.pt", tmp_path / "small.pt", "--data", data]
    out, err = run(capsys, *arguments, "--share", "ffn=0.4,state=0.5", "--json")
    said = json.loads(out)
    tried = [line.partition(":")[0] for line in err.splitlines() if " cost " in line]
    assert tried == [f"{kind}, layer {number}" for kind in ("ffn", "state") for number in range(3)]
    assert said["shares"] == {"ffn": 0.4, "state": 0.5}
    assert {row["kind"] for row in said["chosen"]} == {"ffn", "state"}
    made = checkpoint.load(tmp_path / "small.pt")
    same = t2r_export.load(tmp_path / "teacher.pt").prune(data, ffn=0.4, state=0.5)
    assert same.config == made.config and same.checkpoint.provenance["prune"][0]["shares"] == said["shares"]
    assert made.provenance["prune"][0]["shares"] == said["shares"]
    assert sum(isinstance(mixer, LinearConfig) and mixer.feature_size for mixer in small.mixers(made.config)) <= 12
    steps = ["--stages", "task,distill", "--steps", "20,5", "--length", 32, "--lr", "1e-2,1e-3", "--data", data]
    refused = run(capsys, "finetune", tmp_path / "small.pt", tmp_path / "none.pt", *steps, code=2)[1]
    assert "name the teacher, --teacher TEACHER.pt" in refused
    teacher = ["--teacher", tmp_path / "teacher.pt"]
    report = json.loads(
        run(capsys, "finetune", tmp_path / "small.pt", tmp_path / "out.pt", *steps, *teacher, "--json")[0]
    )
    assert report["student"]["nats"] < report["student_before"]["nats"]
    assert checkpoint.load(tmp_path / "out.pt").config == made.config


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--share", "ffn=0.5"], "expected --data; received none"),
        (["--data", "text.txt"], "expected --share; received none"),
        (["--share", "fnn=0.5", "--data", "text.txt"], "received fnn; did you mean ffn?"),
        (
            ["--share", "ffn=1.5", "--data", "text.txt"],
            "ffn of --share to be a number above 0 and below 1; received 1.5",
        ),
        (["--share", "ffn=0.5", "--data", "text.txt"], "received text.txt, which does not exist"),
    ],
)
def test_usage(arguments: list[str], message: str, capsys: Output) -> None:
    assert message in run(capsys, "prune", "none.pt", "out.pt", *arguments, code=2)[1]
