"""model.pt files: round trip, reproducibility, and refused files."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import folders
import small
from disk import full_disk
from t2r_export.checkpoints import checkpoint
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers import Guard, LinearConfig, SoftmaxConfig, WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.files import sha256, sha256_beside
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

CONFIG = UniformConfig(
    vocab_size=23,
    width=12,
    ffn_size=10,
    layers=(LinearConfig(5, positions="drop", guard=Guard("add", 1e-3)), SoftmaxConfig(), LinearConfig(7)),
    position="none",
    bos_token=1,
    eos_tokens=(2, 3),
    attention=HeadsConfig(heads=6, kv_heads=3, head_size=4, positions=RotaryConfig(theta=77.0)),
)
PROVENANCE = {"origin": {"format": "test"}, "stages": [{"name": "transfer", "steps": 3}, {"name": "task", "steps": 3}]}


def random_model(config: UniformConfig = CONFIG) -> Transformer:
    torch.manual_seed(3)
    return Transformer(small.built(config))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt"
    checkpoint.save(path, random_model(), '{"t": "ö"}', PROVENANCE)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_head": False},
        {"position": "learned", "max_positions": 9},
        {"position": "sinusoidal"},
        {"position": "none", "norm": "rms", "gated_ffn": True, "ffn_bias": False},
        {"layers": (dataclasses.replace(CONFIG.layers[0], folded=True),)},
    ],
)
def test_save_load_round_trip(changes: dict[str, Any], tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    model, path = random_model(config), tmp_path / "model.pt"
    checkpoint.save(path, model, "text", PROVENANCE)
    found = checkpoint.load(path)
    assert found.config == config.build()
    assert found.tokenizer == "text"
    assert found.provenance == PROVENANCE
    assert found.sha256 == sha256(path)
    assert not found.model.training
    assert (found.model.head.weight is found.model.embedding.weight) == config.tied_head
    torch.testing.assert_close(found.model.state_dict(), model.state_dict(), rtol=0, atol=0)
    ids = torch.tensor([[4, 8, 15, 16]])
    torch.testing.assert_close(found.model(ids), model(ids), rtol=0, atol=0)


def test_loaded_model_can_be_trained_and_overwritten(saved: Path) -> None:
    model = checkpoint.load(saved).model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.tensor([[4, 8, 15]])).square().mean().backward()
    optimizer.step()
    assert torch.equal(checkpoint.load(saved).model.embedding.weight, before["embedding.weight"])
    checkpoint.save(saved, model, None, {})
    assert not torch.equal(checkpoint.load(saved).model.embedding.weight, before["embedding.weight"])
    assert checkpoint.load(saved).model.head.weight.requires_grad


def test_save_is_deterministic(saved: Path, tmp_path: Path) -> None:
    found = checkpoint.load(saved)
    again = tmp_path / "another name.pt"
    checkpoint.save(again, found.model, found.tokenizer, found.provenance)
    assert again.read_bytes() == saved.read_bytes()


def test_tied_head_is_stored_once(saved: Path) -> None:
    weights = torch.load(saved, weights_only=True)["weights"]
    assert "embedding.weight" in weights
    assert "head.weight" not in weights


def test_partial_storage_is_stored(saved: Path, tmp_path: Path) -> None:
    model = random_model()
    wide = torch.zeros(3, *model.embedding.weight.shape)
    wide[1] = model.embedding.weight.detach()
    model.embedding.weight.data = wide[1]
    checkpoint.save(tmp_path / "view.pt", model, '{"t": "ö"}', PROVENANCE)
    assert (tmp_path / "view.pt").read_bytes() == saved.read_bytes()


def test_untied_head_with_shared_memory(tmp_path: Path) -> None:
    model = random_model(dataclasses.replace(CONFIG, tied_head=False))
    model.head.weight = model.embedding.weight
    checkpoint.save(tmp_path / "model.pt", model, None, {})
    found = checkpoint.load(tmp_path / "model.pt").model
    assert found.head.weight.data_ptr() != found.embedding.weight.data_ptr()


def test_other_precisions_are_stored_as_float32(tmp_path: Path) -> None:
    model = random_model()
    checkpoint.save(tmp_path / "model.pt", model.double(), None, {})
    assert checkpoint.load(tmp_path / "model.pt").model.embedding.weight.dtype == torch.float32


def test_save_float16(saved: Path, tmp_path: Path) -> None:
    whole = checkpoint.load(saved)
    small_file = tmp_path / "half.pt"
    checkpoint.save(small_file, whole.model, whole.tokenizer, whole.provenance, dtype=torch.float16)
    loaded = checkpoint.load(small_file)
    for name, weight in whole.model.state_dict().items():
        rounded = loaded.model.state_dict()[name]
        assert rounded.dtype == torch.float32
        assert torch.equal(rounded, weight.half().float())
    weights = sum(4 * weight.numel() for weight in whole.model.parameters())
    assert saved.stat().st_size - small_file.stat().st_size > 0.4 * weights
    with torch.no_grad():
        next(whole.model.parameters()).mul_(1e6)
    with pytest.raises(UserError, match="an infinity"):
        checkpoint.save(small_file, whole.model, None, {}, dtype=torch.float16)
    assert checkpoint.load(small_file).sha256 == loaded.sha256


def test_imported_folder_round_trip(tmp_path: Path) -> None:
    folder = checkpoint.load(folders.write_llama(tmp_path / "llama"))
    checkpoint.save(tmp_path / "model.pt", folder.model, folder.tokenizer, folder.provenance)
    file = checkpoint.load(tmp_path / "model.pt")
    assert (file.config, file.provenance) == (folder.config, folder.provenance)
    torch.testing.assert_close(file.model.state_dict(), folder.model.state_dict(), rtol=0, atol=0)


def test_non_finite_weights_are_not_saved(saved: Path) -> None:
    before, model = saved.read_bytes(), random_model()
    with torch.no_grad():
        model.blocks[1].mixers[0].q.weight[2, 3] = torch.nan
    with pytest.raises(UserError, match="finite numbers in 'blocks.1.parts.0.q.weight'; received NaN"):
        checkpoint.save(saved, model, None, {})
    assert saved.read_bytes() == before


def test_provenance_must_be_json(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="plain JSON data as provenance; received .*Tensor is not JSON serializable"):
        checkpoint.save(tmp_path / "model.pt", random_model(), None, {"loss": torch.ones(1)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 1000, 9000])
def test_full_disk_keeps_old_file(saved: Path, size: int) -> None:
    before = saved.read_bytes()
    assert len(before) > 9000
    message = "to be able to write .*model.pt; received .*; choose another place, or make room"
    with pytest.raises(UserError, match=message), full_disk(size):
        checkpoint.save(saved, random_model(), None, {})
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="to be able to write .*; received No such file or directory"):
        checkpoint.save(tmp_path / "missing" / "model.pt", random_model(), None, {})


def refused(path: Path, message: str) -> None:
    """Loading fails with one line that has `message` in it."""
    with pytest.raises(UserError, match=message) as caught:
        checkpoint.load(path)
    assert str(caught.value).isprintable()


def test_missing_checkpoint_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "model.pt", "a checkpoint at .*model.pt; received nothing; give a model.pt made by t2r, a")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04" + b"\0" * 100, b"\x80\x02}q\0."])
def test_other_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    refused(path, "a checkpoint in .*model.pt; received no archive, or a part of one")


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_truncated_checkpoint_is_refused(saved: Path, keep: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(keep * len(content))])
    refused(saved, "received no archive, or a part of one")


def test_other_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "hello")
    refused(path, "a checkpoint in .*model.pt; received another archive")


def test_compressed_archive_is_refused(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.namelist():
            new.writestr(member, old.read(member))
    refused(path, "an archive without compression in .*bomb.pt; received a compressed one")


class Code:
    """Pickles as a call of a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this must never be printed",)


