"""The token cache equals fresh tokenization, also after failures."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import texts
from disk import full_disk
from t2r_export.cli import main
from t2r_export.config.finetune import SEPARATOR, Shares
from t2r_export.data import corpus as reading
from t2r_export.data import shards
from t2r_export.data.corpus import read_corpus
from t2r_export.data.documents import parted
from t2r_export.data.shards import Corpus
from t2r_export.python import run, start
from t2r_runtime import Tokenizer
from t2r_runtime.cli import progress as progressing
from t2r_runtime.errors import UserError

SHARES = Shares(0.2, 0.1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("T2R_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def read(path: Path, shares: Shares | None = SHARES, **options: Any) -> Corpus:
    return read_corpus([path], texts.tokenizer(), texts.TEACHER, shares, **options)


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


@given(
    whole=st.lists(st.text(texts.LETTERS[:6], min_size=1, max_size=20), min_size=1, max_size=40),
    shares=st.sampled_from([SHARES, Shares(0.2, 0.1, "hash"), None]),
)
def test_shards_equal_token_lists(
    whole: list[str], shares: Shares | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in whole))
    found = read(path, shares)
    parts: list[list[int]] = [[], [], []]
    for part, document in parted(whole, shares):
        (ids,) = Tokenizer(texts.tokenizer()).encode_documents([document])
        parts[part] += [texts.BOS, *ids]
    assert [part.tolist() for part in (found.train, found.valid, found.test)] == parts
    hashes = (hashlib.sha256(np.array(part, np.int32).tobytes()).digest() for part in parts)
    assert found.sha256 == hashlib.sha256(b"".join(hashes)).hexdigest()


def test_corpus_is_tokenized_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = texts.write_text(tmp_path / "text")
    first = read(path)
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"text": "ab", "b": "cd"}\n')
    kept = [read(lines, None).folder, first.folder]
    monkeypatch.setattr(reading, "encoded", None)
    again = read(path.rename(tmp_path / "moved"))
    assert np.array_equal(first.tokens, again.tokens) and first.sha256 == again.sha256
    assert again.folder == first.folder and entries(cache) == sorted(folder.name for folder in kept if folder)
    for other in ({"separator": "x"}, {"shares": None}, {"shares": Shares(0.2, 0.1, "hash")}):
        with pytest.raises(TypeError):
            read(tmp_path / "moved", **other)
    with pytest.raises(TypeError):
        read(lines, None, field="b")


def test_shards_do_not_depend_on_processes(cache: Path, tmp_path: Path) -> None:
    path = texts.write_text(tmp_path / "text")
    one = read(path, processes=1)
    assert one.folder is not None
    before = {file.name: file.read_bytes() for file in one.folder.iterdir()}
    for file in one.folder.iterdir():
        file.unlink()
    counts: list[int] = []
    assert read(path, processes=2, on_progress=counts.append).folder == one.folder
    assert counts == sorted(counts) and counts[-1] == len(one.tokens)
    assert {file.name: file.read_bytes() for file in one.folder.iterdir()} == before


@pytest.mark.parametrize("size, dtype", [(1 << 16, "<u2"), ((1 << 16) + 1, "<u4")])
def test_token_dtype_depends_on_vocabulary(size: int, dtype: str, cache: Path) -> None:
    ids = np.array([0, size - 1])
    found = shards.cached({}, size, lambda: [(0, ids, 1), (2, ids[1:], 1)])
    assert (found.tokens.dtype, found.tokens.tolist()) == (np.dtype(dtype), [0, size - 1, size - 1])
    with pytest.raises(UserError, match=f"tokens from 0 to {size - 1}, .*received tokens from {size} to {size}"):
        shards.cached({"other": 1}, size, lambda: [(0, ids[1:] + 1, 1)])
    assert len(entries(cache)) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "tokens").write_bytes((folder / "tokens").read_bytes()[:-2]),
        lambda folder: (folder / "tokens").unlink(),
        lambda folder: (folder / "index.json").write_text("{"),
        lambda folder: (folder / "index.json").write_text("[]"),
    ],
)
def test_incomplete_entry_is_rebuilt(damage: Any, cache: Path, tmp_path: Path) -> None:
    path = texts.write_text(tmp_path / "text")
    first = read(path)
    tokens, folder = first.tokens.copy(), first.folder
    assert folder is not None
    damage(folder)
    assert np.array_equal(read(path).tokens, tokens)
    assert entries(cache) == [folder.name]


def test_shards_of_another_tokenizer_are_refused(cache: Path, tmp_path: Path) -> None:
    path = texts.write_text(tmp_path / "text")
    folder = read(path).folder
    assert folder is not None
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**index, "tokenizer": "0" * 64}))
    with pytest.raises(UserError, match=re.escape(f"in {folder}; received those of another tokenizer; remove that")):
        read(path)


def changed_tokens(where: int, value: int) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        tokens = np.fromfile(folder / "tokens", "<u2")
        tokens[where] = value
        tokens.tofile(folder / "tokens")

    return change


def changed_index(**changes: Any) -> Callable[[Path], object]:
    """An entry whose index has other values; a callable gets the value before."""

    def change(folder: Path) -> None:
        index = json.loads((folder / "index.json").read_text())
        for name, value in changes.items():
            index[name] = value(index[name]) if callable(value) else value
        (folder / "index.json").write_text(json.dumps(index))

    return change


def changed_text(folder: Path, old: str, new: str) -> None:
    (folder / "index.json").write_text((folder / "index.json").read_text().replace(old, new))


@pytest.mark.parametrize(
    "change, what",
    [
        (changed_tokens(0, 3), "tokens"),
        (changed_tokens(-1, 3), "tokens"),
        (changed_tokens(-5, 60_000), "tokens"),  # beyond the vocabulary
        (changed_index(rows=lambda rows: [rows[0] - 9, rows[1] + 9, rows[2]]), "index"),
        (changed_index(rows=lambda rows: [-rows[0], 2 * rows[0] + rows[1], rows[2]]), "index"),
        (changed_index(rows=lambda rows: [rows[2], rows[1], rows[0]]), "index"),
        (lambda folder: changed_text(folder, '"rows"', '"row"'), "index"),
        (changed_index(documents=[1, 1, 1]), "index"),
        (changed_index(sha256=5), "index"),
        (changed_index(sha256="0" * 64), "index"),
        (changed_index(shape=[1]), "index"),
        (changed_index(index_sha256=5), "index"),
    ],
)
def test_changed_entry_is_refused(change: Callable[[Path], object], what: str, cache: Path, tmp_path: Path) -> None:
    path = texts.write_text(tmp_path / "text")
    before = read(path)
    assert before.folder is not None
    tokens = before.tokens.copy()
    change(before.folder)
    expected = (
        f"the {what} that t2r wrote to {before.folder}; received changed {what}; remove it with t2r tokenize --remove"
    )
    with pytest.raises(UserError, match=re.escape(f"{expected} {before.folder.name}, and run again")):
        read(path)
    assert main(["tokenize", "--remove", before.folder.name]) == 0
    assert np.array_equal(read(path).tokens, tokens)


def test_oldest_entries_are_removed(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [texts.write_text(tmp_path / f"{n}", 30 + n) for n in range(4)]
    found = [read(path) for path in paths[:3]]
    for age, each in enumerate(found):
        assert each.folder is not None
        os.utime(each.folder / "index.json", (age, age))
    tokens = found[1].tokens.copy()
    read(paths[0])  # marks it as used now
    monkeypatch.setenv("T2R_CACHE_BYTES", str(sum(found[n].tokens.nbytes for n in range(3)) + 2000))
    last = read(paths[3])
    kept = [each.folder.name for each in (found[0], found[2], last) if each.folder]
    assert entries(cache) == sorted(kept)
    assert np.array_equal(found[1].tokens, tokens)  # a removed entry stays readable
    monkeypatch.setenv("T2R_CACHE_BYTES", "many")
    with pytest.raises(UserError, match="a number of bytes in T2R_CACHE_BYTES; received many"):
        read(paths[1])
    kept = entries(cache)
    with pytest.raises(UserError, match="a number of bytes in T2R_CACHE_BYTES; received many"):
        read(texts.write_text(tmp_path / "new", 41))
    assert entries(cache) == kept  # refused before it was tokenized


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("a.txt", {"field": "body"}, "a .jsonl, .parquet or .arrow file with --split field; received other files"),
        ("a.jsonl", {"separator": "--"}, "a text file with --split separator; received other files"),
        ("a.npy", {"separator": "--"}, "a text file with --split separator"),
        ("a.npy", {"field": "body"}, "a .jsonl, .parquet or .arrow file with --split field"),
    ],
)
def test_reading_options_of_other_files(
    name: str, options: dict[str, str], message: str, cache: Path, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.touch()
    with pytest.raises(UserError, match=message):
        read(path, **options)


def test_full_disk_leaves_nothing(cache: Path, tmp_path: Path) -> None:
    path = texts.write_text(tmp_path / "text")
    with full_disk(500), pytest.raises(UserError, match="to be able to write tokens to .*File too large; make room"):
        read(path)
    assert entries(cache) == []
    assert len(read(path).tokens)


def test_invalid_cache_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = texts.write_text(tmp_path / "text")
    monkeypatch.setenv("T2R_CACHE", str(path / "cache"))
    with pytest.raises(UserError, match="to be able to write tokens to .*Not a directory; .*T2R_CACHE"):
        read(path)


def test_cache_that_is_not_writable_is_named(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = texts.write_text(tmp_path / "text")
    monkeypatch.setattr(os, "access", lambda folder, mode: Path(folder) != cache)  # root can write anywhere
    with pytest.raises(UserError, match=f"to write tokens to {cache}; received Permission denied; make room there"):
        read(path)


def test_changing_file_is_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = texts.write_text(tmp_path / "text")
    whole, real = path.read_text(), reading.encoded

    def changing(*arguments: Any) -> Any:
        yield from real(*arguments)
        path.write_text(whole + "more")

    monkeypatch.setattr(reading, "encoded", changing)
    with pytest.raises(UserError, match="files that do not change while they are read; received changed files"):
        read(path)
    assert entries(cache) == []
    path.unlink()
    with pytest.raises(UserError, match="text, which does not exist"):
        read(path)


SLOW = """
import sys, time
import texts
from pathlib import Path
from t2r_export.data import corpus
real = corpus.encoded
def slow(*arguments):
    for each in real(*arguments):
        print("ready", flush=True)
        yield each
        time.sleep(60)
