"""Requests continue from kept states of the tokens before them."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.conftest import Open
from runtime.graphs import VOCABULARY, random_states
from runtime.serve.server import Client, letters, running, within
from t2r_runtime import Decoder, Sampling, UserError
from t2r_runtime.decode.score import log_probabilities
from t2r_runtime.serve.prefixes import Prefixes, digests_of, graph_key, places, space_of
from t2r_runtime.session import snapshot

LARGEST = 10_000  # bytes; a snapshot of these tests has 1,281
SPACE, OTHER = space_of(b"graph", "me"), space_of(b"graph", "you")
OPTIONS = {"max_tokens": 5, "seed": 1, "ignore_eos": True}


def cached(answer: dict[str, Any]) -> int:
    """The number of cached tokens of an answer."""
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_conversation_of_a_plain_client(tmp_path: Path) -> None:
    """From the second of 20 turns on, 95 % of the prompt's tokens are not read; logits are those of a decoder."""
    random = np.random.default_rng(3)
    text: list[int] = random.integers(0, VOCABULARY, 150).tolist()
    decoder, found, total = Decoder(graph := letters(tmp_path), threads=1), 0, 0
    with within(graph) as client:
        for turn in range(20):
            answer = client.complete(text, logprobs=VOCABULARY, **OPTIONS)
            top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
            decoder.reset()
            expected = log_probabilities(decoder.prefill(text)[0])
            assert {letter: pytest.approx(expected["abcdefghijk".index(letter)], abs=1e-4) for letter in top} == top
            assert len(top) == VOCABULARY
            if turn:
                assert cached(answer) == len(text) - 3, "all but the newest token and those of the client"
                found, total = found + cached(answer), total + len(text)
            text += [*answer["choices"][0]["tokens"], *random.integers(0, VOCABULARY, 2).tolist()]
    assert found >= 0.95 * total


def test_edited_and_repeated_requests(tmp_path: Path) -> None:
    with within(letters(tmp_path)) as client:
        first = client.tokens([1, 2, 3], **OPTIONS)[0]
        text = [1, 2, 3, *first, 4, 5]
        second = client.complete(text, **OPTIONS)
        assert cached(second) == 7, "all but the newest token"
        again = client.complete(text, **OPTIONS)
        assert cached(again) == 9, "all but the last of the same prompt"
        assert again["choices"] == second["choices"]
        assert second["choices"][0]["tokens"] == client.tokens(text, session_id="s", **OPTIONS)[0]
        assert cached(client.complete([1, 2, 9, 9], n=2, **OPTIONS)) == 2
        penalized = {**OPTIONS, "repetition_penalty": 1.7, "temperature": 0}
        more = [*text, 7, 7, 3]
        assert client.tokens(more, **penalized) == client.tokens(more, session_id="t", **penalized)
        assert client.complete([5] * 9, max_tokens=0)["usage"]["completion_tokens"] == 0
        assert cached(client.complete([*[5] * 9, 1], max_tokens=1)) == 9
        assert client.metric("t2r_kept_bytes") > 0


def test_states_of_users_do_not_cross(tmp_path: Path) -> None:
    """Six users at once continue, edit and restart texts with common beginnings; files and memory are always full."""
    decoder = Decoder(graph := letters(tmp_path), threads=1)
    greedy = Sampling(temperature=0, stop_tokens=())

    def talk(user: int) -> int:
        random, alone, found = np.random.default_rng(user), decoder.fork(), 0
        text = [user % 2] * 20
        for turn in range(8):
            text = text[: random.integers(10, len(text) + 1) if turn % 3 == 2 else None]
            text += random.integers(0, VOCABULARY, random.integers(1, 9)).tolist()
            session = None if user % 3 else f"user {user}"
            answer = client.complete(text, max_tokens=6, temperature=0, ignore_eos=True, session_id=session)
            alone.reset()
            assert answer["choices"][0]["tokens"] == alone.generate(text, 6, greedy)
            text, found = text + answer["choices"][0]["tokens"], found + cached(answer)
        return found

    with within(graph, rows=4, folder=tmp_path / "keep", keep_bytes=9000) as client, ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(talk, range(6))) > 100
        assert client.metric("t2r_kept_bytes") <= 9000
    assert sum(path.stat().st_size for path in (tmp_path / "keep").rglob("*.state")) <= 9000


def test_sessions_find_their_own_states_only(tmp_path: Path) -> None:
    with within(letters(tmp_path)) as client:
        for session in ("one", None, "two"):
            assert cached(client.complete([1, 2, 3], session_id=session, **OPTIONS)) == 0
            assert cached(client.complete([1, 2, 3], session_id=session, **OPTIONS)) == 2