@pytest.mark.parametrize("where", ["weights", "config", "provenance"])
def test_code_in_checkpoint_is_never_run(saved: Path, where: str, capsys: Any) -> None:
    data = torch.load(saved, weights_only=True)
    data[where]["more"] = Code()
    torch.save(data, saved)
    refused(
        saved, r"tensors and plain data, and nothing else, in .*; received a reference to [a-z_.]*print; do not trust"
    )
    assert capsys.readouterr().out == ""


def test_pickled_module_is_refused(tmp_path: Path) -> None:
    torch.save(random_model(), tmp_path / "model.pt")
    refused(
        tmp_path / "model.pt",
        "received a reference to t2r_export.model.transformer.Transformer; do not",
    )


def test_bare_state_dict_is_refused(tmp_path: Path) -> None:
    torch.save(random_model().state_dict(), tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "a checkpoint of the format t2r-checkpoint in .*; received something else")


Change = Callable[[dict[str, Any]], Any]


def put(*keys: str, value: Any) -> Change:
    def change(data: dict[str, Any]) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return change


def drop(*keys: str) -> Change:
    def change(data: dict[str, Any]) -> None:
        for key in keys[:-1]:
            data = data[key]
        del data[keys[-1]]

    return change


Q = ("weights", "blocks.1.parts.0.q.weight")


