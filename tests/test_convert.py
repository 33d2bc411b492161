"""Conversion replaces only the mixers of the chosen layers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import small
from small import CONFIGS, GPT2, LLAMA, SOFTMAX, K, linear
from t2r_export.config.mixers import Guard, HybridConfig, LinearConfig, MixerConfig, WindowConfig
from t2r_export.convert import convert, reshape, source_mixers
from t2r_export.fold import fold
from t2r_export.lab.config.light_conv import LightConvConfig
from t2r_export.lab.config.merged import MergeConfig
from t2r_export.lab.merged import Merged
from t2r_export.model.initialize import initialize
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError


def teacher(rotary: bool = False, layers: int = 4) -> Transformer:
    return small.model(dataclasses.replace(LLAMA if rotary else GPT2, layers=(SOFTMAX,) * layers))


@pytest.mark.parametrize("rotary", [False, True])
def test_other_weights_are_kept(rotary: bool) -> None:
    source = teacher(rotary)
    before = {name: weight.clone() for name, weight in source.state_dict().items()}
    made = convert(source, LinearConfig(K), "0,2")
    after = made.state_dict()
    assert set(after) - set(before) == {
        f"blocks.{layer}.parts.0.inner.maps.{side}.{part}"
        for layer in (0, 2)
        for side in "qk"
        for part in ("weight", "bias")
    }
    for name, weight in before.items():
        assert torch.equal(after[name], weight), name
        assert torch.equal(source.state_dict()[name], weight), "the source changed"
    assert made.config == source.config.with_mixers(LinearConfig(K), SOFTMAX, LinearConfig(K), SOFTMAX)
    assert not made.training


def test_features_rotate_where_the_layer_did() -> None:
    source = small.model(small.with_layers(LLAMA, SOFTMAX, small.attention(LLAMA, SOFTMAX, positions=None)))
    for mixer in (LinearConfig(4, positions="after", rotary_size=2), HybridConfig(3, 4, positions="after")):
        found = small.mixers(convert(source, mixer).config)
        assert found == [mixer, dataclasses.replace(mixer, positions="keep", rotary_size=None)]
    report = fold(convert(source, LinearConfig(4, positions="after")))[1]
    assert all(layer.folded for layer in report)


def test_converted_weights_are_copies() -> None:
    source = teacher()
    made = convert(source, LinearConfig(K))
    with torch.no_grad():
        made.blocks[0].mixers[0].q.weight.zero_()  # type: ignore[operator, union-attr]
    assert source.blocks[0].mixers[0].q.weight.abs().sum() > 0  # type: ignore[operator, union-attr]
    assert made.head.weight is made.embedding.weight


def test_convert_none_is_identity() -> None:
    source, ids = teacher(), small.ids()
    made = convert(source, LinearConfig(K), "none")
    assert made.config == source.config
    assert torch.equal(made(ids), source(ids))


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("layers", ["all", "none", "1"])
def test_to_reshape_is_to_convert(layers: str, rotary: bool) -> None:
    """Without random weights, `reshape` to the converted config gives the same model."""
    source = teacher(rotary, layers=2)
    made = convert(source, WindowConfig(3, 1), layers)
    again = reshape(source, made.config, seed=3).model
    assert again.config == made.config and not again.training
    assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in made.state_dict().items())


def test_weights_go_to_parts_of_their_kind() -> None:
    """A convolution's output projection of equal name and shape is not copied: it is random."""
    source = teacher(layers=2)
    conv = LightConvConfig(size=GPT2.width, heads=2, taps=3)
    config = dataclasses.replace(GPT2, layers=(SOFTMAX, conv), rezero=True, vocab_size=source.config.vocab_size).build()
    made, fresh = reshape(source, config, seed=3).model, initialize(config, seed=3)
    before, after, random = (model.state_dict() for model in (source, made, fresh))
    names = [name for name in after if name in before and not name.startswith("blocks.1.parts.0.")]
    assert "blocks.1.parts.1.up.weight" in names and "blocks.1.parts.0.o.weight" in {*before} & {*after}
    for name, weight in after.items():
        assert torch.equal(weight, before[name] if name in names else random[name]), name
    with pytest.raises(UserError, match=f"the teacher's {config.vocab_size} tokens; received 9; correct vocab_size"):
        reshape(source, dataclasses.replace(config, vocab_size=9))


