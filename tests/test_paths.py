"""Rules for replacing output files."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import small
import texts
from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.stages import parse_plan
from t2r_export.convert import convert
from t2r_export.files import write_bytes
from t2r_export.finetune import finetune
from t2r_export.paths import KINDS, check_outputs, existing_model, graph_outputs
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError
from t2r_runtime.files import locked, replacing, temporary_beside


def made(path: Path, provenance: dict[str, object]) -> Path:
    checkpoint.save(path, small.model("softmax"), None, provenance)
    return path


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "folder": (lambda path: path.mkdir(), "the folder .*; name a file inside it"),
    "link": (lambda path: path.symlink_to("elsewhere"), "a link to elsewhere"),
    "link to itself": (lambda path: path.symlink_to(path.name), "a link to x.pt"),
    "pipe": (lambda path: os.mkfifo(path), "a pipe"),
    "socket": (lambda path: _socket(path), "a socket"),
    "read-only": (lambda path: (path.write_text("{}"), path.chmod(0o444)), "a read-only one"),
}


def _socket(path: Path) -> None:
    os.chdir(path.parent)  # socket paths are limited to 108 bytes
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)


@pytest.mark.parametrize("what", SPECIAL)
def test_only_regular_files_are_replaced(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, message = SPECIAL[what]
    path = tmp_path / "x.pt"
    make(path)
    before = os.lstat(path)
    with pytest.raises(UserError, match=message):
        check_outputs([("checkpoint", path)], force=True)
    with pytest.raises(UserError, match=message), replacing(path) as part:
        part.write_text("new")
    after = os.lstat(path)
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)


def test_device_is_not_replaced() -> None:
    before = os.stat("/dev/null").st_mode
    for kind in ("checkpoint", "log", "table"):
        with pytest.raises(UserError, match="received a device"):
            check_outputs([(kind, Path("/dev/null"))], force=True)
    with pytest.raises(UserError, match="received a device"):
        write_bytes("/dev/null", b"")
    assert os.stat("/dev/null").st_mode == before


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_permissions_are_kept(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    path.chmod(mode)
    write_bytes(path, b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", mode)


@pytest.mark.parametrize(
    "place, message",
    [
        ("a" * 256, "File name too long"),
        ("file/x.pt", "Not a directory"),
        ("nowhere/x.pt", "no folder .*nowhere"),
        ("loop/x.pt", "Too many levels of symbolic links"),
        ("\0.pt", "embedded null"),
    ],
)
def test_invalid_names_are_refused(place: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match=f"expected to be able to write .*; received {message}"):
        check_outputs([("checkpoint", tmp_path / place)])


def test_name_of_255_bytes_can_be_written(tmp_path: Path) -> None:
    write_bytes(tmp_path / ("a" * 255), b"x")
    write_bytes(tmp_path / ("ü" * 127), b"x")
    assert len(list(tmp_path.iterdir())) == 2


FITTING = {
    "checkpoint": (["m.pt", "m", "m.model"], ["m.onnx", "m.ort", "m.safetensors", "m.txt", "M.TXT", "m.npy"]),
    "adapter": (["s.adapter"], ["s.pt", "s", "s.onnx"]),
    "graph": (["g.onnx", "g.ort"], ["g", "g.pt", "g.onnx.data"]),
    "compiled graph": (["g.onnx"], ["g.ort"]),
    "file of token ids": (["t.npy"], ["t.txt"]),
    "file of pairs": (["t.tsv"], ["t.txt", "t"]),
    "drawing": (["c.svg", "c.png"], ["c.pdf"]),
    "training state": (["m.pt.training"], []),
    "log": (["l.jsonl", "l.txt", "l"], ["l.pt"]),
    "table": (["t.csv", "t"], ["t.npy"]),
    "report": (["g.mobile.txt"], ["g.onnx"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_file_endings(kind: str, tmp_path: Path) -> None:
    fine, wrong = FITTING[kind]
    for name in fine:
        check_outputs([(kind, tmp_path / name)])
    for name in wrong:
        with pytest.raises(UserError, match=f"expected a name for a {kind} that "):
            check_outputs([(kind, tmp_path / name)])


@pytest.mark.parametrize("name", ["m.pt", "same.pt", "../there/m.pt", "hard.pt", "link/m.pt"])
def test_output_must_not_be_input(name: str, tmp_path: Path) -> None:
    place = tmp_path / "there"
    place.mkdir()
    source = made(place / "m.pt", {"convert": {}})
    os.link(source, place / "hard.pt")
    (place / "link").symlink_to(place)
    if name == "same.pt":
        (place / name).write_bytes(source.read_bytes())
        check_outputs([("checkpoint", place / name)], [source])  # a copy is a different file
        return
    with pytest.raises(UserError, match="expected an output that is not an input"):
        check_outputs([("checkpoint", place / name)], [source], force=True)


def test_output_must_not_belong_to_input(tmp_path: Path) -> None:
    _, report = small.graph(tmp_path / "g.onnx", "learned", prefill=True)
    for file in report.files:
        with pytest.raises(UserError, match="expected an output that is not an input"):
            check_outputs([("training state", file)], [tmp_path / "g.onnx"])
    prefill = next(file for file in report.files if ".prefill." in file.name)
    with pytest.raises(UserError, match="expected an output that is not an input"):
        check_outputs(graph_outputs(tmp_path / "g.onnx"), [prefill])  # it would be removed with the old graph


def test_output_must_not_be_in_input_folder(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config").write_text("{}")
    for inside in (folder / "config", tmp_path / "hf" / ".." / "hf" / "config"):
        with pytest.raises(UserError, match="expected an output outside of input folders"):
            check_outputs([("log", inside)], [folder])
    check_outputs([("checkpoint", folder / "new.pt")], [folder])
    (folder / "g.onnx").write_text("an earlier export")
    check_outputs(graph_outputs(folder / "g.onnx"), [folder])


def test_outputs_must_be_distinct(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected distinct output files; received .*x twice"):
        check_outputs([("log", tmp_path / "x"), ("table", None), ("report", tmp_path / "." / "x")])
    (tmp_path / "text.mobile.txt").touch()
    with pytest.raises(UserError, match="expected an output that is not an input"):
        check_outputs(graph_outputs(tmp_path / "text.ort"), [tmp_path / "text.mobile.txt"])


def test_trained_checkpoint_is_kept(tmp_path: Path) -> None:
    converted = made(tmp_path / "converted.pt", {"convert": {"mixer": "linear"}})
    check_outputs([("checkpoint", converted)])
    for provenance in ({}, {"origin": "somewhere"}, {"convert": {}, "finetune": [{"tokens": 1}]}):
        path = made(tmp_path / "m.pt", provenance)
        with pytest.raises(UserError, match="received a trained model; name another file, or pass --force"):
            check_outputs([("checkpoint", path)])
        check_outputs([("checkpoint", path)], force=True)
    path.rename(tmp_path / "model")
    for kind in ("log", "table"):
        with pytest.raises(UserError, match="received (a checkpoint|another file); name another"):
            check_outputs([(kind, tmp_path / "model")], force=True)
    (tmp_path / "notes").write_text("of a year")
    with pytest.raises(UserError, match="received another file; name another file, or pass --force"):
        check_outputs([("checkpoint", tmp_path / "notes")])


def test_log_appends_only_to_logs(tmp_path: Path) -> None:
    for text in ("", '{"event": "start"}\n'):
        (tmp_path / "l").write_text(text)
        check_outputs([("log", tmp_path / "l")])
    (tmp_path / "l").write_text("notes")
    with pytest.raises(UserError, match="expected a training log to append to"):
        check_outputs([("log", tmp_path / "l")])


# -- one program at a time


HOLD = """
import sys
from pathlib import Path
from t2r_runtime.files import locked
with locked(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_lock_ends_with_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "m.pt")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    message = "expected exclusive access to .*m.pt; received another program writing it; wait"
    with pytest.raises(UserError, match=message), locked(tmp_path / "m.pt", wait=False):
        pass
    with locked(tmp_path / "other.pt", wait=False):
        pass
    process.kill()
    process.communicate()
    with locked(tmp_path / "m.pt", wait=False):
        assert [file.name for file in tmp_path.iterdir()] == [".m.pt.lock"]
    assert list(tmp_path.iterdir()) == []