@pytest.mark.parametrize(
    "change, message",
    [
        (put("version", value=99), "version 1 to 5 of .*; received 99; use the version of t2r that wrote it"),
        (
            drop("tokenizer"),
            "the keys format, version, config, weights, tokenizer, provenance in .*; received config, ",
        ),
        (
            put("extra", value=1),
            "the keys format, .*; received config, extra, format, provenance, tokenizer and 2 more",
        ),
        (put("tokenizer", value=3), "a text as the tokenizer in .*; received int"),
        (put("provenance", value=[]), "an object as the provenance in .*; received list"),
        (put("provenance", "x", value=torch.ones(1)), "plain data as 'provenance' in .*; received a Tensor"),
        (put("config", "width", value=(1, 2)), "plain data as 'config' in .*; received a tuple"),
        (put("provenance", 3, value=1), "received something else: an object with keys that are no texts"),
        (put("weights", value=[]), "tensors by name as the weights in .*; received something else"),
        (put(*Q, value=1.0), "tensors by name as the weights"),
        (put(*Q, value=torch.ones(1, 12).expand(24, 12)), "tensors by name as the weights"),
        (put(*Q, value=torch.ones(24, 12, device="meta")), "received a reference to torch._utils._rebuild_meta_tensor"),
        (put(*Q, value=torch.ones(24, 12).to_sparse()), "received a reference to torch._utils._rebuild_sparse_tensor"),
        (
            put(*Q, value=torch.full((24, 12), torch.inf)),
            "finite numbers in 'blocks.1.parts.0.q.weight'; received an inf",
        ),
        (put(*Q, value=torch.ones(24, 12).int()), "dense floating-point numbers in .*; received strided of int32"),
        (
            put(*Q, value=torch.ones(12, 24)),
            "the shapes .*; received blocks.1.parts.0.q.weight 12×24 instead of 24×12",
        ),
        (
            drop(*Q),
            "the 59 tensors that its config describes; received missing blocks.1.parts.0.q.weight, unexpected none",
        ),
        (
            put("weights", "x", value=torch.ones(1)),
            "received missing none, unexpected x; check that config and weights",
        ),
        (
            drop("config", "width"),
            r"model to have the keys .*; received missing \['width'\], unexpected none",
        ),
        (put("config", "more", value=1), r"received missing none, unexpected \['more'\]"),
        (put("config", value=3), "model to be a JSON object; received int"),
        (put("config", "layers", value=[3]), "model.layers to be a JSON object; received int"),
        (put("config", "eos_tokens", value=3), "model.eos_tokens to be a list of at most 1048576; received int"),
        (put("config", "width", value=11), "the shapes that its config describes"),
        (put("config", "logit_scale", value=10**400), "logit_scale to be a finite positive number"),
    ],
)
def test_wrong_types_in_checkpoint_are_refused(saved: Path, change: Change, message: str) -> None:
    data = torch.load(saved, weights_only=True)
    change(data)
    torch.save(data, saved)
    refused(saved, message)


