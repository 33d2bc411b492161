"""Augmentation of pairs: equal on both sides, a function of seed and pass, and only as configured."""

from __future__ import annotations

import random
import re
import zipfile
from pathlib import Path

import augment_pairs as augment
import pytest
from augment_pairs import (
    Augmenter,
    digits,
    found_names,
    found_nouns,
    letter_chain,
    made_name,
    with_names,
    with_numbers,
    with_title,
)

from t2r_export.config.recipe import read_recipe
from t2r_export.data.pairs import Pair, read_pairs, split_groups

PAIRS: list[Pair] = [
    ("Tom hat 25 Äpfel.", "Tom has 25 apples."),
    ("Das kostet 4,20 Euro.", "That costs 4.20 euros."),
    ("Es war 1998.", "It was 1998."),
    ("Wir kennen Tom.", "We know Tom."),
    ("Wie spät ist es?", "What time is it?"),
]
NAMES = frozenset({"Tom", "Maria", "Tomas", "Marlene", "Omar", "Ariane"})
CHAIN = letter_chain(NAMES)


def drawn(seed: int) -> random.Random:
    return random.Random(seed)


def numbers(text: str) -> list[tuple[str, ...]]:
    return sorted(digits(match[1]) for match in augment.NUMBER.finditer(text))


@pytest.mark.parametrize(
    "pair",
    [
        ("Tom hat 25 Äpfel.", "Tom has 25 apples."),
        ("Das kostet 4,20 Euro.", "That costs 4.20 euros."),
        ("Von 28 Kindern sind 9 krank.", "Of 28 children, 9 are sick."),
        ("164.000 Kilometer", "164,000 kilometers"),
        ("um 8.15 Uhr", "at 8:15"),
        ("am 14. März 2019", "on March 14th, 2019"),
        ("der 22. Stock", "the 22nd floor"),
        ("am 3.10.1990", "on 3/10/1990"),
        ("Seite 007 von 100", "page 007 of 100"),
    ],
)
def test_numbers_are_the_same_on_both_sides(pair: Pair) -> None:
    shape = [re.sub(r"\d+(st|nd|rd|th)?", "#", side) for side in pair]
    told = {with_numbers(pair, drawn(seed)) for seed in range(60)}
    assert len(told) > 30
    for source, target in told:
        assert numbers(source) == numbers(target)
        assert re.findall(r"\d+", source) == re.findall(r"\d+", target) or "14" in pair[0]
        assert [re.sub(r"\d+(st|nd|rd|th)?", "#", side) for side in (source, target)] == shape


@pytest.mark.parametrize(
    "pair",
    [
        ("Wie spät ist es?", "What time is it?"),
        ("um 17 Uhr", "at 5 p.m."),
        ("3 Hunde", "three dogs"),
        ("1 Hund und 0 Katzen", "1 dog and 0 cats"),
    ],
)
def test_a_pair_without_the_same_numbers_stays(pair: Pair) -> None:
    assert {with_numbers(pair, drawn(seed)) for seed in range(20)} == {pair}


def test_what_a_number_is_it_stays() -> None:
    for seed in range(200):
        (hour, minute), _ = numbers(with_numbers(("um 8:15 Uhr", "at 8:15"), drawn(seed))[0])[0], None
        assert 2 <= int(hour) <= 12 and 1 <= int(minute) <= 59
        ((year,),) = numbers(with_numbers(("seit 1998", "since 1998"), drawn(seed))[0])
        assert 1900 <= int(year) < 2030
        day, year = numbers(with_numbers(("am 14. März 2019", "on March 14th, 2019"), drawn(seed))[0])
        days = {int(one[0]) for one in (day, year)}
        assert any(2 <= one <= 28 for one in days) and any(one >= 1900 for one in days)
        hours = numbers(with_numbers(("von 8 bis 12 Uhr", "from 8 to 12"), drawn(seed))[0])
        assert all(2 <= int(hour) <= 12 for (hour,) in hours)
        ((count,),) = numbers(with_numbers(("25 Äpfel", "25 apples"), drawn(seed))[0])
        assert 10 <= int(count) <= 99
    assert [augment._ending(n) for n in (2, 3, 4, 11, 12, 13, 21, 22, 103)] == [
        *("nd", "rd", "th", "th", "th", "th", "st", "nd", "rd")
    ]


