"""A folder for a web server: graphs, a page that runs them, and the list by which a browser knows what it has.

The list, files.json, names every file with its size and its SHA-256. So a browser keeps all of it for later, without a
net, and fetches anew what has changed and nothing else.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from t2r_export.files import sha256, write_bytes
from t2r_export.graph.reader import read_graph
from t2r_export.paths import check_folder
from t2r_runtime.errors import UserError
from t2r_runtime.files import temporary_beside, unwritable
from t2r_runtime.outputs import beside

LIST = "files.json"
VERSION = 1
MAX_FILES = 1000  # of a page


@dataclass(frozen=True)
class PackedFile:
    """An entry of the list; `name` has a / for each folder."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Pack:
    """What was written, the list last."""

    graph: str
    peer: str | None
    files: list[PackedFile]


def pack(graph: Path, folder: Path, page: Path | None = None, peer: Path | None = None) -> Pack:
    """Copy a graph with all that belongs to it, and a page, to `folder`, which must be empty or not there yet.

    Args:
        page: a folder of files that are copied as they are; None: a list and the graph alone.
        peer: another graph, that a page may run beside the first.

    Raises:
        UserError: a graph that is not whole, a page that is no folder or too large, one name twice, or a folder that
            cannot be written.
    """
    check_folder(folder)
    sources: dict[str, Path] = {}
    for name, source in _sources(graph, page, peer):
        if name in sources or name == LIST:
            raise UserError("one file of each name in a folder", f"{name} twice", "rename one of them")
        sources[name] = source
    with temporary_beside(folder, folder=True) as place:
        made = place / "folder"
        files = []
        for name, source in sorted(sources.items()):
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(source, made / name)
            except OSError as error:
                raise unwritable(folder / name, error) from error
            files.append(PackedFile(name, (made / name).stat().st_size, sha256(made / name)))
        packed = Pack(graph.name, None if peer is None else peer.name, files)
        write_bytes(made / LIST, _list(packed).encode())
        try:
            made.rename(folder)
        except OSError as error:
            raise unwritable(folder, error) from error
    return packed


def _sources(graph: Path, page: Path | None, peer: Path | None) -> Iterator[tuple[str, Path]]:
    """Names in the folder, and the files that are copied there."""
    for step in [graph] if peer is None else [graph, peer]:
        read_graph(step)
        for file in (step, *beside(step)):
            yield file.name, file
    if page is None:
        return
    if not page.is_dir():
        raise UserError(f"a folder with a page at {page}", "none", "check the path")
    found = [file for file in page.rglob("*") if file.is_symlink() or not file.is_dir()]
    strange = [file for file in found if file.is_symlink() or not file.is_file()]
    if strange or len(found) > MAX_FILES:
        received = f"{strange[0]}, which is none" if strange else f"{len(found)}"
        raise UserError(f"at most {MAX_FILES} ordinary files in {page}", received, "name the folder of the page alone")
    for file in found:
        yield file.relative_to(page).as_posix(), file


def _list(packed: Pack) -> str:
    head = {"pack": VERSION, "graph": packed.graph, "peer": packed.peer}
    return json.dumps({**head, "files": [vars(file) for file in packed.files]}, indent=1) + "\n"