def test_shared_storage_is_refused(saved: Path) -> None:
    data = torch.load(saved, weights_only=True)
    weight = torch.ones(24 * 12)
    for layer in range(1000):
        data["weights"][f"blocks.{layer}.parts.0.q.weight"] = weight.view(24, 12)
    torch.save(data, saved)
    refused(saved, r"weights of at most the \d+ bytes of .*; received \d+ bytes")


def test_huge_sizes_are_refused(saved: Path) -> None:
    data = torch.load(saved, weights_only=True)
    huge = 1 << 20
    data["config"] |= {"width": huge, "positions": None}
    for layer in data["config"]["layers"]:
        layer["parts"][0] |= {"heads": huge, "kv_heads": huge, "head_size": huge, "positions": None}
    data["config"]["layers"][0]["parts"][0]["inside"] |= {"feature_size": huge, "folded": True}
    torch.save(data, saved)
    refused(saved, "sizes that fit into memory; received Storage size calculation overflowed")


@pytest.mark.parametrize("wrong", [None, "x", -1, 0, 1.5, True, [], {}, float("nan"), 10**30])
def test_wrong_config_types_are_refused(saved: Path, wrong: Any) -> None:
    original = torch.load(saved, weights_only=True)["config"]
    part = original["layers"][0]["parts"][0]
    owners = [
        original,
        original["layers"][0],
        part,
        part["norm"],
        part["positions"],
        part["inside"],
        part["inside"]["guard"],
    ]
    places = [(owner, key) for owner in owners for key in owner]
    for owner, key in places:
        before, owner[key] = owner[key], wrong
        with contextlib.suppress(UserError):  # some values fit some places
            ModelConfig.from_dict(original)
        owner[key] = before


def same(found: checkpoint.Checkpoint, other: checkpoint.Checkpoint) -> bool:
    """Whether two checkpoints are one model with one history, to the bit."""
    ours, theirs = found.model.state_dict(), other.model.state_dict()
    rest = [(one.config, one.tokenizer, one.provenance) for one in (found, other)]
    return rest[0] == rest[1] and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("seed", range(20))
def test_flipped_bit_is_detected_or_harmless(saved: Path, seed: int) -> None:
    """Anywhere in the file; what has no checksum (padding, times) is nothing that is read."""
    before, content = checkpoint.load(saved), bytearray(saved.read_bytes())
    damaged, found = saved.with_name("damaged.pt"), 0
    generator = torch.Generator().manual_seed(seed)
    for place in torch.randint(0, len(content), (5,), generator=generator).tolist():
        bit = 1 << int(torch.randint(0, 8, (), generator=generator))
        content[place] ^= bit
        damaged.write_bytes(content)
        content[place] ^= bit
        try:
            assert same(checkpoint.load(damaged), before)
        except UserError:
            found += 1
    assert found


def rewritten(saved: Path, change: Callable[[bytes], bytes]) -> Path:
    """The archive with another data.pkl, checksums and all: damage that somebody made."""
    path = saved.with_name("made.pt")
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, change(data) if name.endswith("/data.pkl") else data)
    return path