def test_names_are_the_same_on_both_sides() -> None:
    pair = ("Toms Hund mag Maria und Tom.", "Tom's dog likes Maria and Tom.")
    told = {with_names(pair, NAMES, CHAIN, drawn(seed)) for seed in range(60)}
    for source, target in told:
        one, other = re.match(r"(\w+)'s dog likes (\w+) and \1\.", target).groups()  # type: ignore[union-attr]
        assert source == f"{one}s Hund mag {other} und {one}."
        assert one != other
    assert len(told) > 20
    assert with_names(("Er kennt Tom.", "He knows him."), NAMES, CHAIN, drawn(1)) == ("Er kennt Tom.", "He knows him.")
    assert with_names(PAIRS[4], NAMES, CHAIN, drawn(1)) == PAIRS[4]


@pytest.mark.parametrize(
    "pair, told",
    [
        (("Tom singt.", "Tom sings."), {"Frau|Ms.", "Tante|Aunt", "Herr|Mr.", "Onkel|Uncle", "Doktor|Doctor"}),
        (("Tom mag sein Rad.", "Tom likes his bike."), {"Herr|Mr.", "Onkel|Uncle", "Doktor|Doctor"}),
        (("Tom mag ihr Rad.", "Tom likes her bike."), {"Frau|Ms.", "Tante|Aunt"}),
        (
            ("Ich singe mit Tom.", "I sing with Tom."),
            {"Frau|Ms.", "Tante|Aunt", "Herrn|Mr.", "Onkel|Uncle", "Doktor|Doctor"},
        ),
    ],
)
def test_titles(pair: Pair, told: set[str]) -> None:
    found = {with_title(pair, NAMES, "Fischer", drawn(seed)) for seed in range(60)}
    written = [one.split("|") for one in told]
    replaced = {tuple(pair[n].replace("Tom", f"{title} Fischer") for n, title in enumerate(one)) for one in written}
    assert found == replaced


@pytest.mark.parametrize(
    "pair",
    [
        ("Tom Meier singt.", "Tom Meier sings."),
        ("Toms Rad", "Tom's bike"),
        ("Tom mag Tom.", "Tom likes Tom."),
        ("Tom singt.", "Mary sings."),
        ("Otto singt.", "Otto sings."),  # not in NAMES
        ("in Tom", "in Tom"),  # may be a town
        ("Tom gab ihr seins.", "Tom gave her his."),  # both genders
    ],
)
def test_pairs_without_a_place_for_a_title(pair: Pair) -> None:
    assert {with_title(pair, NAMES, "Fischer", drawn(seed)) for seed in range(20)} == {pair}


def test_surnames_are_nouns_or_made() -> None:
    pairs = [*PAIRS, ("Wir sehen die Brücke und Omar.", "We see the bridge and Omar.")]
    assert found_nouns(pairs) == ("Brücke", "Euro", "Äpfel")
    augmenter = Augmenter(pairs, {"titles": 1}, 0)
    told = {augmenter([("Tom singt.", "Tom sings.")], step)[0][1].split()[1] for step in range(60)}
    assert told == {"Brücke", "Euro", "Äpfel", "Tom", "Omar"}  # a chain of two names makes only these


def test_titles_without_names_in_the_pairs() -> None:
    pairs = [("Wir sehen die Brücke.", "We see the bridge."), ("Wie spät ist es?", "What time is it?")]
    augmenter = Augmenter(pairs, {"titles": 1}, 0)
    assert all(sorted(augmenter(pairs, step)) == sorted(pairs) for step in range(20))


def test_two_names_stay_two() -> None:
    """A chain of one name would make both names equal."""
    pair = ("Tom mag Maria.", "Tom likes Maria.")
    assert with_names(pair, NAMES, letter_chain(["Eva"]), drawn(0)) == pair


def test_made_names_are_various_and_of_the_lengths_of_names() -> None:
    chain = letter_chain([*NAMES, "Al", "Bartholomaeussenberger"])  # one too short, one too long
    random_names = {made_name(chain, drawn(seed)) for seed in range(400)}
    assert len(random_names) > 30 and not random_names <= NAMES
    assert {len(name) for name in random_names} >= {3, 5, 7}
    assert all(augment.LEAST <= len(name) <= augment.MOST and name.istitle() for name in random_names)
    assert chain[""].count("T") == 2 and chain["To"] == "mm"


