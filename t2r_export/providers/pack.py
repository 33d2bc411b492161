"""A folder for a web server: graphs, a page that runs them, and a list of files.

The list, files.json, has the size and SHA-256 of every file: a browser caches them for offline use and fetches only
what changed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from t2r_export.files import entries, sha256, write_bytes
from t2r_export.graph.reader import read, read_graph
from t2r_export.paths import check_folder, new_folder
from t2r_export.providers.lengths import check_lengths
from t2r_runtime.errors import UserError
from t2r_runtime.files import unwritable
from t2r_runtime.outputs import beside

LIST = "files.json"
VERSION = 1
MAX_FILES = 1000  # in a page's folder


@dataclass(frozen=True)
class PackedFile:
    """An entry of the list; folders in `name` are separated by /."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Pack:
    """The written files; the list itself is not among them."""

    graph: str
    peer: str | None
    files: list[PackedFile]


def pack(
    graph: Path, folder: Path, page: Path | None = None, peer: Path | None = None, *, any_length: bool = False
) -> Pack:
    """Copy a graph with its companions and weights, and a page, to `folder`, which must be empty or not exist.

    Args:
        page: folder of files to copy unchanged; None copies the graph alone.
        peer: second graph, for pages that compare two.
        any_length: skip the check that a decoder on a page predicts no worse after 2,000 tokens.

    Raises:
        UserError: an incomplete graph, a page that is no folder or too large, a file name that occurs twice, a
            decoder that decays, or a folder that cannot be written.
    """
    check_folder(folder)
    sources: dict[str, Path] = {}
    for name, source in _sources(graph, page, peer):
        if name in sources or name == LIST:
            raise UserError("distinct file names", f"{name} twice", "rename one of them")
        sources[name] = source
    signature = read(graph).signature  # by its quantization a page chooses a provider
    if page is not None and not any_length and signature.source is None:
        check_lengths(graph)
    with new_folder(folder) as made:
        files = []
        for name, source in sorted(sources.items()):
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(source, made / name)
            except OSError as error:
                raise unwritable(folder / name, error) from error
            files.append(PackedFile(name, (made / name).stat().st_size, sha256(made / name)))
        packed = Pack(graph.name, None if peer is None else peer.name, files)
        head = {"pack": VERSION, "graph": packed.graph, "peer": packed.peer, "quantization": signature.quantization}
        listed = json.dumps({**head, "files": [vars(file) for file in files]}, indent=1) + "\n"
        write_bytes(made / LIST, listed.encode())
    return packed


def _sources(graph: Path, page: Path | None, peer: Path | None) -> Iterator[tuple[str, Path]]:
    """Names in the folder and the files to copy."""
    for step in [graph] if peer is None else [graph, peer]:
        read_graph(step)
        for file in (step, *beside(step)):
            yield file.name, file
    if page is None:
        return
    if not page.is_dir():
        raise UserError(f"a folder with a page at {page}", "none", "check the path")
    found = list(entries(page))
    strange = [file for file in found if file.is_symlink() or not file.is_file()]
    if strange or len(found) > MAX_FILES:
        received = f"{strange[0]}, which is none" if strange else f"{len(found)}"
        raise UserError(f"at most {MAX_FILES} ordinary files in {page}", received, "name the folder of the page alone")
    for file in found:
        yield file.relative_to(page).as_posix(), file