def test_flipped_bit_in_weight_names_member(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    with zipfile.ZipFile(saved) as archive:
        member = archive.getinfo("archive/data/3")
    content[member.header_offset + 100] ^= 1
    saved.write_bytes(content)
    expected = "a checkpoint without damage in .*; received archive/data/3 that differs from its checksum"
    refused(saved, f"{expected}; copy or download")


@pytest.mark.parametrize("seed", range(60))
def test_damaged_pickle_is_refused(saved: Path, seed: int) -> None:
    """Whatever the damage in the pickle, with a checksum that fits it, a load gives a model or a line."""
    generator = torch.Generator().manual_seed(seed)

    def change(data: bytes) -> bytes:
        content = bytearray(data)
        content[int(torch.randint(2, len(data), (), generator=generator))] ^= int(
            torch.randint(1, 256, (), generator=generator)
        )
        return bytes(content)

    with contextlib.suppress(UserError):
        checkpoint.load(rewritten(saved, change))


def doubled(empty: Any, times: int = 60) -> Any:
    """A list, object or tuple that holds another twice, which holds another twice: 2^60 values in 60."""
    value = empty
    for _ in range(times):
        value = {"a": value, "b": value} if isinstance(empty, dict) else type(empty)((value, value))
    return value


def itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


ENDLESS: list[Any] = [doubled([]), doubled({}), itself()]


@pytest.mark.parametrize("value", ENDLESS, ids=["lists", "objects", "itself"])
@pytest.mark.parametrize(
    "place",
    [
        ("provenance", "x"),
        ("config", "width"),
        ("config", "layers"),
        ("tokenizer",),
        ("version",),
        ("format",),
        ("more",),
    ],
)
def test_exponential_data_is_refused(saved: Path, place: tuple[str, ...], value: Any) -> None:
    data = torch.load(saved, weights_only=True)
    put(*place, value=value)(data)
    torch.save(data, saved)
    refused(saved, f"plain data as '{place[0]}' in .*; received more than 1048576 values, .*; do not trust this file")


@pytest.mark.parametrize("key", [doubled(()), 10**30, 3, None, (1, 2)])
def test_exponential_key_is_refused(saved: Path, key: Any) -> None:
    data = torch.load(saved, weights_only=True)
    data["provenance"]["x"] = [1]
    data["weights"] = {}
    torch.save(data, saved)
    # saved as a list of pairs, and made an object's: Python itself could not hash the first
    pair = pickle.dumps([key, 1], protocol=2)[2:-1]
    path = rewritten(saved, lambda content: b"\x80\x02}(" + keyed(pair) + b"u.")
    refused(path, "received something else: an object with keys that are no texts; give a model.pt")


def keyed(pair: bytes) -> bytes:
    """The instructions of a list of two values, as those of the values alone."""
    start = pair.index(b"(") + 1
    assert pair[0:1] == b"]"
    assert pair[-1:] == b"e"
    return pair[start:-1]


@pytest.mark.parametrize(
    "instructions",
    [
        b"cbuiltins\nbytearray\n\x8a\x06\x00\x00\x00\x00\x00\x10\x85R.",
        b"ctorch\nFloatStorage\n\x8a\x06\x00\x00\x00\x00\x00\x10\x85R.",
        b"ccollections\nOrderedDict\n]\x85R.",
        b"ccollections\nOrderedDict\n)R}b.",
        b"\x8f.",
    ],
)
def test_needless_calls_are_refused(saved: Path, instructions: bytes) -> None:
    refused(rewritten(saved, lambda data: b"\x80\x02" + instructions), "a reference to builtins|something else: ")


def test_background_hash_equals_file_hash(saved: Path, tmp_path: Path) -> None:
    begun = sha256_beside(saved)
    assert checkpoint.load(saved).sha256 == checkpoint.load(saved, begun).sha256 == sha256(saved)
    missing = sha256_beside(tmp_path / "nothing.pt")
    with pytest.raises(FileNotFoundError):
        missing()


def test_invalid_window_is_refused(tmp_path: Path) -> None:
    """A file of a few bytes whose states are many gigabytes: refused when it is opened."""
    long = dataclasses.replace(CONFIG, layers=(WindowConfig(1 << 20),) * 24)
    checkpoint.save(tmp_path / "long.pt", random_model(long), None, {})
    with pytest.raises(UserError, match="states of at most 2,147,483,648 bytes per sequence; received "):
        checkpoint.load(tmp_path / "long.pt")
    assert len(random_model(long).state_spec(max_state_bytes=1 << 40)) > 24


@pytest.mark.parametrize("name", ["x" * 300 + ".pt", "model.pt/more.pt", "y" * 300])
def test_invalid_path_is_refused(saved: Path, name: str) -> None:
    refused(saved.parent / name, "a checkpoint at .*; received nothing; give a model.pt")
    with pytest.raises(UserError, match="to be able to write .*; received (File name too long|Not a directory)"):
        checkpoint.save(saved.parent / name, random_model(), None, {})