def test_which_words_are_names() -> None:
    pairs = [
        ("Wir kennen Tom.", "We know Tom."),
        ("Was hat er?", "Was it he?"),  # a first word is no name
        ("Das Radio ist an.", "The Radio is on."),
        ("Kein Radio", "no radio"),  # also in lowercase
        ("Wir kennen Anna", "We know Ann"),  # different words
        ("Die USA", "the USA"),
        ("im August", "in August"),
        ("Ich kenne Mary", "I know Mary"),  # begins like a month
        *[("Er kennt Otto", "He knows Otto")] * 20,
        ("otto", "otto"),  # one lowercase occurrence, twenty capitalized ones
    ]
    assert found_names(pairs) == {"Tom", "Mary", "Otto"}


def test_seed_and_pass_decide() -> None:
    shares = {"numbers": 1, "names": 1, "join": 0.5, "stop": 0.5, "capitals": 0.5, "small": 0.5}
    told = [Augmenter(PAIRS, shares, seed)(PAIRS, number) for seed in (0, 1) for number in range(8)]
    assert told == [Augmenter(PAIRS, shares, seed)(PAIRS, number) for seed in (0, 1) for number in range(8)]
    assert len({tuple(pairs) for pairs in told}) == 16


def test_shares_of_zero_change_nothing() -> None:
    assert sorted(Augmenter(PAIRS, {}, 3)(PAIRS, 5)) == sorted(PAIRS)
    told = Augmenter(PAIRS, {"numbers": 1}, 3)(PAIRS, 5)
    assert set(PAIRS) & set(told) == {*PAIRS[3:]}
    more = [*PAIRS, *[(f"Es ist {name}.", f"It is {name}.") for name in sorted(NAMES)]]
    told = Augmenter(more, {"names": 1}, 3)(PAIRS, 5)
    assert set(PAIRS) & set(told) == {PAIRS[1], PAIRS[2], PAIRS[4]}


def test_joined_pairs_are_all_there() -> None:
    many = [(f"Satz {n}.", f"Sentence {n}.") for n in range(3000)]
    for share in (0, 0.15, 1):
        told = augment.joined(many, share, drawn(0))
        lines = [(re.split(r"(?<=[.]) ", source), re.split(r"(?<=[.]) ", target)) for source, target in told]
        sizes = {len(sources) for sources, _ in lines[:-1]}  # the last may be what is left
        assert sizes == ({1} if share == 0 else {1, 2, 3, 4} if share < 1 else {2, 3, 4})
        assert sorted(pair for one in lines for pair in zip(*one, strict=True)) == sorted(many)
        assert abs(sum(len(sources) for sources, _ in lines if len(sources) > 1) / len(many) - share) < 0.03


def test_stops_and_capitals() -> None:
    def told(config: dict[str, float]) -> list[Pair]:
        return Augmenter(PAIRS, config, 0)(PAIRS, 0)

    assert {("Wir kennen Tom", "We know Tom"), PAIRS[4]} <= set(told({"stop": 1}))
    assert ("TOM HAT 25 ÄPFEL.", "TOM HAS 25 APPLES.") in told({"capitals": 1})
    assert ("tom hat 25 äpfel.", "Tom has 25 apples.") in told({"small": 1})
    assert augment.without_stop(("So …", "So ...")) == ("So …", "So ...")


def test_program_writes_the_train_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the recipe beside it, and augments no pair of the other parts."""
    pairs = [(f"{n} Hunde von Tom{'x' * n}.", f"{n} dogs of Tom{'x' * n}.") for n in range(2, 42)]
    with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
        archive.writestr("all.txt", "".join(f"{source}\t{target}\n" for source, target in pairs))
    recipe = (augment.HERE / "recipe.toml").read_text(encoding="utf-8")
    plan, model = recipe[recipe.index("[tokenizer]") :], tmp_path / "recipe.toml"
    counts = "valid_groups = 3\ntest_groups = 5\n"
    model.write_text(
        f'[pairs]\nfile = "pairs.zip"\nmember = "all.txt"\ntrain = "augmented.tsv"\n{counts}{plan}', "utf-8"
    )
    options = ["--recipe", str(model), "--data", str(tmp_path), "--passes", "2", "--numbers", "0", "--names", "0"]
    monkeypatch.setattr("sys.argv", ["augment_pairs.py", *options, "--join", "0", "--capitals", "0", "--small", "0"])
    augment.main()
    told = read_pairs(tmp_path / "augmented.tsv")
    train = split_groups(pairs, 3, 5).train
    assert sorted(source.rstrip(".") for source, _ in told) == sorted(2 * [source.rstrip(".") for source, _ in train])
    assert read_recipe(augment.HERE / "recipe.toml").pairs.train is not None  # type: ignore[union-attr]
