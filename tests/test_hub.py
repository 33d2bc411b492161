"""Models of the hub are read from its local cache, and downloaded only with --download."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError

import folders
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.importers.contents import FILES, READ
from t2r_export.cli import main
from t2r_export.paths import resolved, text_files
from t2r_runtime.errors import UserError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a model, as after a download: the snapshot links to blobs."""
    cache = tmp_path / "hub"
    model = cache / "models--someone--tiny-llama"
    snapshot = model / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    folders.write_llama(model / "blobs")
    for file in list((model / "blobs").iterdir()):
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return cache


@pytest.mark.parametrize(
    "spelled", ["hf:someone/tiny-llama", f"hf:someone/tiny-llama@{COMMIT}", "hf:someone/tiny-llama@main"]
)
def test_a_model_of_the_cache_is_read(spelled: str, cache: Path) -> None:
    found = checkpoint.load(spelled)
    assert found.config == checkpoint.load(cache / "models--someone--tiny-llama" / "blobs").config
    assert found.provenance["origin"]["name"] == "someone/tiny-llama"


def test_commands_take_it(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "hf:someone/tiny-llama", str(tmp_path / "g.onnx")]) == 0
    assert main(["verify", "hf:someone/tiny-llama", str(tmp_path / "g.onnx"), "--steps", "20"]) == 0
    capsys.readouterr()
    assert main(["inspect", "hf:someone/tiny-llama", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "checkpoint"


@pytest.mark.parametrize(
    "spelled, message",
    [
        ("hf:someone/other", "--include '*.json' '*.safetensors'"),
        ("hf:someone/other", "download it: hf download someone/other --include"),
        ("hf:someone/tiny-llama@v2", "hf download someone/tiny-llama --revision v2 --include"),
        ("hf:some--one/x", "expected some--one/x in the cache at"),
        ("hf:", "a model of the hub as hf:OWNER/NAME"),
        ("hf:../../etc", "a model of the hub as hf:OWNER/NAME"),
        ("hf:a/b/c", "a model of the hub as hf:OWNER/NAME"),
        ("hf:a/b@../../main", "a model of the hub as hf:OWNER/NAME"),
        ("hf:a/b@", "a model of the hub as hf:OWNER/NAME"),
    ],
)
def test_what_is_not_there_is_refused(spelled: str, message: str, cache: Path) -> None:
    with pytest.raises(UserError) as caught:
        checkpoint.load(spelled)
    assert message in str(caught.value)


@pytest.fixture
def data_set(cache: Path) -> Path:
    """The snapshot of a data set in the same cache."""
    data = cache / "datasets--someone--tales"
    snapshot = data / "snapshots" / COMMIT
    for number, name in enumerate(["README.md", "data/train-0.jsonl", "data/train-1.jsonl", "data/test.jsonl"]):
        blob = data / "blobs" / f"{number}"
        blob.parent.mkdir(exist_ok=True, parents=True)
        blob.write_text(json.dumps({"text": name}))
        (snapshot / name).parent.mkdir(exist_ok=True, parents=True)
        (snapshot / name).symlink_to(blob)
    (data / "refs").mkdir()
    (data / "refs" / "main").write_text(COMMIT)
    return snapshot


@pytest.mark.parametrize(
    "inside, names",
    [
        ("", ["data/test.jsonl", "data/train-0.jsonl", "data/train-1.jsonl"]),
        ("@main/data", ["data/test.jsonl", "data/train-0.jsonl", "data/train-1.jsonl"]),
        (f"@{COMMIT}/data/train-*", ["data/train-0.jsonl", "data/train-1.jsonl"]),
        ("/data/test.jsonl", ["data/test.jsonl"]),
    ],
)
def test_a_data_set_of_the_cache_is_read(inside: str, names: list[str], data_set: Path) -> None:
    assert text_files([Path(f"hf:someone/tales{inside}")]) == tuple(data_set / name for name in names)


@pytest.mark.parametrize(
    "spelled, message",
    [
        ("hf:someone/tiny-llama", "hf download someone/tiny-llama --repo-type dataset"),
        (
            "hf:someone/other@v2/data/*",
            "hf download someone/other --revision v2 --repo-type dataset --include 'data/*'",
        ),
        ("hf:someone/tales/train*", "expected train\\* in .*; received nothing"),
        ("hf:tales", "a data set of the hub as hf:OWNER/NAME"),
        ("hf:someone/tales@../main", "a data set of the hub as hf:OWNER/NAME"),
    ],
)
def test_a_data_set_that_is_not_there_is_refused(spelled: str, message: str, data_set: Path) -> None:
    with pytest.raises(UserError, match=message.replace("data/*", r"data/\*")):
        text_files([Path(spelled)])


def test_another_path_is_unchanged(tmp_path: Path) -> None:
    assert resolved(tmp_path / "hf:a") == tmp_path / "hf:a"


def test_nothing_is_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a connection"))
    with pytest.raises(UserError, match="no such snapshot"):
        resolved("hf:someone/other")


@pytest.mark.parametrize("verb", ["export", "convert"])
def test_download_asks_for_the_files_that_are_read(
    verb: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hub's cache has the model afterwards."""
    asked: list[dict[str, Any]] = []
    original, model = huggingface_hub.snapshot_download, cache / "models--someone--tiny-llama"
    model.rename(tmp_path / "remote")

    def snapshot_download(name: str, **options: Any) -> str:
        if options.get("local_files_only"):
            return str(original(name, **options))
        asked.append({"name": name, **options})
        (tmp_path / "remote").rename(model)
        return str(model / "snapshots" / COMMIT)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    words = [verb, "hf:someone/tiny-llama@main", str(tmp_path / {"export": "g.onnx", "convert": "s.pt"}[verb])]
    assert main(words) == 2 and asked == []
    assert "hf download someone/tiny-llama --revision main --include" in (err := capsys.readouterr().err)
    assert "pass --download to t2r convert or export" in err
    assert main([*words, "--download"]) == 0
    assert asked == [{"name": "someone/tiny-llama", "revision": "main", "allow_patterns": list(READ)}]


def test_files_that_are_read_are_downloaded() -> None:
    """Files of the table, shards, and no weights in another format."""
    unread = {name for name, file in FILES.items() if "refused" in file.use or "note" in file.use.partition(":")[0]}
    wanted = [*(FILES.keys() - unread), "model-00001-of-00002.safetensors"]
    assert [name for name in wanted if not any(fnmatch(name, pattern) for pattern in READ)] == []
    others = ["pytorch_model.bin", "README.md", "consolidated.safetensors", "onnx/model.onnx", "original/params.json"]
    assert [name for name in others if any(fnmatch(name, pattern) for pattern in READ)] == []


@pytest.mark.parametrize("offline", [False, True])
def test_download_that_fails_is_one_line(
    offline: bool, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def snapshot_download(name: str, **_: Any) -> str:
        raise LocalEntryNotFoundError("no connection") if offline else OSError("404: no such model")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert main(["export", "hf:someone/other", "g.onnx", "--download"]) == 2
    received = "no connection" if offline else "404: no such model"
    expected = f"t2r: expected to download someone/other; received {received}; check the name and the connection"
    assert capsys.readouterr().err.startswith(expected)
    assert main(["export", "model.pt", "g.onnx", "--download"]) == 2
    assert "expected a model hf:OWNER/NAME with --download; received model.pt" in capsys.readouterr().err


def test_a_snapshot_without_the_files_that_nobody_reads_is_complete(cache: Path) -> None:
    """huggingface_hub 2 lists the repository's files beside a snapshot, and refuses one with some of them."""
    tree = pytest.importorskip("huggingface_hub._tree_cache")
    entries = {"README.md": tree.TreeCacheEntry(size=5, blob_id="5" * 40)}
    tree.write_tree_cache(str(cache / "models--someone--tiny-llama"), COMMIT, entries)
    assert resolved("hf:someone/tiny-llama").name == COMMIT