corpus.encoded = slow
corpus.read_corpus([Path(sys.argv[1])], texts.tokenizer(), texts.TEACHER)
"""


def test_entry_of_killed_process_is_never_read(cache: Path, tmp_path: Path) -> None:
    path = texts.write_text(tmp_path / "text")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with start("-c", SLOW, str(path), env=environment, stdout=-1) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    assert any(name.endswith(".part") for name in entries(cache))
    found = read_corpus([path], texts.tokenizer(), texts.TEACHER)
    assert found.folder is not None and entries(cache) == [found.folder.name]
    assert found.documents == (36, 2, 2)


MEASURED = """
import resource, sys
from pathlib import Path
import texts
from t2r_export.data.corpus import Windows, held_out_windows, read_corpus
def most(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_corpus([Path(sys.argv[1])], texts.tokenizer(), texts.TEACHER)
before = most()
corpus = read_corpus([Path(sys.argv[2])], texts.tokenizer(), texts.TEACHER, processes=2)
Windows(corpus.train, 256, 16, 0)(3)
held_out_windows(corpus.test, 256, 32)
print(most() - before, len(corpus.tokens))
"""


@pytest.mark.slow
@pytest.mark.parametrize("lines", [300, 1 << 30])  # many documents; one
def test_memory_is_constant(lines: int, cache: Path, tmp_path: Path) -> None:
    few, path = texts.write_text(tmp_path / "few"), tmp_path / "text"
    with path.open("w") as file:
        for n in range(50_000):
            file.write(f"{SEPARATOR}\n" if n % lines == lines - 1 else "abc def gab hah. " * 3 + "\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code, out, err = run("-c", MEASURED, str(few), str(path), env=environment)
    assert (code, err) == (0, "")
    kilobytes, tokens = map(int, out.split())
    assert tokens > 2_500_000 and kilobytes < 90_000  # lists of tokens took 180 MB


def test_tokenize_shows_makes_and_removes(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, text = texts.write_teacher(tmp_path / "m.pt"), texts.write_text(tmp_path / "text")

    def told(*words: object) -> Any:
        assert main(["tokenize", *map(str, words), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert told() == {"folder": str(cache), "bytes": 0, "most_bytes": 1 << 35, "removed": [], "texts": []}
    monkeypatch.setattr(progressing, "LOG_SECONDS", 0)
    assert main(["tokenize", str(model), str(text), "--json"]) == 0
    out, said = capsys.readouterr()
    shown = json.loads(out)
    assert said.splitlines()[-1] == f"tokens: {sum(part['tokens'] for part in shown['parts']):,}"
    found, whole = read_corpus([text], texts.tokenizer(), texts.TEACHER), read(text, None)
    assert shown["folder"] == str(found.folder) and shown["sha256"] == found.sha256
    assert shown["parts"][1] == {"part": "valid", "documents": 2, "tokens": len(found.valid)}
    assert found.folder is not None and whole.folder is not None and found.folder != whole.folder
    os.utime(found.folder / "index.json", (9, 9))
    (one, other) = told()["texts"]
    assert other["folder"] == str(found.folder) and other["texts"] == [str(text)] and other["used"] == 9
    assert other["rows"] == [len(found.part(part)) for part in ("train", "valid", "test")]
    assert other["tokenizer"] == hashlib.sha256(texts.tokenizer().encode()).hexdigest()
    assert one["documents"] == [40, 0, 0] and one["bytes"] == whole.tokens.nbytes
    (whole.folder / "index.json").write_text("{")
    assert main(["tokenize"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.split(r"\s\s+", lines[2])[:3] == [found.folder.name[:8], "40", f"{len(found.tokens):,}"]
    assert lines[-1] == f"{cache}: {4 * len(found.tokens) / 1000:.3g} kB of at most 34.4 GB"
    for wrong, received in (("x", "'x', with which no keys begin"), ("", "an empty text")):
        assert main(["tokenize", "--remove", wrong]) == 2
        assert f"received {received}; t2r tokenize shows the keys" in capsys.readouterr().err
    assert told("--remove", found.folder.name[:9])["removed"] == [str(found.folder)]
    assert entries(cache) == [whole.folder.name]
    assert told("--remove", "all")["texts"] == [] and entries(cache) == []
    assert len(found.tokens) == len(whole.tokens)  # still mapped


def test_truncated_token_ids_are_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.zeros((50_000, 3), np.int64))
    real = reading._mapped

    def shorter(path: Path) -> Any:
        found = real(path)
        os.truncate(path, 7000)
        return found

    monkeypatch.setattr(reading, "_mapped", shorter)
    with pytest.raises(UserError, match="files that do not change while they are read"):
        read_corpus([path], None, texts.TEACHER)
    assert entries(cache) == []
