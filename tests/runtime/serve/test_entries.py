"""What a full cache evicts."""

from __future__ import annotations

from t2r_runtime.serve.entries import Entries, Entry


def entries(max_bytes: int, *kept: tuple[str, int, int, float]) -> Entries[None]:
    """Entries with these digests, tokens, sizes and times."""
    found: Entries[None] = Entries(max_bytes)
    for digest, tokens, size, used in kept:
        assert found.add(Entry(digest, tokens, size, used, None)) == []
    return found


def evicted(found: Entries[None], used: float) -> list[str]:
    return [entry.digest for entry in found.add(Entry("new", 10, 10, used, None))]


def test_value_is_cost_over_bytes_and_age() -> None:
    assert evicted(entries(40, ("long", 99, 10, 0), ("short", 9, 10, 0), ("mean", 50, 10, 0)), 9e9) == []
    assert evicted(entries(30, ("long", 99, 10, 0), ("short", 9, 10, 0), ("mean", 50, 10, 0)), 9e9) == ["short"]
    assert evicted(entries(50, ("large", 99, 30, 0), ("small", 40, 10, 0)), 9e9) == []
    assert evicted(entries(45, ("large", 99, 30, 0), ("small", 40, 10, 0)), 9e9) == ["large"], "3.3 per byte, not 4"
    assert evicted(entries(25, ("old", 30, 10, 0.0), ("late", 20, 10, 1e9)), 9e9) == ["old"]


def test_longer_texts_cost_what_follows_a_kept_prefix() -> None:
    """When a prefix is evicted, what continues it is worth more."""
    found = entries(40, ("a", 100, 10, 0), ("ab", 130, 10, 0), ("abc", 170, 10, 0), ("z", 60, 10, 0))
    found.link(["a", "ab", "none", "abc"])
    assert evicted(found, 9e9) == ["ab"], "30 tokens, fewer than 40 of abc and 60 of z"
    assert [digest for digest in ("a", "abc", "z") if found.get(digest)] == ["a", "abc", "z"]
    assert found.get("abc").prefix == "a"  # type: ignore[union-attr]
    assert [entry.digest for entry in found.add(Entry("newer", 10, 10, 9e9, None))] == ["z"], "70 of abc now"


def test_lengths_and_bytes_are_counted() -> None:
    found = entries(99, ("a", 3, 10, 0), ("b", 3, 5, 0), ("b", 4, 7, 0))
    assert (found.bytes, dict(found.lengths)) == (17, {3: 1, 4: 1})
    found.remove("a")
    found.remove("a")
    assert (found.bytes, dict(found.lengths)) == (7, {4: 1})
    assert [entry.digest for entry in found.add(Entry("huge", 1, 100, 0, None))] == ["huge"]


def test_a_large_cache_evicts_several_at_once() -> None:
    found = entries(1000, *((f"{n:03}", n + 1, 10, 0.0) for n in range(100)))
    assert evicted(found, 9e9) == ["000", "001", "002", "003", "004", "005"]
