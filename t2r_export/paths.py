"""What is read from where, and written where: every verb and every function that writes asks here first.

    no output is an input, or a file that belongs to one, or another output
    only a regular file is replaced, and one of somebody's own making only if that is asked for
    endings fit: a graph is an .onnx or .ort, a checkpoint is none of what others write

Imports nothing heavy: a mistake in a name costs no more than reading it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickletools
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from t2r_runtime.contract.signature import ENCODER, ROLES
from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file, temporary_beside, unwritable
from t2r_runtime.outputs import GRAPHS, MODELS, Kind, check_output

MAX_PICKLE = 1 << 26  # bytes of a checkpoint's plain data that are looked through


OPEN = "give a model.pt made by t2r, or a Hugging Face folder"
KINDS = {
    "checkpoint": Kind(never=(*MODELS[1:], ".txt", ".json", ".jsonl", ".toml", ".csv", ".md", ".py")),
    "graph": Kind(only=GRAPHS),
    "compiled graph": Kind(only=(".onnx",)),
    "file of token ids": Kind(only=(".npy",)),
    "file of pairs": Kind(only=(".tsv",)),
    "drawing": Kind(only=(".svg", ".png")),
    "training state": Kind(never=()),
    "log": Kind(),
    "table": Kind(),
    "report": Kind(),
}
Output = tuple[str, Path | None]  # a key of KINDS, and where; None is not written


def check_outputs(outputs: Iterable[Output], inputs: Iterable[str | Path | None] = (), force: bool = False) -> None:
    """Raise unless every one of `outputs` may be written.

    Args:
        inputs: files and folders that are read.
        force: replace a checkpoint that was trained, or whatever else stands where a checkpoint goes.

    Raises:
        UserError: an output that is an input, another output, no regular file, in no folder that can be written to,
            named for something else, or a checkpoint that `t2r convert` could not make again.
    """
    given = [(kind, Path(path)) for kind, path in outputs if path is not None]
    read = [Path(path) for path in inputs if path is not None]
    for kind, path in given:
        if check_output(kind, path, KINDS[kind], read):
            _check_replaced(kind, path, force)
    places = [(_place(path), path) for _, path in given]
    for number, (place, path) in enumerate(places):
        if place in [earlier for earlier, _ in places[:number]]:
            raise UserError("another file for every output", f"{path} twice", "name two files")


def graph_outputs(out: str | Path, roles: Sequence[str] = ()) -> list[Output]:
    """What an export to `out` writes: the graph, and beside an .ort two reports. Raises as `refuse_companions`."""
    out = Path(out)
    refuse_companions(out, roles)
    reports: list[Output] = [("report", path) for path in beside_ort(out)] if out.suffix == ".ort" else []
    return [("graph", out), *reports]


def refuse_companions(out: Path, roles: Sequence[str]) -> None:
    """Raise if companions of these roles cannot lie beside `out`: an .ort shares its weights with no other graph."""
    if out.suffix == ".ort" and roles:
        raise UserError(
            f"an .onnx, that shares its weights with the {ROLES[roles[0]]}",
            f"{out}",
            "write an .onnx" if roles[0] == ENCODER else f"export without --{roles[0]}, or write an .onnx",
        )


def check_folder(folder: Path) -> None:
    """Raise UserError unless `folder` does not exist or is empty, and its parent exists."""
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir() or any(folder.iterdir())):
        raise UserError("no folder, or an empty one, to write to", f"{folder}", "name another")
    if not folder.parent.is_dir():
        raise unwritable(folder, OSError(errno.ENOENT, f"no folder {folder.parent}"))


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `folder`, for which `check_folder` passed, if the context ends normally.

    Raises:
        UserError: the folder cannot be written.
    """
    with temporary_beside(folder, folder=True) as beside:
        part = beside / "folder"  # with the permissions of a new folder, which a temporary one lacks
        part.mkdir()
        yield part
        try:
            part.rename(folder)
        except OSError as error:
            raise unwritable(folder, error) from error


def beside_ort(out: Path) -> tuple[Path, Path]:
    """The list of operators of an .ort, and what mobile accelerators would take of it."""
    return out.with_suffix(".required_operators.config"), out.with_suffix(".mobile.txt")


def _check_replaced(kind: str, path: Path, force: bool) -> None:
    """Whether the file at `path`, which is not empty, may be replaced."""
    if kind == "checkpoint":
        if not force and not _made_by_convert(path):
            raise UserError(
                f"nothing at {path} that t2r convert could not make again",
                "a trained model" if _texts(path) else "another file",
                "name another file, or give --force",
            )
    elif kind == "log":
        with path.open("rb") as file:
            if file.read(1) != b"{":
                raise UserError(f"a log to go on with at {path}", "another file", "name another file for the log")
    elif kind != "training state" and _texts(path):
        raise UserError(f"a {kind} or nothing at {path}", "a checkpoint", "name another file")


def _place(path: Path) -> Path:
    return path.parent.resolve() / path.name


def _made_by_convert(path: Path) -> bool:
    """Whether a file is a conversion that nobody has trained, by its own account."""
    texts = _texts(path)
    return "convert" in texts and "finetune" not in texts


def _texts(path: Path) -> set[str]:
    """The texts in a checkpoint's plain data, keys among them, found without unpickling; none in another file."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info for info in archive.infolist() if info.filename.endswith("/data.pkl")]
            if len(names) != 1 or names[0].file_size > MAX_PICKLE:
                return {"too large to look through"} if names else set()
            return {a for _, a, _ in pickletools.genops(archive.read(names[0])) if isinstance(a, str)}
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return set()


# -- inputs


TEXTS = (".txt", ".jsonl", ".parquet", ".npy")  # of a folder


def text_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Files to train on: those named, and of each folder all in it, and in its folders, that end in one of `TEXTS`.

    Those of a folder are in the order of their names. Names that begin with a dot are left out.

    Raises:
        UserError: none is named, one is no file and no folder, or a folder has none.
    """
    if not paths:
        raise UserError("at least one file to train on", "none", "name a text file")
    files: list[Path] = []
    for path in paths:
        if not os.path.isdir(path):
            files.append(existing_file(path, "a text or a .npy to read"))
            continue
        found = [file for file in path.rglob("*") if file.suffix in TEXTS and file.is_file()]
        kept = [file for file in found if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        if not kept:
            raise UserError(f"files that end in {', '.join(TEXTS)} in {path}", "none", "name another folder")
        files += sorted(kept, key=lambda file: file.relative_to(path).as_posix())
    return tuple(files)


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|[A-Za-z0-9][\w-]*")


def existing_model(path: str | Path) -> Path:
    """`path` as a Path, if a file or folder is there.

    Raises:
        UserError: there is none. What looks like the id of a hub is answered with how to get its files.
    """
    if os.path.isfile(path) or os.path.isdir(path):
        return Path(path)
    do = OPEN
    if _HUB_ID.fullmatch(str(path)) and not os.path.isdir(os.path.dirname(path) or "no folder"):
        do += f"; ids are not downloaded: hf download {path} --local-dir FOLDER"
    there = os.path.lexists(path)
    raise UserError(f"a checkpoint at {path}", "no ordinary file" if there else "nothing", do)
