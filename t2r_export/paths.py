"""Checks of input and output paths, before anything is read or written.

    no output is an input, a file that belongs to an input, or another output
    only regular files are replaced; trained checkpoints and foreign files only with --force
    file endings fit the kind of output: .onnx or .ort for a graph

Imports nothing heavy, so that a wrong path fails at once.
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

from t2r_export.files import entries
from t2r_runtime.contract.signature import ENCODER, ROLES
from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import existing_file, is_file_name, temporary_beside, unwritable
from t2r_runtime.outputs import GRAPHS, MODELS, Kind, check_output

MAX_PICKLE = 1 << 26  # bytes of a checkpoint's pickle that are scanned
RECORD = "made.json"  # in a folder that t2r build or distill fills: what each file was made of
ADAPTERS = ".adapter"  # ending of an adapter of a base model
FOLDERS = (".safetensors", ".json")  # endings of files that are read with the others of their folder
OPEN = "pass a model.pt made by t2r, a Hugging Face folder, a .gguf, an .adapter, or hf:OWNER/NAME"
KINDS = {
    "checkpoint": Kind(never=(*MODELS[1:], ".txt", ".json", ".jsonl", ".toml", ".csv", ".md", ".py")),
    "adapter": Kind(only=(ADAPTERS,)),
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
Output = tuple[str, Path | None]  # key of KINDS, path; None is not written


def check_outputs(outputs: Iterable[Output], inputs: Iterable[str | Path | None] = (), force: bool = False) -> None:
    """Raise unless all `outputs` may be written.

    Args:
        inputs: files and folders that are read.
        force: allow replacing a trained checkpoint, or another file in place of a checkpoint.

    Raises:
        UserError: an output that is an input, another output or no regular file, whose folder cannot be written to or
            whose ending does not fit, or that would replace a checkpoint `t2r convert` cannot recreate.
    """
    given = [(kind, Path(path)) for kind, path in outputs if path is not None]
    read = [Path(path) for path in inputs if path is not None]
    for kind, path in given:
        if check_output(kind, path, KINDS[kind], read):
            _check_replaced(kind, path, force)
    places = [(_place(path), path) for _, path in given]
    for number, (place, path) in enumerate(places):
        if place in [earlier for earlier, _ in places[:number]]:
            raise UserError("distinct output files", f"{path} twice", "name two files")


def graph_outputs(out: str | Path, roles: Sequence[str] = ()) -> list[Output]:
    """Outputs of an export to `out`: the graph, and for .ort two reports.

    Raises:
        UserError: as `refuse_companions`, or a name that graphs cannot have, as others would refer to it.
    """
    out = Path(out)
    if not is_file_name(out.name):
        expected = "a file name of printable characters other than \\ and :"
        raise UserError(expected, printable(out.name), "name another file")
    refuse_companions(out, roles)
    reports: list[Output] = [("report", path) for path in beside_ort(out)] if out.suffix == ".ort" else []
    return [("graph", out), *reports]


def refuse_companions(out: Path, roles: Sequence[str]) -> None:
    """Raise UserError if `out` is an .ort and `roles` is not empty: an .ort cannot share its weights."""
    if out.suffix == ".ort" and roles:
        raise UserError(
            f"an .onnx, that shares its weights with the {ROLES[roles[0]]}",
            f"{out}",
            "write an .onnx"
            if roles[0] == ENCODER
            else f"export without --{roles[0].replace('_', '-')}, or write an .onnx",
        )


def check_folder(folder: Path) -> None:
    """Raise UserError unless `folder` does not exist or is empty, and its parent exists."""
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir() or any(folder.iterdir())):
        raise UserError("a new or empty folder to write to", f"{folder}", "name another")
    if not folder.parent.is_dir():
        raise unwritable(folder, OSError(errno.ENOENT, f"no folder {folder.parent}"))


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `folder`, for which `check_folder` passed, if the context ends normally.

    Raises:
        UserError: the folder or a file in it cannot be written.
    """
    with temporary_beside(folder, folder=True) as beside:
        part = beside / "folder"  # with the permissions of a new folder, which a temporary one lacks
        try:
            part.mkdir()
            yield part
            part.rename(folder)
        except OSError as error:
            raise unwritable(folder, error) from error


