"""Sessions continue from kept states; the least recently used are dropped first."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from runtime import graphs
from runtime.conftest import Open
from runtime.graphs import random_states
from runtime.serve.server import letters, running
from t2r_runtime import Decoder, UserError
from t2r_runtime.serve.sessions import Sessions, digest_of, session_key
from t2r_runtime.session import snapshot

LARGEST = 10_000  # bytes; a snapshot of these tests has 1,281


def test_conversation_reads_only_what_is_new(tmp_path: Path) -> None:
    """Each prompt extends the previous one and its answer; a dropped answer costs the prompt's last token."""
    with running(letters(tmp_path)) as server:
        options = {"max_tokens": 5, "seed": 1, "ignore_eos": True, "session_id": "s"}
        first = server.tokens([1, 2, 3], **options)[0]
        text = [1, 2, 3, *first, 4, 5]
        second = server.complete(text, **options)
        assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}, "all but the newest token"
        assert second["choices"][0]["tokens"] == server.tokens(text, **{**options, "session_id": None})[0]
        again = server.complete(text, **options)
        assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": 9}, "all but the last of the same prompt"
        assert again["choices"] == second["choices"]
        other = server.complete([*text, 7], **options)
        assert other["usage"]["prompt_tokens_details"] == {"cached_tokens": 9}
        penalized = {**options, "repetition_penalty": 1.7, "temperature": 0}
        more = [*text, 7, 7, 3]
        assert server.tokens(more, **penalized) == server.tokens(more, **{**penalized, "session_id": None})
        assert server.complete([1, 2, 3, 4], n=2, **options)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        server.good("/metrics")
        assert server.complete([5] * 9, max_tokens=0, session_id="w")["usage"]["completion_tokens"] == 0
        warm = server.complete([*[5] * 9, 1], max_tokens=1, session_id="w")
        assert warm["usage"]["prompt_tokens_details"] == {"cached_tokens": 9}


@pytest.fixture
def tokens() -> np.ndarray:
    return np.arange(2, 9)


def test_longest_prefix_is_found(opened: Open, tokens: np.ndarray, tmp_path: Path) -> None:
    signature = opened().signature
    for folder in (None, tmp_path / "a" / "keep"):
        sessions = Sessions(folder, 10**6, LARGEST)
        key = session_key(b"graph", "me")
        states = [random_states("constant", 1, seed=seed) for seed in (1, 2)]
        sessions.put(key, signature, "prompt", tokens[:3], states[0])
        sessions.put(key, signature, "end", tokens[:5], states[1])
        for known in (sessions, *([] if folder is None else [Sessions(folder, 10**6, LARGEST)])):
            for end, count in ((7, 5), (6, 5), (5, 3), (4, 3), (3, 0), (1, 0)):
                found = known.find(key, signature, tokens[:end])
                assert (0 if found is None else found.position) == count
                if found is not None:
                    expected = states[count == 5]
                    assert found.history == tokens[:count].tolist()
                    assert all(np.array_equal(found.states[name], expected[name]) for name in expected)
            assert known.find(session_key(b"graph", "you"), signature, tokens) is None
            assert known.find(session_key(b"other", "me"), signature, tokens) is None
            assert known.find(key, signature, tokens + 1) is None


def test_a_slot_holds_one_state(opened: Open, tokens: np.ndarray, tmp_path: Path) -> None:
    signature = opened().signature
    sessions = Sessions(tmp_path, 10**6, LARGEST)
    key = session_key(b"", "me")
    for count in (3, 4, 5, 5):
        sessions.put(key, signature, "end", tokens[:count], random_states("constant", 1, seed=count))
    [file] = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert file.name.split(".")[1:3] == ["end", "5"]
    assert sessions.find(key, signature, tokens[:5]) is None


def test_two_servers_share_a_folder(opened: Open, tokens: np.ndarray, tmp_path: Path) -> None:
    """Each finds what the other has kept, also while both write and delete."""
    signature, key = opened().signature, session_key(b"", "me")
    states = random_states("constant", 1)
    both = [Sessions(tmp_path, 10**6, LARGEST), Sessions(tmp_path, 10**6, LARGEST)]
    for count in (2, 3, 4, 5):
        mine, other = both[count % 2], both[1 - count % 2]
        mine.put(key, signature, "end", tokens[:count], states)
        found = other.find(key, signature, tokens)
        assert found is not None and found.position == count
    assert len(list(tmp_path.rglob("*.state"))) == 1

    def write(sessions: Sessions) -> None:
        for count in range(1, 201):
            some = tokens[: 1 + count % 6]
            sessions.put(key, signature, "end", some, states)
            found = sessions.find(key, signature, tokens)
            assert found is not None
            for name, state in found.states.items():
                np.testing.assert_array_equal(state, states[name])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, both))