def test_sizes_by_layer() -> None:
    """Converting again gives other layers another size; `softmax` leaves windows as they are."""
    first = convert(teacher(layers=3), WindowConfig(window=5), "1")
    both = convert(first, WindowConfig(window=3), "softmax")
    assert [mixer.window for mixer in small.mixers(both.config) if isinstance(mixer, WindowConfig)] == [3, 5, 3]
    again = convert(both, WindowConfig(window=2), "1")  # by its number, a window is converted too
    assert [mixer.window for mixer in small.mixers(again.config) if isinstance(mixer, WindowConfig)] == [3, 2, 3]


def test_options() -> None:
    source = small.model(dataclasses.replace(LLAMA.with_attention(kv_heads=small.H), layers=(SOFTMAX,)))
    made = convert(source, LinearConfig(3, True, "drop", 0.5, Guard("add", 0.1)))
    assert small.mixers(made.config) == [LinearConfig(3, True, "drop", 0.5, Guard("add", 0.1))]


def test_seed() -> None:
    phi = "blocks.0.parts.0.inner.maps.q.weight"
    source, state = teacher(), torch.random.get_rng_state()
    first, again, other = (convert(source, LinearConfig(K), seed=seed).state_dict()[phi] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's own random numbers were used up"


def test_precision_is_kept() -> None:
    assert convert(teacher().double(), LinearConfig(K)).embedding.weight.dtype == torch.float64


@given(st.integers(-3, 0))
def test_invalid_feature_size_is_refused(size: int) -> None:
    with pytest.raises(UserError, match=f"expected feature_size to be an integer from 1 to 1048576; received {size}"):
        convert(teacher(), LinearConfig(size))


def test_unknown_positions_are_refused() -> None:
    with pytest.raises(UserError, match="expected positions to be one of keep, after, drop; received 'turn'"):
        convert(teacher(rotary=True), LinearConfig(K, positions="turn"))


def test_only_softmax_is_converted() -> None:
    hybrid = small.model(CONFIGS["hybrid"])
    assert small.mixers(convert(hybrid, LinearConfig(K), "1").config)[1] == LinearConfig(K)
    with pytest.raises(UserError) as caught:
        convert(hybrid, LinearConfig(K), "0,1")
    assert (
        str(caught.value) == "expected layer 0 to be softmax or a window; received linear; convert the original model"
    )


def test_shared_features_need_as_many_kv_heads() -> None:
    with pytest.raises(UserError, match="as many kv heads as query heads with shared_features"):
        convert(teacher(), LinearConfig(K, shared_features=True))


@torch.no_grad()
def test_translator_layers() -> None:
    """Each part alone: unconverted parts keep their weights, converted ones their projections."""
    made = small.model("translator_softmax")
    cross, encoder = linear(7), linear(6)
    converted = convert(made, linear(3), "1", cross=cross, encoder=encoder)
    config = converted.config
    assert [[m.kind for m in small.mixers(config, g)] for g in ("layers", "crosses")] == [["softmax", "linear"]] * 2
    assert config.encoder is not None
    assert [part.inside for part in config.encoder.heads] == [encoder] * 2  # type: ignore[attr-defined]
    before, after = made.state_dict(), converted.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    added = {name.split(".inner.")[0] for name in after.keys() - before.keys()}
    assert added == {"blocks.1.parts.0", "blocks.1.parts.1", *(f"encoder.blocks.{n}.parts.0" for n in (0, 1))}
    kept = convert(made, linear(3), "1").config
    assert small.mixers(kept, "crosses") == small.mixers(made.config, "crosses")


@torch.no_grad()
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mixer", [small.SOFTMAX, linear(3)])
def test_cross_attention_is_merged(mixer: MixerConfig, shared: bool) -> None:
    """Query, prefix and output keep their weights, and the source its keys and values."""
    made = small.model("translator_softmax")
    converted = convert(made, mixer, "1", cross=MergeConfig(shared=shared))
    before, after = made.state_dict(), converted.state_dict()
    # cross attention is gone, and the parts behind it have moved up
    expected = {n: n for n in before if not n.startswith(("blocks.1.parts.1.", "blocks.1.norms.1."))}
    moving = ("blocks.1.parts.2.", "blocks.1.norms.2.")
    behind = {n: n.replace(".2.", ".1.", 1) for n in expected if n.startswith(moving)}
    expected = {behind.get(n, n): n for n in expected}
    if not shared:
        moved = [n for n in before if n.startswith(("blocks.1.parts.1.k.", "blocks.1.parts.1.v."))]
        expected |= {n.replace("parts.1.", "parts.0.source_"): n for n in moved}
    new = {name for name in after if ".inner." in name}
    assert after.keys() - new == expected.keys()
    assert all(torch.equal(after[name], before[old]) for name, old in expected.items())
    kinds = [[part.kind for part in layer.mixers] for layer in converted.config.layers]
    assert kinds == [["attention", "cross"], ["merged"]]
    logits, _ = converted.prefill(small.ids(), converted.start(*small.sources()))
    assert logits.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("shared", [False, True])
def test_feed_forward_is_merged(shared: bool) -> None:
    """The first matrix is folded into the values after the output projection; the second is the output."""
    base = dataclasses.replace(small.MODELS["translator_merged_hidden"], crosses=(small.SOFTMAX,) * 2, feed_forwards=())
    made = small.model(base).double()
    converted = convert(made, small.SOFTMAX, "0", cross=MergeConfig(shared=shared, feed_forward=True))
    kinds = [[part.kind for part in layer.parts] for layer in converted.config.layers]
    assert kinds == [["merged"], ["attention", "cross", "dense"]]
    old, new, x = made.blocks[0], converted.blocks[0].parts[0], torch.randn(5, small.WIDTH).double()
    assert isinstance(new, Merged)
    own, cross, ffn = (part.get_submodule for part in old.parts)
    for values, part in ((new.v, own), (new.of_source[1], own if shared else cross)):
        torch.testing.assert_close(values(x), ffn("up")(part("o")(part("v")(x))), rtol=1e-5, atol=1e-5)
    down = ffn("down").state_dict()
    assert all(torch.equal(new.o.state_dict()[name], weight) for name, weight in down.items())
    with pytest.raises(UserError, match="softmax in merged layers with the feed-forward inside; received linear"):
        convert(made, linear(3), cross=MergeConfig(feed_forward=True))
    uneven = dataclasses.replace(base, ffn_size=13)
    with pytest.raises(
        UserError,
        match="a divisor of ffn_size, .* received 3 kv heads, 3 heads, ffn_size 13; correct",
    ):
        convert(small.model(uneven), small.SOFTMAX, cross=MergeConfig(feed_forward=True))


def test_source_mixers() -> None:
    config = small.TRANSLATORS["softmax"].build()
    mixer = linear(4, "hedgehog", guard=small.CLAMP)
    same = {"feature_map": "hedgehog", "guard": small.CLAMP}
    assert source_mixers(config, mixer) == (linear(32, **same), None)
    assert source_mixers(config, mixer, ("softmax", {}), True) == (None, linear(4, **same))
    assert source_mixers(config, mixer, ("linear", {"feature_size": 6, "query_scale": 0.5})) == (
        linear(6, query_scale=0.5, **same),
        None,
    )
    assert source_mixers(config, small.WINDOW) == (None, None)
    merged = small.model("translator_merged_softmax")
    assert source_mixers(merged.config, mixer) == (None, None)
    assert convert(merged, linear(3)).start_states == ["S.0", "z.0", "S.1", "z.1"]
    assert source_mixers(config, small.WINDOW, ("linear", {"feature_size": 6})) == (linear(6), None)
    assert source_mixers(small.GPT2.build(), mixer) == (None, None)
    for wanted in ((("softmax", {}), False), (None, True)):
        with pytest.raises(UserError, match="a translator; received a decoder alone; leave out --cross and --encoder"):
            source_mixers(small.GPT2.build(), mixer, *wanted)
    assert source_mixers(config, mixer, ("merged", {})) == (MergeConfig(), None)
    with pytest.raises(UserError, match="cross.kind to be one of softmax, linear, shared, merged; received 'lstm'"):
        source_mixers(config, mixer, ("lstm", {}))
    with pytest.raises(UserError, match="a linear mixer for the encoder; received window"):
        source_mixers(config, small.WINDOW, None, True)
    with pytest.raises(UserError, match="to convert cross-attention; received a decoder alone"):
        convert(small.model("softmax"), mixer, cross=mixer)
    once = convert(small.model("translator_softmax"), small.WINDOW, cross=mixer)
    with pytest.raises(UserError, match="cross layer 0 to be softmax or a window; received linear"):
        convert(once, small.WINDOW, cross=mixer)