def beside_ort(out: Path) -> tuple[Path, Path]:
    """Paths of the reports of an .ort: required operators, and support by mobile accelerators."""
    return out.with_suffix(".required_operators.config"), out.with_suffix(".mobile.txt")


def _check_replaced(kind: str, path: Path, force: bool) -> None:
    """Raise UserError unless the non-empty file at `path` may be replaced."""
    if kind in ("checkpoint", "adapter"):
        if not force and not _made_by_convert(path):
            raise UserError(
                f"no trained model and no other file at {path}",
                "a trained model" if _texts(path) else "another file",
                "name another file, or pass --force",
            )
    elif kind == "log":
        with path.open("rb") as file:
            if file.read(1) != b"{":
                raise UserError(f"a training log to append to at {path}", "another file", "name another log file")
    elif kind != "training state" and _texts(path):
        raise UserError(f"a {kind} or nothing at {path}", "a checkpoint", "name another file")


def _place(path: Path) -> Path:
    return path.parent.resolve() / path.name


def _made_by_convert(path: Path) -> bool:
    """Whether a checkpoint's provenance has a conversion and no training."""
    texts = _texts(path)
    return "convert" in texts and "finetune" not in texts


def _texts(path: Path) -> set[str]:
    """All strings in a checkpoint's pickle, found without unpickling; empty for another file."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info for info in archive.infolist() if info.filename.endswith("/data.pkl")]
            if len(names) != 1 or names[0].file_size > MAX_PICKLE:
                return {"too large to look through"} if names else set()
            return {a for _, a, _ in pickletools.genops(archive.read(names[0])) if isinstance(a, str)}
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return set()


TEXTS = (".txt", ".jsonl", ".parquet", ".arrow", ".npy")  # endings of training files in a folder
LEFT_OUT = re.compile(r"(.*/)?(\.|cache-[^/]*\.arrow$).*")  # hidden files, and caches of the package datasets


def text_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Training files: `paths`, with folders replaced by all files in them, recursively, that end in one of TEXTS.

    Files of a folder are sorted by name. Names that begin with a dot, and cache-*.arrow, are skipped. A path may be
    `hf:OWNER/NAME`, a data set in the hub's cache, or `hf:OWNER/NAME/PATTERN`, files and folders in it.

    Raises:
        UserError: no path, a path that does not exist, or a folder without training files.
    """
    if not paths:
        raise UserError("at least one file to train on", "none", "name a text file")
    files: list[Path] = []
    for path in (each for named in paths for each in _data_set(named)):
        if not os.path.isdir(path):
            files.append(existing_file(path, "a text or a .npy to read"))
            continue
        found = [file for file in entries(path) if file.suffix in TEXTS and file.is_file()]
        kept = [file for file in found if not LEFT_OUT.fullmatch(file.relative_to(path).as_posix())]
        if not kept:
            raise UserError(f"files that end in {', '.join(TEXTS)} in {path}", "none", "name another folder")
        files += sorted(kept, key=lambda file: file.relative_to(path).as_posix())
    return tuple(files)


HUB = "hf:"
_HUB = re.compile(r"hf:(?P<name>[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@(?P<revision>[A-Za-z0-9][\w.-]*))?")
_HUB_DATA = re.compile(
    r"hf:(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[A-Za-z0-9][\w.-]*))?(?:/(?P<pattern>.+))?"
)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|[A-Za-z0-9][\w-]*")


