"""Kinds with their options as text: parsing, a kind's help, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from cli_models import Output, run
from t2r_export.cli.fields import flat
from t2r_export.cli.spelled import Inside
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.options import options, read_bytes, read_kind, within, written
from t2r_export.config.uniform import MIXERS
from t2r_runtime.errors import UserError

READ: list[tuple[str, tuple[str, dict[str, Any]]]] = [
    ("lstm", ("lstm", {})),
    ("linear:feature_size=3", ("linear", {"feature_size": 3})),
    ("linear:gate=data,redraw=true,sigma=0.5", ("linear", {"gate": "data", "redraw": True, "sigma": 0.5})),
    ("linear:feature-size=3, rotary-size=null", ("linear", {"feature_size": 3, "rotary_size": None})),
    ("linear:guard.kind=add,guard.eps=1e-3", ("linear", {"guard": {"kind": "add", "eps": 1e-3}})),
    ("w4:budget=1.5M", ("w4", {"budget": "1.5M"})),
]


@pytest.mark.parametrize("text, found", READ)
def test_parse_kind(text: str, found: tuple[str, dict[str, Any]]) -> None:
    assert read_kind(text) == found
    kind, values = found
    assert read_kind(f"{kind}:{written(values)}") == found


@pytest.mark.parametrize(
    "text", ["a:b", "a:=3", "a:b=1,", "a:b=1,b=2", "a:b=1,b.c=2", "a:b.c=1,b.c=2", "a:b.c=1,b=2", "a:.b=1", "a:b.=1"]
)
def test_invalid_kind_with_options(text: str) -> None:
    with pytest.raises(UserError, match="expected KIND:NAME=VALUE,NAME=VALUE, each NAME once; received "):
        read_kind(text)


def test_deeply_nested_value_is_text() -> None:
    assert read_kind("a:b=" + "[" * 100_000)[1]["b"].startswith("[[")


def test_bytes() -> None:
    assert [read_bytes(text) for text in ("1", "64k", "1.5M", "2G")] == [1, 64_000, 1_500_000, 2_000_000_000]
    for text in ("", "0", "k", "1kk", "nan", "1e20", "-3", "3 kB"):
        with pytest.raises(UserError, match="a budget in bytes: 4096, 64k or 1.5M"):
            read_bytes(text)


@pytest.mark.parametrize("group", sorted({place.split()[0] for place in within(FinetuneConfig).values()}))
def test_help_inside_an_option(group: str, capsys: Output) -> None:
    text = "adamw:help" if group == "--optimizer" else "help"
    out, _ = run(capsys, "finetune", group, text)
    inner = [place.split()[1] for place in within(FinetuneConfig).values() if place.startswith(f"{group} ")]
    assert len(inner) > 1 and all(f"  {name}=" in out for name in inner)
    _, err = run(capsys, "finetune", "m.pt", "o.pt", group, f"{text.replace('help', '')}{inner[0]}x=3", code=2)
    assert f"received {inner[0]}x; did you mean {inner[0]}?" in err


def test_fields_within_option() -> None:
    given = {"loss": {"hidden": 3}, "lora": None, "optimizer": ("muon", {"clip": 2.0}), "start_positions": 4}
    said = flat(FinetuneConfig, {**given, "seed": 7})
    assert said == {"hidden": 3, "optimizer": "muon", "clip": 2.0, "start_positions": 4, "seed": 7}


@pytest.mark.parametrize("verb", ["convert", "choose"])
@pytest.mark.parametrize("kind", MIXERS)
def test_help_of_a_kind_lists_its_fields(verb: str, kind: str, capsys: Output) -> None:
    out, _ = run(capsys, verb, "--mixer", f"{kind}:help")
    assert out.startswith(f"{kind}:NAME=VALUE,…\n")
    assert all(f"  {name}" in out for name in options(MIXERS[kind].config))


def test_help_of_a_kind_has_its_own_defaults(capsys: Output) -> None:
    assert "  sinks=4 " in run(capsys, "convert", "--mixer", "window:help")[0]
    hybrid = run(capsys, "convert", "--mixer", "hybrid:help")[0]
    assert "  sinks=0 " in hybrid and "  window=required " in hybrid and "  merge=sum " in hybrid
    assert "[sum|gate|token]" in hybrid
    assert "  feature_forward=false" not in run(capsys, "convert", "--cross", "merged:help")[0]


def test_defaults_may_be_typed_inside_an_option() -> None:
    """Including defaults outside the option's bounds: no dropout."""
    fields = {
        field.metadata["within"].partition(".")[2]: field
        for field in options(FinetuneConfig).values()
        if field.metadata.get("within", "").startswith("loss.")
    }
    loss = Inside("loss", fields)
    assert loss.convert("dropout=0.0,label_smoothing=0.0", None, None) == {"dropout": 0.0, "label_smoothing": 0.0}
    with pytest.raises(UserError, match="expected dropout of --loss to be a number above 0 and below 1; received 1"):
        loss.convert("dropout=1", None, None)


@pytest.mark.parametrize("value", ["5", "null", "true", "--", '"5"'])
def test_texts_may_look_like_numbers(value: str) -> None:
    fields = {
        field.metadata["within"].partition(".")[2]: field
        for field in options(FinetuneConfig).values()
        if field.metadata.get("within", "").startswith("split.")
    }
    split = Inside("split", fields).convert(f"separator={value},valid=0.1", None, None)
    assert split == {"separator": value.strip('"'), "valid": 0.1}
