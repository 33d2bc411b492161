"""A tokenizer with a part removed or replaced gives other results on the golden texts."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from golden import families, parts

Made = dict[str, Any]
FORMS = ("NFC", "NFD", "NFKC", "NFKD")
REGEXES = (rf"{parts.ENDINGS}|\p{{N}}{{1,3}}|{parts.REST}", rf"{parts.ENDINGS}|\p{{N}}|{parts.REST}")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


def lists(made: Made) -> tuple[list[Made], list[Made]]:
    """Its normalizers and its pre-tokenizers."""
    return made["normalizer"]["normalizers"], made["pre_tokenizer"]["pretokenizers"]


def others(part: Made) -> Iterator[Made]:
    """Parts that a runtime may confuse with this one."""
    if part["type"] in FORMS:
        yield from ({"type": form} for form in FORMS if form != part["type"])
    elif "Regex" in part.get("pattern", {}) and part["type"] == "Split":
        yield from ({**part, "pattern": {"Regex": r}} for r in (GPT2, *REGEXES) if r != part["pattern"]["Regex"])
    elif part["type"] == "Digits":
        yield {**part, "individual_digits": not part["individual_digits"]}
    elif "behavior" in part:
        yield {**part, "behavior": "Isolated"}


def wrong(made: Made) -> Iterator[tuple[str, Made]]:
    for which, found in enumerate(lists(made)):
        for n, part in enumerate(found[: len(found) - which]):
            faulty = copy.deepcopy(made)
            del lists(faulty)[which][n]
            yield f"without {part['type']}", faulty
            for other in others(part):
                faulty = copy.deepcopy(made)
                lists(faulty)[which][n] = other
                yield f"{other} for {part}", faulty
    if made["post_processor"]:
        yield "without a processor", {**made, "post_processor": None}


@pytest.mark.parametrize("name", parts.TOKENIZERS)
def test_every_part_matters(name: str) -> None:
    made = parts.TOKENIZERS[name]()
    good = parts.encoded(made, parts.texts(name))
    faults = dict(wrong(made))
    assert len(faults) >= 2
    assert [fault for fault, other in faults.items() if parts.encoded(other, parts.texts(name)) == good] == []


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_of_added_tokens_matters(flag: str) -> None:
    seen = []
    for name, make in parts.TOKENIZERS.items():
        made = make()
        good = parts.encoded(made, parts.texts(name))
        for token in made["added_tokens"]:
            token[flag] = False
        seen.append(parts.encoded(made, parts.texts(name)) != good)
    assert any(seen)


@pytest.mark.parametrize("name", parts.SURFACES)
def test_every_surface_matters(name: str) -> None:
    """Without an entry, tokens differ, unless it is the content of an added token."""
    made, texts = parts.surfaces(parts.SURFACES[name]), parts.surface_texts(name)
    good, entries = parts.encoded(made, texts), dict(made["model"]["surfaces"])
    same = []
    for text in entries:
        made["model"]["surfaces"] = {other: number for other, number in entries.items() if other != text}
        if parts.encoded(made, texts) == good:
            same.append(text)
    unfound = [] if parts.SURFACES[name] else ["£", "袁鸠", "🙂", "袁🙂"]  # a BPE's unknown token has another text
    assert sorted(same) == sorted(["<s>", "<unk>", *unfound])


@pytest.mark.parametrize("name", families.FAMILIES)
def test_no_family_for_another(name: str) -> None:
    """The texts of a family distinguish it from all others, and from itself without a part."""
    made, texts = families.tokenizer(name), families.texts(name, families.TEXTS)
    good = parts.encoded(made, texts)
    cuts = made["pre_tokenizer"]["pretokenizers"]
    others = [families.tokenizer(other)["pre_tokenizer"] for other in families.FAMILIES if other != name]
    others += [{"type": "Sequence", "pretokenizers": cuts[:n] + cuts[n + 1 :]} for n in range(len(cuts) - 1)]
    assert not any(parts.encoded({**made, "pre_tokenizer": other}, texts) == good for other in others)