def test_concurrent_finetunes_are_refused(tmp_path: Path) -> None:
    config = FinetuneConfig(
        model=texts.write_student(tmp_path / "model.pt"),
        output=tmp_path / "tuned.pt",
        data=(texts.write_text(tmp_path / "text"),),
        plan=parse_plan("task", "1"),
        length=16,
        batch=2,
        device="cpu",
    )
    with locked(config.output, wait=False), pytest.raises(UserError, match="exclusive access to .*tuned.pt"):
        finetune(config)
    assert not config.output.exists() and not config.log_path.exists()
    finetune(config)
    with pytest.raises(UserError, match="received a trained model"):
        finetune(config)


EXPORTS = """
import os
import sys
from pathlib import Path
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.export import export

def child(path: str, graph: Path) -> int:
    if (made := os.fork()) == 0:
        export(checkpoint.load(path), graph, ExportConfig(prefill=True, draft_check=True))
        os._exit(0)
    return made

export(checkpoint.load(sys.argv[1]), Path(sys.argv[1] + ".onnx"), ExportConfig())  # torch starts its threads
for _ in range(3):
    children = [child(path, Path("g.onnx")) for path in sys.argv[1:]]
    for made in children:
        assert os.waitpid(made, 0)[1] == 0
"""


def test_concurrent_exports(tmp_path: Path) -> None:
    """After concurrent exports to one path, the graph and its files are of one model, and no other file is left.

    The programs are forked from one that has exported: none of them waits for a thread that it does not have.
    """
    models = [tmp_path / f"{seed}.pt" for seed in (1, 2, 3)]
    for seed, path in enumerate(models):
        checkpoint.save(path, convert(small.model("softmax"), LinearConfig(8), seed=seed), None, {})
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", EXPORTS, *models], check=True, timeout=300, cwd=tmp_path, env=environment)
    decoder = Decoder(tmp_path / "g.onnx", threads=1)
    prompt = np.array([[1, 2, 3, 4, 5]])
    read = decoder.prefill(prompt)
    decoder.reset()
    for token in prompt[0]:
        stepped = decoder.step(token)
    np.testing.assert_allclose(read, stepped, atol=1e-5)
    assert len([file for file in tmp_path.iterdir() if file.name.startswith("g.onnx")]) == 4
    assert not list(tmp_path.glob(".*"))