def resolved(path: str | Path) -> Path:
    """The folder of a model `hf:OWNER/NAME` or `hf:OWNER/NAME@REVISION` in the hub's cache; other paths are unchanged.

    Nothing is downloaded: see t2r_export.checkpoints.hub.download.

    Raises:
        UserError: a misspelled model, or one that is not in the cache; the message has the command that downloads it.
    """
    if not Path(path).as_posix().startswith(HUB):
        return Path(path)
    name, revision = hub_model(path)
    files = " --include '*.json' '*.safetensors' '*.jinja', or pass --download to t2r convert or export"
    return _snapshot(name, revision, "model", files)


def hub_model(path: str | Path) -> tuple[str, str | None]:
    """OWNER/NAME and revision of `hf:OWNER/NAME` or `hf:OWNER/NAME@REVISION`. Raises UserError for another spelling."""
    spelled = Path(path).as_posix()
    found = _HUB.fullmatch(spelled)
    if found is None:
        raise UserError("a model of the hub as hf:OWNER/NAME or hf:OWNER/NAME@REVISION", repr(spelled), "correct it")
    return found["name"], found["revision"]


def _data_set(path: Path) -> list[Path]:
    """The folder of a data set `hf:OWNER/NAME`, or its entries that match `hf:OWNER/NAME/PATTERN`; else `path`."""
    spelled = path.as_posix()
    if not spelled.startswith(HUB):
        return [path]
    found = _HUB_DATA.fullmatch(spelled)
    if found is None:
        raise UserError("a data set of the hub as hf:OWNER/NAME or hf:OWNER/NAME/PATTERN", repr(spelled), "correct it")
    pattern = f" --include '{found['pattern']}'" if found["pattern"] else ""
    folder = _snapshot(found["name"], found["revision"], "dataset", f" --repo-type dataset{pattern}")
    files = sorted(folder.glob(found["pattern"])) if pattern else [folder]
    if not files:
        raise UserError(f"{found['pattern']} in {folder}", "nothing", "correct the pattern, or download them")
    return files


def _snapshot(name: str, revision: str | None, kind: str, download: str) -> Path:
    """The folder in the hub's cache; `download`: options of `hf download` for the error."""
    from huggingface_hub import constants, snapshot_download  # imported here: takes a third of a second
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, repo_type=kind, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError) as error:
        if found := getattr(error, "snapshot_path", None):  # later releases refuse a snapshot without README.md, say
            return Path(found)
        at = f" --revision {revision}" if revision else ""
        expected = f"{name}{'@' if revision else ''}{revision or ''} in the cache at {constants.HF_HUB_CACHE}"
        do = f"download it: hf download {name}{at}{download}"
        raise UserError(expected, "no such snapshot", do) from error


def existing_model(path: str | Path) -> Path:
    """`path` as a Path, if it is a file or folder, or the folder of a model `hf:OWNER/NAME`.

    Raises:
        UserError: it does not exist, or is a file of a Hugging Face folder. For a hub id, the message says how to name
            it.
    """
    path = resolved(path)
    if path.suffix in FOLDERS and os.path.isfile(path):
        raise UserError("a checkpoint", f"{path}, a file of a Hugging Face folder", f"pass the folder, {path.parent}")
    if os.path.isfile(path) or os.path.isdir(path):
        return path
    do = OPEN
    if _HUB_ID.fullmatch(str(path)) and not os.path.isdir(os.path.dirname(path) or "no folder"):
        do += f"; for a model of the hub, name hf:{path}"
    there = os.path.lexists(path)
    raise UserError(f"a checkpoint at {path}", "no ordinary file" if there else "nothing", do)


def check_base(path: Path, base: str | Path | None) -> Path | None:
    """The base of an adapter as a Path, if it is a model. Raises UserError if `path` is no adapter, or as above."""
    if base is None:
        return None
    if path.suffix != ADAPTERS:
        raise UserError(f"an {ADAPTERS} with --base", f"{path}", "leave out --base")
    return existing_model(base)
