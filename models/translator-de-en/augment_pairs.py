"""Write augmented copies of the train part of the recipe beside this file, a German-English file of pairs.

    python models/translator-de-en/augment_pairs.py [--data FOLDER] [--out FILE] [--passes N] [--names SHARE] …

`t2r build recipe.toml` trains on FILE, by default the recipe's `train` in FOLDER, in place of the train part. Each pass
has every pair once, with the augmentations of the given probabilities. Numbers and names that occur on both sides are
replaced by the same ones on both; otherwise the pair is unchanged. New names are drawn letter by letter from a letter
model of the train part's names, so their tokens are as diverse as those of unseen names. Half of the surnames are
German nouns, as in Frau Fischer: only the title shows that they must not be translated.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path

from t2r_export.config.recipe import read_recipe
from t2r_export.data.pair_sources import read_plan
from t2r_export.data.pairs import Pair, split_groups, write_pairs

HERE = Path(__file__).parent
SHARES = {  # probability of each augmentation
    "numbers": (0.5, "replace numbers, dates, amounts and times by others of the same kind"),
    "names": (0.5, "replace names by invented ones"),
    "titles": (0.0, "replace a person's name by a title and a surname"),
    "join": (0.15, "concatenate two to four pairs"),
    "stop": (0.1, "remove the final full stop of both sides"),
    "capitals": (0.03, "uppercase both sides"),
    "small": (0.05, "lowercase the source"),
}
NUMBER = re.compile(r"(\d+(?:[.,:/]\d+)*)(st|nd|rd|th)?\b")
WORD = re.compile(r"[^\W\d_]+")
YEARS = range(1900, 2030)  # a year becomes another year
DAYS = range(2, 29)  # in pairs with a month: valid in every month
HOURS = range(2, 13)  # in sources with Uhr, and of times: valid on 12-hour and 24-hour clocks
MONTHS = re.compile(
    r"\b(Jan(uary?)?|Feb(ruary?)?|Mar(ch)?|März?|Apr(il)?|Ma[iy]|Jun[ei]?|Jul[iy]?|Aug(ust)?|Sept?(ember)?|O[ck]t(ober)?"
    r"|Nov(ember)?|De[cz](ember)?)\b"
)
WOMEN = {"Frau": "Ms.", "Tante": "Aunt"}  # titles and their translations
MEN = {"Herr": "Mr.", "Onkel": "Uncle", "Doktor": "Doctor"}
INFLECTED = {"Herr": "Herrn"}  # after a preposition
ALONE = rf"({WORD.pattern})(?!['’-]| [A-ZÄÖÜ])"  # no genitive, not part of a longer name
FIRST = (re.compile("^" + ALONE), re.compile("^" + ALONE))
AFTER = (re.compile(r"\b(?:mit|für|ohne) " + ALONE), re.compile(r"\b(?:with|for|without) " + ALONE))
SHE, HE = re.compile(r"\b(she|her|hers|herself)\b", re.I), re.compile(r"\b(he|him|his|himself)\b", re.I)
LEAST, MOST = 3, 12  # letters of a name
END = "\n"  # end of a name in the letter chain
RARE = 0.1  # maximum ratio of lowercase to capitalized occurrences of a name


class Augmenter:
    """Augments the pairs of a pass; `pairs` is the train part, in which names are found."""

    def __init__(self, pairs: Iterable[Pair], shares: Mapping[str, float], seed: int) -> None:
        self.shares, self.seed, pairs = dict.fromkeys(SHARES, 0.0) | dict(shares), seed, list(pairs)
        self.names, self.nouns = found_names(pairs), found_nouns(pairs)
        self.chain = letter_chain(self.names)

    def __call__(self, pairs: Sequence[Pair], number: int) -> list[Pair]:
        """The pairs of pass `number`, augmented and shuffled; a function of seed and number."""
        drawn, shares = random.Random(f"{self.seed} {number}"), self.shares
        made = joined([self._told(pair, drawn) for pair in pairs], shares["join"], drawn)
        for name, change in (("stop", without_stop), ("capitals", in_capitals), ("small", without_capitals)):
            made = [change(pair) if drawn.random() < shares[name] else pair for pair in made]
        return made

    def _told(self, pair: Pair, drawn: random.Random) -> Pair:
        """Replace names and numbers, and give names titles, with the configured probabilities."""
        if drawn.random() < self.shares["titles"] and self.names:
            surname = drawn.choice(self.nouns) if self.nouns and drawn.random() < 0.5 else made_name(self.chain, drawn)
            pair = with_title(pair, self.names, surname, drawn)
        if drawn.random() < self.shares["numbers"]:
            pair = with_numbers(pair, drawn)
        if drawn.random() < self.shares["names"]:
            pair = with_names(pair, self.names, self.chain, drawn)
        return pair


def with_numbers(pair: Pair, drawn: random.Random) -> Pair:
    """Replace numbers if both sides have the same digits, as 4,20 and 4.20."""
    found = [{digits(match[1]) for match in NUMBER.finditer(side)} for side in pair]
    if found[0] != found[1]:
        return pair
    texts = {digits(match[1]): match[1] for side in pair for match in NUMBER.finditer(side)}
    of = HOURS if "Uhr" in pair[0] else DAYS if all(map(MONTHS.search, pair)) else range(0)
    others = {runs: _other(runs, texts[runs], of, drawn) for runs in sorted(found[0])}
    if len(set(others.values())) < len(others):  # two numbers became equal
        return pair
    source, target = (NUMBER.sub(lambda match: _written(match, others), side) for side in pair)
    return source, target


def digits(number: str) -> tuple[str, ...]:
    """Split a number into its runs of digits."""
    return tuple(re.findall(r"\d+", number))


def _other(runs: tuple[str, ...], text: str, of: range, drawn: random.Random) -> tuple[str, ...]:
    """Draw new digits of the same kind: times, dates, years, hours or days (`of`), else as many digits. 0 and 1 are
    kept, because they decide between singular and plural."""
    if ":" in text and len(runs) == 2:
        return (str(drawn.choice(HOURS)), f"{drawn.randint(1, 59):02}")
    value = int(runs[0])
    if len(runs) == 3 and int(runs[2]) in YEARS and "," not in text:
        return tuple(str(drawn.choice(one)) for one in (DAYS, HOURS, YEARS))
    if len(runs) == 1 and (value < 2 or runs[0].startswith("0")):
        return runs
    if len(runs) == 1 and value in YEARS:
        return (str(drawn.choice(YEARS)),)
    if len(runs) == 1 and value in of:
        return (str(drawn.choice(of)),)
    return (_like(runs[0], 2, drawn), *(_like(run, 0, drawn) for run in runs[1:]))


def _like(run: str, least: int, drawn: random.Random) -> str:
    """Draw a number with the same number of digits."""
    low = max(least, 10 ** (len(run) - 1) if least and len(run) > 1 else 0)
    return str(drawn.randrange(low, 10 ** len(run))).zfill(len(run))


def _written(match: re.Match[str], others: dict[tuple[str, ...], tuple[str, ...]]) -> str:
    """Write the new digits with the separators of the old number, and an English ordinal with its suffix."""
    text, ordinal = match[1], match[2]
    new = iter(others[digits(text)])
    text = re.sub(r"\d+", lambda _: next(new), text)
    return text + (_ending(int(digits(text)[-1])) if ordinal else "")


def _ending(value: int) -> str:
    special = value % 100 in (11, 12, 13)
    return "th" if special else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")


def found_names(pairs: Iterable[Pair]) -> frozenset[str]:
    """Find names: words identical on both sides, capitalized within a target and hardly ever lowercase; no months."""
    alike, small = Counter[str](), Counter[str]()
    for source, target in pairs:
        words = WORD.findall(target)
        small.update(word for word in words if word.islower())
        alike.update({word for word in words[1:] if len(word) >= LEAST and word.istitle()} & set(WORD.findall(source)))
    found = (word for word, times in alike.items() if small[word.lower()] <= RARE * times)
    return frozenset(word for word in found if not MONTHS.fullmatch(word))


def found_nouns(pairs: Iterable[Pair]) -> tuple[str, ...]:
    """Find nouns: words of LEAST to MOST letters, capitalized within a source and not in its target."""
    found = set[str]()
    for source, target in pairs:
        words = (word for word in WORD.findall(source)[1:] if LEAST <= len(word) <= MOST and word.istitle())
        found.update(set(words) - set(WORD.findall(target)))
    return tuple(sorted(found))


def letter_chain(names: Iterable[str]) -> dict[str, str]:
    """Letters that follow each two letters in names, repeated by frequency; at the start, fewer letters precede."""
    following: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        for place, letter in enumerate(name + END):
            following[name[max(0, place - 2) : place]].append(letter)
    return {before: "".join(letters) for before, letters in following.items()}


def made_name(chain: Mapping[str, str], drawn: random.Random) -> str:
    """Draw a name of LEAST to MOST letters, such as Tarburg, from a `letter_chain`."""
    name = ""
    while len(name) < LEAST:
        name = ""
        while len(name) < MOST and (letter := drawn.choice(chain[name[-2:]])) != END:
            name += letter
    return name


def with_names(pair: Pair, names: Set[str], chain: Mapping[str, str], drawn: random.Random) -> Pair:
    """Replace names that both sides have, genitives included (Toms Hund, Tom's dog)."""
    sides = [set(WORD.findall(side)) for side in pair]
    here = sorted(name for name in sides[1] & names if {name, name + "s"} & sides[0])
    others = {name: made_name(chain, drawn) for name in here}
    if len(set(others.values())) < len(others):  # two names became equal
        return pair
    others |= {name + "s": other + "s" for name, other in others.items() if name + "s" not in others}
    source, target = (WORD.sub(lambda match: others.get(match[0], match[0]), side) for side in pair)
    return source, target


def with_title(pair: Pair, names: Set[str], surname: str, drawn: random.Random) -> Pair:
    """Replace a person's name by a title and a surname: Tom sang becomes Frau Fischer sang, mit Tom mit Herrn Fischer.

    A name is a person's if both sides begin with it, or have it after mit, für or ohne. Pronouns decide the titles.
    """
    fit = ({} if HE.search(pair[1]) else WOMEN) | ({} if SHE.search(pair[1]) else MEN)
    for places, inflected in ((FIRST, {}), (AFTER, INFLECTED)):
        found = [place.search(side) for place, side in zip(places, pair, strict=True)]
        here = {match[1] for match in found if match}
        once = all(found) and len(here) == 1 and all(WORD.findall(side).count(*here) == 1 for side in pair)
        if fit and once and here <= names:
            title, (name,) = drawn.choice(sorted(fit)), here
            source, target = f"{inflected.get(title, title)} {surname}", f"{fit[title]} {surname}"
            return pair[0].replace(name, source, 1), pair[1].replace(name, target, 1)
    return pair


def joined(pairs: Sequence[Pair], share: float, drawn: random.Random) -> list[Pair]:
    """Shuffle pairs, and concatenate about this share of them in groups of two to four; every pair is used once."""
    order = drawn.sample(pairs, len(pairs))
    made: list[Pair] = []
    while order:
        # a group of three pairs on average, so groups are chosen less often than pairs are joined
        count = drawn.randint(2, 4) if drawn.random() < share / (3 - 2 * share) else 1
        line = [order.pop() for _ in range(min(count, len(order)))]
        made.append((" ".join(source for source, _ in line), " ".join(target for _, target in line)))
    return made


def without_stop(pair: Pair) -> Pair:
    """Remove the final full stop of both sides; other marks are kept."""
    ends = all(side.endswith(".") and not side.endswith("..") and len(side) > 1 for side in pair)
    return (pair[0][:-1], pair[1][:-1]) if ends else pair


def in_capitals(pair: Pair) -> Pair:
    """Uppercase both sides."""
    return pair[0].upper(), pair[1].upper()


def without_capitals(pair: Pair) -> Pair:
    """Lowercase the source; the target keeps its case."""
    return pair[0].lower(), pair[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=HERE / "recipe.toml")
    parser.add_argument("--data", type=Path, default=HERE, help="the folder that t2r build --data names")
    parser.add_argument("--out", type=Path, help="default: the recipe's `train` in FOLDER")
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    for name, (share, text) in SHARES.items():
        parser.add_argument(f"--{name}", type=float, default=share, metavar="SHARE", help=f"{text} (default {share})")
    options = parser.parse_args()
    recipe = read_recipe(options.recipe)
    plan = recipe.pairs
    if plan is None or plan.train is None:
        parser.error(f"{options.recipe} names no file as `train` in [pairs]")
    pairs, _ = read_plan(plan, options.data, recipe.held_out)
    train = split_groups(pairs, plan.valid_groups, plan.test_groups).train
    augment = Augmenter(train, {name: getattr(options, name) for name in SHARES}, options.seed)
    made = [pair for number in range(options.passes) for pair in augment(train, number)]
    write_pairs(options.out or options.data / plan.train, made)


if __name__ == "__main__":
    main()
