"""Files of pairs, splits without shared sentences, and batches by length."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from t2r_export.batches.ragged import ByLength, Ragged, by_length
from t2r_export.config.finetune import Shares
from t2r_export.data import pairs as module
from t2r_export.data.pairs import (
    MAX_LINE,
    Pair,
    PairParts,
    group,
    read_archived,
    read_pairs,
    split_groups,
    split_shares,
    write_pairs,
)
from t2r_export.data.vocabulary import train_pair_tokenizer
from t2r_runtime import Tokenizer
from t2r_runtime.errors import UserError

LINKED = [("a", "1"), ("b", "2"), ("a", "3"), ("c", "2"), ("c", "3"), ("d", "4"), ("e", "5"), ("e", "6")]


def linked(count: int, seed: int = 0) -> list[Pair]:
    """Pairs from few sentences, so that many share one."""
    chance = random.Random(seed)
    return [(f"s{chance.randrange(count)}", f"t{chance.randrange(count)}") for _ in range(count)]


def assert_apart(parts: PairParts) -> None:
    """No sentence of one part occurs in another, on either side."""
    for side in (0, 1):
        seen = [{pair[side] for pair in part} for part in (parts.train, parts.valid, parts.test)]
        assert all(seen)
        assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])


def test_pairs_round_trip(tmp_path: Path) -> None:
    pairs = [
        ("Wo ist der Bahnhof?", "Where is the station?"),
        ("Grüß Gott!\N{NO-BREAK SPACE}!", "Hi \N{GRINNING FACE}"),
    ]
    write_pairs(tmp_path / "pairs.tsv", pairs)
    assert read_pairs(tmp_path / "pairs.tsv") == pairs
    (tmp_path / "pairs.tsv").write_bytes(" ä \tb\r\nc\td".encode())
    assert read_pairs(tmp_path / "pairs.tsv") == [("ä", "b"), ("c", "d")]


WRONG = {
    "one column": (b"a\tb\nc\n", "expected 2 columns with a tab between them in line 2 of .*; received 1; "),
    "three columns": (b"a\tb\tc\n", "expected 2 columns .* in line 1 of .*; received 3; "),
    "an empty source": (b"a\tb\n \tc\n", "expected two sentences in line 2 of .*; received an empty one; "),
    "an empty target": (b"a\t\n", "expected two sentences in line 1 of "),
    "an empty line": (b"a\tb\n\n", "columns .* in line 2 of "),
    "not UTF-8": (b"a\tb\n\xff\tc\n", "expected text in UTF-8 in line 2 of "),
    "a long line": (b"a\t" + b"b" * MAX_LINE, "expected at most 65536 bytes in line 1 of "),
    "nothing": (b"", "expected pairs in .*; received an empty file; "),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_line_is_named(name: str, tmp_path: Path) -> None:
    content, message = WRONG[name]
    (tmp_path / "pairs.tsv").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_pairs(tmp_path / "pairs.tsv")


def test_missing_file_and_too_many_pairs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="a file of pairs"):
        read_pairs(tmp_path / "none.tsv")
    write_pairs(tmp_path / "pairs.tsv", LINKED)
    monkeypatch.setattr(module, "MAX_PAIRS", len(LINKED) - 1)
    with pytest.raises(UserError, match="expected at most 7 lines in "):
        read_pairs(tmp_path / "pairs.tsv")


def archive(path: Path, text: bytes, name: str = "deu.txt") -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, text)
    return path


def test_read_archived_unique_pairs(tmp_path: Path) -> None:
    text = b"Hi.\tHallo!\tby one\nHi.\tHallo!\tby another\nRun!\tLauf!\tby one\n"
    path = archive(tmp_path / "pairs.zip", text)
    assert read_archived(path, "deu.txt", (1, 0)) == [("Hallo!", "Hi."), ("Lauf!", "Run!")]
    with pytest.raises(UserError, match="expected at least 4 columns in line 1 of deu.txt in .*; received 3; "):
        read_archived(path, "deu.txt", (3, 0))
    with pytest.raises(UserError, match="received no such file in it"):
        read_archived(path, "fra.txt", (1, 0))


def test_damaged_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_bytes(b"a\tb\n")
    with pytest.raises(UserError, match="expected a whole zip archive"):
        read_archived(tmp_path / "text.zip", "deu.txt", (0, 1))
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("deu.txt", "a\tb\n" * 999)
    damaged = bytearray(memory.getvalue())
    damaged[40] ^= 0x55
    (tmp_path / "damaged.zip").write_bytes(damaged)
    with pytest.raises(UserError, match="expected a whole zip archive"):
        read_archived(tmp_path / "damaged.zip", "deu.txt", (0, 1))


def test_pairs_with_shared_sentence_form_group() -> None:
    assert group(LINKED) == [0, 0, 0, 0, 0, 1, 2, 2]
    assert group([("x", "y"), ("y", "x")]) == [0, 1]  # a sentence counts separately per language
    assert group([]) == []


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_connected_components(seed: int) -> None:
    """Compared with a search through all pairs."""
    pairs = linked(40, seed)
    left, expected = dict(enumerate(pairs)), [0] * len(pairs)
    for number in range(len(pairs)):
        if not left:
            break
        found = [min(left)]
        for place in found:
            source, target = left.pop(place)
            found += [n for n, pair in left.items() if n not in found and (pair[0] == source or pair[1] == target)]
            expected[place] = number
    assert group(pairs) == expected
    assert max(expected) > 2


def test_split_groups_share_no_sentence() -> None:
    pairs = linked(300)
    parts = split_groups(pairs, 9, 7)
    assert_apart(parts)
    assert sorted(parts.train + parts.valid + parts.test) == sorted(pairs)
    numbers = dict(zip(pairs, group(pairs), strict=True))
    counts = [len({numbers[pair] for pair in part}) for part in (parts.train, parts.valid, parts.test)]
    assert counts == [max(numbers.values()) + 1 - 16, 9, 7]
    assert split_groups(pairs, 9, 7) == parts
    assert split_groups(pairs, 9, 7, seed=1) != parts
    assert_apart(split_shares(pairs, Shares(0.1, 0.2)))


def test_random_split_would_share_sentences() -> None:
    """The reason for grouping: the check above fails for a split of single pairs."""
    pairs = linked(300)
    with pytest.raises(AssertionError):
        assert_apart(PairParts(pairs[:200], pairs[200:250], pairs[250:]))


def test_too_few_groups_are_refused() -> None:
    with pytest.raises(UserError, match="2 for valid, 1 for test, and some to train on; received 3 groups"):
        split_groups(LINKED, 2, 1)
    assert len(split_groups(LINKED, 1, 1).train) in (1, 2, 5)


def test_corpus_split_shares_no_sentence(data: Path) -> None:
    path = data / "parallel" / "deu-eng.zip"
    pairs = read_archived(path, "deu.txt", (1, 0))
    assert max(group(pairs)) + 1 == 125_812
    parts = split_groups(pairs, 2000, 2000)
    assert_apart(parts)
    assert sum(map(len, (parts.train, parts.valid, parts.test))) == len(pairs)


def test_ragged_rows_are_padded() -> None:
    rows = [[5, 6, 7], [8], [9, 1, 2, 3], [4, 4]]
    ragged = Ragged.of(rows)
    assert ragged.lengths.tolist() == [3, 1, 4, 2]
    padded, lengths = ragged.padded(torch.tensor([3, 0, 1]))
    assert padded.tolist() == [[4, 4, 0], [5, 6, 7], [8, 0, 0]]
    assert lengths.tolist() == [2, 3, 1]
    assert (padded.dtype, lengths.dtype) == (torch.int64, torch.int64)


def lengths(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(seed)
    first = random.integers(1, 12, count)
    return torch.from_numpy(first), torch.from_numpy(first + random.integers(0, 5, count))


def test_by_length_covers_pairs_within_limit() -> None:
    first, second = lengths(211)
    batches = by_length(first, second, 90)
    assert torch.cat(batches).sort().values.tolist() == list(range(211))
    sizes = [len(batch) * int(first[batch].max() + second[batch].max()) for batch in batches]
    assert max(sizes) <= 90
    used = int(first.sum() + second.sum())
    assert used > 0.85 * sum(sizes)  # little padding, since lengths in a batch are similar
    one, other = torch.tensor([3, 50, 4]), torch.tensor([5, 60, 5])
    assert [batch.tolist() for batch in by_length(one, other, 20)] == [[0, 2], [1]]


def test_batches_are_function_of_step() -> None:
    first, second = lengths(97)
    straight = ByLength(first, second, 70, seed=3)
    order = [straight(step) for step in range(3 * straight.count)]
    for step in (2 * straight.count + 1, 5, straight.count):
        assert torch.equal(ByLength(first, second, 70, seed=3)(step), order[step])
    for epoch in range(3):
        batches = order[epoch * straight.count : (epoch + 1) * straight.count]
        assert torch.cat(batches).sort().values.tolist() == list(range(97))
    assert [b.tolist() for b in order[: straight.count]] != [
        b.tolist() for b in order[straight.count :][: straight.count]
    ]
    assert not torch.equal(ByLength(first, second, 70, seed=4)(0), order[0])


def test_pair_tokenizer_for_both_sides() -> None:
    pairs = [("Der Hügel war weit.", "The hill was far."), ("Die Henne lief.", "The hen ran.")] * 3
    tokenizer = Tokenizer(train_pair_tokenizer(pairs, 290))
    for sentence in ("Die Henne war weit.", "The hen was far. \N{GRINNING FACE}"):
        ids = tokenizer.encode(sentence)
        assert ids[-1] == 0 and 0 not in ids[:-1]
        assert ids[:-1] == tokenizer.encode_documents([sentence])[0]
        assert tokenizer.decode(ids) == sentence


def test_digits_of_pairs_are_tokens_of_their_own() -> None:
    pairs = [("Seit 1998 sind es 12,50.", "Since 1998 it has been 12.50.")] * 9
    tokenizer = Tokenizer(train_pair_tokenizer(pairs, 330))
    ids = tokenizer.encode("Im Jahr 1998: 12,50 und 47110.")[:-1]
    pieces = [tokenizer.decode([token]) for token in ids]
    assert "".join(pieces) == "Im Jahr 1998: 12,50 und 47110."
    assert [piece.strip() for piece in pieces if any(map(str.isdigit, piece))] == list("1998125047110")