def test_nothing_is_kept_without_room(tmp_path: Path) -> None:
    with within(letters(tmp_path), keep_bytes=0) as client:
        for _ in range(2):
            assert cached(client.complete([1, 2, 3], **OPTIONS)) == 0
        assert client.metric("t2r_kept_bytes") == 0


def test_prompts_with_log_probabilities_keep_nothing(tmp_path: Path) -> None:
    """A benchmark that scores thousands of texts evicts no conversation."""
    with within(letters(tmp_path)) as client:
        for _ in range(2):
            assert cached(client.complete([1, 2, 3], echo=True, logprobs=1, **OPTIONS)) == 0
        assert client.metric("t2r_kept_bytes") == 0


def test_chats_share_their_first_message(tmp_path: Path) -> None:
    """Another question after the same system prompt reads the question only."""
    template = "{% for m in messages %}{{ m.content }}k{% endfor %}"
    chat = {"template": template, "tokens": {"eos_token": "k"}}
    system = {"role": "system", "content": "abdefghijabdefghijab"}

    def ask(client: Client, question: str) -> int:
        messages = [system, {"role": "user", "content": question}]
        return cached(client.good("/v1/chat/completions", {"messages": messages, "max_tokens": 1}))

    with within(letters(tmp_path, chat_template=chat)) as client:
        assert ask(client, "abdabdabdabdabdab") == 0
        assert ask(client, "jihjihjihjihjihji") == 21


def test_places() -> None:
    """States of a prompt are kept at equal distances and after messages, none of them near another or the end."""
    ids = np.zeros(1000, np.int64)
    assert places(ids, 0, [7]) == [256, 512, 768]
    assert places(ids, 300, [7]) == [512, 768]
    assert places(ids[:772], 0, [7]) == [256, 512], "the end is near"
    assert places(np.zeros(5000, np.int64), 0, []) == [1024, 2048, 3072, 4096]
    ids[[5, 49, 60, 99, 599, 699, 799, 899, 998]] = 7
    assert places(ids, 0, [7]) == [256, 512, 700, 768, 800, 900], "the first message is too short"
    assert places(ids, 20, [3, 7]) == [50, 256, 512, 700, 768, 800, 900]
    assert places(ids[:1], 0, [7]) == []


@pytest.fixture
def tokens() -> np.ndarray:
    return np.arange(2, 9)


def test_longest_prefix_is_found(opened: Open, tokens: np.ndarray, tmp_path: Path) -> None:
    signature = opened().signature
    for folder in (None, tmp_path / "a" / "keep"):
        prefixes = Prefixes(folder, 10**6, LARGEST)
        states = [random_states("constant", 1, seed=seed) for seed in (1, 2)]
        prefixes.put(SPACE, signature, tokens[:3], states[0])
        prefixes.put(SPACE, signature, tokens[:5], states[1])
        for known in (prefixes, *([] if folder is None else [Prefixes(folder, 10**6, LARGEST)])):
            for end, count in ((7, 5), (6, 5), (5, 3), (4, 3), (3, 0), (1, 0)):
                found = known.find(SPACE, signature, tokens[:end])
                assert (0 if found is None else found.position) == count
                if found is not None:
                    expected = states[count == 5]
                    assert found.history == tokens[:count].tolist()
                    assert all(np.array_equal(found.states[name], expected[name]) for name in expected)
            for space in (OTHER, space_of(b"other", "me"), space_of(b"graph", None)):
                assert known.find(space, signature, tokens) is None
            assert known.find(SPACE, signature, tokens + 1) is None


def test_equal_states_are_kept_once(opened: Open, tokens: np.ndarray, tmp_path: Path) -> None:
    signature, states = opened().signature, random_states("constant", 1)
    prefixes = Prefixes(tmp_path, 10**6, LARGEST)
    for count in (5, 5, 3):
        prefixes.put(SPACE, signature, tokens[:count], states)
    files = sorted(path.name for path in tmp_path.rglob("*.state"))
    assert files == sorted(
        f"{digest}.{n}.state" for n, digest in zip((3, 5), digests_of(SPACE, tokens, (3, 5)), strict=True)
    )
    assert prefixes.kept_bytes == 2 * sum(array.nbytes for array in states.values())