def test_two_engines_share_sessions(
    opened: Open, tokens: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of the folder is right after each of two threads has kept states."""
    signature, states = opened().signature, random_states("constant", 1)
    sessions = Sessions(tmp_path, 10**6, LARGEST)
    right = Path.stat

    def slow(path: Path, **options: bool) -> os.stat_result:
        time.sleep(1e-4)
        return right(path, **options)

    monkeypatch.setattr(Path, "stat", slow)

    def keep(engine: str) -> None:
        for count in range(100):
            sessions.put(session_key(b"", f"{engine}{count % 9}"), signature, "end", tokens[: 1 + count % 6], states)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(keep, "ab"))
    assert sessions._stored == sum(path.stat().st_size for path in tmp_path.rglob("*.state"))


def test_least_recently_used_go_first(opened: Open, tokens: np.ndarray, tmp_path: Path) -> None:
    signature = opened().signature
    states = random_states("constant", 1)
    size = sum(array.nbytes for array in states.values())
    keys = [session_key(b"", str(n)) for n in range(5)]
    memory = Sessions(None, 3 * size, LARGEST)
    for key in keys[:3]:
        memory.put(key, signature, "end", tokens[:4], states)
    assert memory.find(keys[0], signature, tokens) is not None
    memory.put(keys[3], signature, "end", tokens[:4], states)
    assert [memory.find(key, signature, tokens) is not None for key in keys] == [True, False, True, True, False]
    assert memory.kept_bytes == 3 * size
    disk = Sessions(tmp_path, 0, LARGEST)
    disk.put(keys[0], signature, "end", tokens[:4], states)
    [file] = tmp_path.rglob("*.state")
    disk = Sessions(tmp_path, 3 * file.stat().st_size, LARGEST)
    for age, key in enumerate(keys[1:]):
        for path in tmp_path.rglob("*.state"):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 100))
        if age == 2:
            assert disk.find(keys[0], signature, tokens) is not None
            assert Sessions(tmp_path, 10**6, LARGEST).find(keys[0], signature, tokens) is not None
        disk.put(key, signature, "end", tokens[:4], states)
    left = {path.name.split(".")[0] for path in tmp_path.rglob("*.state")}
    assert left == {keys[0], keys[3], keys[4]}


def test_files_that_no_server_wrote_evict_nothing(opened: Open, tokens: np.ndarray, tmp_path: Path) -> None:
    """A sparse file of 1 TiB, a link and a folder under names of sessions; one is that of the session itself."""
    signature, states = opened().signature, random_states("constant", 1)
    largest = snapshot.most_bytes(signature)
    sessions = Sessions(tmp_path, 3 * largest, largest)
    keys = [session_key(b"", str(n)) for n in range(5)]
    sessions.put(keys[0], signature, "end", tokens[:4], states)
    [file] = tmp_path.rglob("*.state")
    assert file.stat().st_size <= largest
    planted = []
    for number, key in enumerate((keys[0], *keys[3:])):
        path = tmp_path / key[:2] / f"{key}.end.5.{digest_of(tokens[:5])}.state"
        path.parent.mkdir(exist_ok=True)
        planted.append(path)
        if number == 0:
            with path.open("wb") as sparse:
                sparse.truncate(1 << 40)
        elif number == 1:
            path.symlink_to(file)
        else:
            path.mkdir()
    for key in keys[1:3]:
        sessions.put(key, signature, "end", tokens[:4], states)
    anew = Sessions(tmp_path, 3 * largest, largest)
    assert sessions._stored == anew._stored == 3 * file.stat().st_size
    anew.put(keys[2], signature, "end", tokens[:4], states)
    assert [anew.find(key, signature, tokens) is not None for key in keys] == [True, True, True, False, False]
    assert all(path.is_symlink() or path.exists() for path in planted)


def test_damaged_snapshot_is_deleted(opened: Open, tokens: np.ndarray, tmp_path: Path) -> None:
    signature = opened().signature
    sessions, key = Sessions(tmp_path, 10**6, LARGEST), session_key(b"", "me")
    sessions.put(key, signature, "prompt", tokens[:3], random_states("constant", 1))
    sessions.put(key, signature, "end", tokens[:5], random_states("constant", 1))
    [file] = tmp_path.rglob("*.end.*")
    file.write_bytes(file.read_bytes()[:200])
    beside = [file.with_name(name) for name in ("notes.txt", f"{key}.end.5.state", f"..{key}.end.5.{'0' * 32}.state")]
    for path in beside:
        path.write_text("of another program")
    found = Sessions(tmp_path, 10**6, LARGEST).find(key, signature, tokens)
    assert found is not None
    assert found.position == 3
    assert not file.exists()
    assert all(path.exists() for path in beside)
    [file] = tmp_path.rglob("*.prompt.*")
    other = file.with_name(file.name.replace(".prompt.3.", ".prompt.2."))
    file.rename(other)
    assert Sessions(tmp_path, 10**6, LARGEST).find(key, signature, tokens) is None, (
        "the name says another number of tokens"
    )


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="expected a writable folder .*; received .*; name another"):
        Sessions(tmp_path / "file" / "keep", 1, LARGEST)


def test_full_disk_leaves_the_answer(tmp_path: Path) -> None:
    """A state that cannot be kept gives a line on stderr."""
    keep = tmp_path / "keep"
    with running(letters(tmp_path), "--keep", keep) as server:
        for number in range(256):
            (keep / f"{number:02x}").write_text("in the way")
        fields = {"max_tokens": 3, "temperature": 0, "ignore_eos": True}
        expected = server.tokens([1, 2], **fields)
        assert server.tokens([1, 2], session_id="a", **fields) == expected
        assert server.end() == 0
        assert sum(line.startswith("t2r-run: a state was not kept: ") for line in server.said) == 2


def test_other_graph_has_other_sessions(tmp_path: Path) -> None:
    """Two graphs of one checkpoint with equal state shapes."""
    two = [letters(tmp_path, name, kind="constant", producer=f"tests {name}") for name in ("one", "two")]
    with running(*two, "--keep", tmp_path / "keep") as server:
        server.complete([1, 2, 3], model="one", session_id="s", max_tokens=1)
        for name, count in (("two", 0), ("one", 3)):
            found = server.complete([1, 2, 3, 4], model=name, session_id="s", max_tokens=1)
            assert found["usage"]["prompt_tokens_details"] == {"cached_tokens": count}
    assert Decoder(two[0]).signature.vocab_size == graphs.VOCABULARY
