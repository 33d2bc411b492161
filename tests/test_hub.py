"""Models of the hub are read only from its local cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import constants

import folders
from t2r_export.checkpoints import checkpoint
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