def test_keys_of_graphs_and_clients_differ(tmp_path: Path) -> None:
    """States depend on a graph's file and its providers, and belong to an API key."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1")
    two.write_bytes(b"2")
    keys = [
        graph_key(path, placement, key)
        for path in (one, two)
        for placement in ({"cpu": 3}, {"cpu": 3, "xnnpack": 1})
        for key in (None, "a", "b")
    ]
    assert len(set(keys)) == len(keys)
    assert graph_key(one, {"cpu": 3}, "a") == graph_key(one, {"cpu": 9}, "a")


def test_other_api_key_finds_nothing(tmp_path: Path) -> None:
    for key, expected in (("a", 0), ("b", 0), ("a", 3)):
        with within(letters(tmp_path), folder=tmp_path / "keep", key=key) as client:
            assert cached(client.complete([1, 2, 3, 4], max_tokens=1)) == expected


def test_two_servers_share_a_folder(opened: Open, tokens: np.ndarray, tmp_path: Path) -> None:
    """Each finds what the other has kept, also while both write and delete."""
    signature, states = opened().signature, random_states("constant", 1)
    both = [Prefixes(tmp_path, 10**6, LARGEST), Prefixes(tmp_path, 10**6, LARGEST)]
    for count in (2, 3, 4, 5):
        mine, other = both[count % 2], both[1 - count % 2]
        mine.put(SPACE, signature, tokens[:count], states)
        found = other.find(SPACE, signature, tokens)
        assert found is not None and found.position == count
    assert len(list(tmp_path.rglob("*.state"))) == 4
    both = [Prefixes(tmp_path, 3 * LARGEST // 5, LARGEST), Prefixes(tmp_path, 3 * LARGEST // 5, LARGEST)]

    def write(prefixes: Prefixes) -> None:
        for count in range(1, 101):
            prefixes.put(SPACE, signature, tokens[: 1 + count % 6], states)
            found = prefixes.find(SPACE, signature, tokens)
            assert found is not None
            for name, state in found.states.items():
                np.testing.assert_array_equal(state, states[name])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, both))


def test_a_server_evicts_by_the_uses_of_all(opened: Open, tokens: np.ndarray, tmp_path: Path) -> None:
    signature, states = opened().signature, random_states("constant", 1)
    spaces = [space_of(b"", str(n)) for n in range(4)]
    mine = Prefixes(tmp_path, 3 * 1281, LARGEST)
    for space in spaces[:3]:
        mine.put(space, signature, tokens[:4], states)
        time.sleep(0.01)
    other = Prefixes(tmp_path, 3 * 1281, LARGEST)
    assert other.find(spaces[0], signature, tokens) is not None
    time.sleep(0.01)
    mine.put(spaces[3], signature, tokens[:4], states)
    anew = Prefixes(tmp_path, 3 * 1281, LARGEST)
    kept = [anew.find(space, signature, tokens) is not None for space in spaces]
    assert kept == [True, False, True, True]


def test_two_engines_share_states(
    opened: Open, tokens: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of the folder is right after each of two threads has kept states."""
    signature, states = opened().signature, random_states("constant", 1)
    prefixes = Prefixes(tmp_path, 20 * 1281, LARGEST)
    right = Path.lstat

    def slow(path: Path) -> os.stat_result:
        time.sleep(1e-4)
        return right(path)

    monkeypatch.setattr(Path, "lstat", slow)

    def keep(engine: str) -> None:
        for count in range(100):
            prefixes.put(space_of(b"", f"{engine}{count % 9}"), signature, tokens[: 1 + count % 6], states)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(keep, "ab"))
    assert prefixes._folder is not None
    files = list(tmp_path.rglob("*.state"))
    assert prefixes._folder.entries.bytes == sum(path.stat().st_size for path in files)
    assert 15 <= len(files) <= 20


def test_least_valuable_go_first(opened: Open, tokens: np.ndarray, tmp_path: Path) -> None:
    """Of five texts of equal length, those that were used last stay, in memory and, after a restart, in files."""
    signature, states = opened().signature, random_states("constant", 1)
    size = sum(array.nbytes for array in states.values())
    spaces = [space_of(b"", str(n)) for n in range(4)]
    memory, disk = Prefixes(None, 3 * size, LARGEST), Prefixes(tmp_path, 4 * 1281, LARGEST)
    for space in spaces[:3]:
        for prefixes in (memory, disk):
            prefixes.put(space, signature, tokens[:4], states)
        time.sleep(0.01)
    for prefixes in (memory, disk):
        assert prefixes.find(spaces[0], signature, tokens) is not None
        time.sleep(0.01)
    disk = Prefixes(tmp_path, 3 * 1281, LARGEST)
    for prefixes in (memory, disk):
        prefixes.put(spaces[3], signature, tokens[:4], states)
        kept = [prefixes.find(space, signature, tokens) is not None for space in spaces]
        assert kept == [True, False, True, True]
    assert memory.kept_bytes == 3 * size
    assert len(list(tmp_path.rglob("*.state"))) == 3