# -- inputs


def test_hub_ids_are_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("some-org/Some-Model-1.5B", "gpt2"):
        with pytest.raises(UserError, match=f"for a model of the hub, name hf:{name}$"):
            existing_model(name)
    (tmp_path / "models").mkdir()
    for name in ("models/x", "x.pt", "a/b/c"):
        with pytest.raises(
            UserError,
            match="received nothing; pass a model.pt made by t2r, .*, a .gguf, an .adapter, or hf:OWNER/NAME$",
        ):
            existing_model(name)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="received no ordinary file"):
        existing_model("pipe")
    assert existing_model(tmp_path) == tmp_path


DIE = """
import contextlib
import os
import signal
from pathlib import Path
from t2r_runtime.files import replacing, temporary_beside
with contextlib.ExitStack() as stack:
    for name in ("out.onnx", "out.onnx.0123456789ab.data"):
        stack.enter_context(replacing(Path(name))).write_text("half")
    made = stack.enter_context(temporary_beside(Path("out.onnx"), folder=True))
    (made / "inside.onnx").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_leftovers_of_killed_run_are_removed(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", DIE], cwd=tmp_path, timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob(".out.onnx*.part"))) == 3
    for name in (".out.onnx.part", ".out.onnx.notours1.txt", ".another.abcdefgh.part"):
        (tmp_path / name).write_text("of somebody else")
    write_bytes(tmp_path / "out.onnx", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".another.abcdefgh.part",
        ".out.onnx.notours1.txt",
        ".out.onnx.part",
        "out.onnx",
    ]


def test_interrupted_output_leaves_the_old_file(tmp_path: Path) -> None:
    write_bytes(tmp_path / "out.onnx", b"old")
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process ignores it
    try:
        with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "out.onnx") as made:  # noqa: PT012
            made.write_bytes(b"half")
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out.onnx", b"old")]


def test_files_being_written_are_kept(tmp_path: Path) -> None:
    with replacing(tmp_path / "x.pt") as first, temporary_beside(tmp_path / "x.pt", folder=True) as folder:
        first.write_text("first")
        write_bytes(tmp_path / "x.pt", b"second")
        assert first.read_text() == "first" and folder.is_dir()
    assert (tmp_path / "x.pt").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").write_text("mine")
    (tmp_path / ".x.pt.abcdefgh.part").symlink_to("mine")
    os.mkfifo(tmp_path / ".x.pt.ijklmnop.part")
    write_bytes(tmp_path / "x.pt", b"new")
    assert (tmp_path / "mine" / "kept").read_text() == "mine"


@pytest.mark.parametrize("name", ["a\nb.onnx", "\x1b[31m.onnx", "a\\b.onnx", "C:a.onnx", "\udcff.onnx"])
def test_graph_names(name: str, tmp_path: Path) -> None:
    """A graph names its companions, and every system must find them."""
    with pytest.raises(UserError, match="expected a file name of printable characters"):
        graph_outputs(tmp_path / name)


def test_two_threads_keep_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can only be read by setting it, which another thread must not see."""
    own, before = os.umask, os.umask(0o027)

    def slow(mask: int) -> int:
        found = own(mask)
        time.sleep(0.01)
        return found

    try:
        monkeypatch.setattr(os, "umask", slow)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda name: write_bytes(tmp_path / name, b""), "ab"))
    finally:
        assert own(before) == 0o027
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"] == [0o640, 0o640]