def test_files_that_no_server_wrote_evict_nothing(opened: Open, tokens: np.ndarray, tmp_path: Path) -> None:
    """A sparse file of 1 TiB, a link and a folder under names of states, and what a killed server was writing."""
    signature, states = opened().signature, random_states("constant", 1)
    largest = snapshot.most_bytes(signature)
    prefixes = Prefixes(tmp_path, 3 * largest, largest)
    spaces = [space_of(b"", str(n)) for n in range(5)]
    prefixes.put(spaces[0], signature, tokens[:4], states)
    [file] = tmp_path.rglob("*.state")
    assert file.stat().st_size <= largest
    planted = []
    for number, space in enumerate((spaces[0], *spaces[3:])):
        [digest] = digests_of(space, tokens, [5])
        path = tmp_path / digest[:2] / f"{digest}.5.state"
        path.parent.mkdir(exist_ok=True)
        planted.append(path)
        if number == 0:
            with path.open("wb") as sparse:
                sparse.truncate(1 << 40)
        elif number == 1:
            path.symlink_to(file)
        else:
            path.mkdir()
    abandoned = file.with_name(".ab.12345678.part")
    abandoned.write_text("half")
    for space in spaces[1:3]:
        prefixes.put(space, signature, tokens[:4], states)
    anew = Prefixes(tmp_path, 3 * largest, largest)
    assert not abandoned.exists()
    assert anew._folder is not None and anew._folder.entries.bytes == 3 * file.stat().st_size
    assert [anew.find(space, signature, tokens) is not None for space in spaces] == [True, True, True, False, False]
    assert all(path.is_symlink() or path.exists() for path in planted)


def test_damaged_snapshot_is_deleted(opened: Open, tokens: np.ndarray, tmp_path: Path) -> None:
    signature, prefixes = opened().signature, Prefixes(tmp_path, 10**6, LARGEST)
    for count in (3, 5):
        prefixes.put(SPACE, signature, tokens[:count], random_states("constant", 1))
    shorter, longer = (next(tmp_path.rglob(f"*.{count}.state")) for count in (3, 5))
    longer.write_bytes(longer.read_bytes()[:200])
    beside = [longer.with_name(name) for name in ("notes.txt", f"..{longer.name}")]
    for path in beside:
        path.write_text("of another program")
    found = Prefixes(tmp_path, 10**6, LARGEST).find(SPACE, signature, tokens)
    assert found is not None
    assert found.position == 3
    assert not longer.exists()
    assert all(path.exists() for path in beside)
    [digest] = digests_of(SPACE, tokens, [2])
    other = tmp_path / digest[:2] / f"{digest}.2.state"
    other.parent.mkdir(exist_ok=True)
    shorter.rename(other)
    assert Prefixes(tmp_path, 10**6, LARGEST).find(SPACE, signature, tokens) is None, "states after 3 tokens, not 2"


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="expected a writable folder .*; received .*; name another"):
        Prefixes(tmp_path / "file" / "keep", 1, LARGEST)


def test_full_disk_leaves_the_answer(tmp_path: Path) -> None:
    """A state that cannot be kept gives a line on stderr."""
    keep = tmp_path / "keep"
    with running(letters(tmp_path), "--keep", keep) as server:
        for number in range(256):
            (keep / f"{number:02x}").write_text("in the way")
        fields = {"max_tokens": 3, "temperature": 0, "ignore_eos": True}
        expected = server.tokens([1, 2], **fields)
        assert server.tokens([1, 2], **fields) == expected
        assert server.end() == 0
        assert sum(line.startswith("t2r-run: a state was not kept: ") for line in server.said) == 3


def test_other_graph_has_other_states(tmp_path: Path) -> None:
    """Two graphs of one checkpoint with equal state shapes."""
    two = [letters(tmp_path, name, kind="constant", producer=f"tests {name}") for name in ("one", "two")]
    with within(*two) as client:
        client.complete([1, 2, 3], model="one", max_tokens=1)
        for name, count in (("two", 0), ("one", 3)):
            assert cached(client.complete([1, 2, 3, 4], model=name, max_tokens=1)) == count
