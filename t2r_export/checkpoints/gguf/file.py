"""A GGUF file as the Hugging Face folder that its importers read: config, generation, tokenizer and tensors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from t2r_export.checkpoints.gguf.architectures import ARCHITECTURES
from t2r_export.checkpoints.gguf.header import DOWNLOAD, Header, Place, read_header
from t2r_export.checkpoints.gguf.metadata import ARCHITECTURE, Metadata
from t2r_export.checkpoints.gguf.tensors import Tensors
from t2r_export.checkpoints.gguf.tokenizer import KIND, UNREAD, tokenizer_files
from t2r_export.checkpoints.importers.files import CONFIG, GENERATION, Folder
from t2r_runtime.errors import UserError, did_you_mean

SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
MAX_PARTS = 1 << 10
# keys of general.sampling -> keys of generation_config.json
SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


class GgufFile(Folder):
    """The files that a folder of the same model would have, made from the file's header, and its tensors."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        """Raises UserError: a damaged file, a missing part, or an architecture that is not read."""
        super().__init__(path)
        self.config_name = path.name
        headers = self._headers(path)
        data = Metadata(path, headers[0].values, _tensors(headers))
        if data.architecture not in ARCHITECTURES:
            expected = f"one of {', '.join(sorted(ARCHITECTURES))}"
            do = did_you_mean(data.architecture, ARCHITECTURES, "use a model of those")
            raise data.wrong(ARCHITECTURE, expected, data.architecture, do)
        architecture = ARCHITECTURES[data.architecture]
        config = architecture.config(data)
        data.require_read()
        self.tensors = Tensors(data, architecture, config)
        self.contents, generation = tokenizer_files(data)
        if (kind := data.general(KIND, str)) in UNREAD:
            self.remarks = (f"{KIND} {kind} is not read: the model runs with token numbers",)
        config |= {name: generation.get(name) for name in ("bos_token_id", "eos_token_id")}
        self.contents |= {CONFIG: config, GENERATION: generation | _sampling(data)}

    def has(self, name: str) -> bool:
        return name in self.contents

    def names(self, subfolder: str, ending: str) -> list[str]:
        return []

    def content(self, name: str, limit: int) -> bytes:
        data = json.dumps(self.contents[name], ensure_ascii=False).encode()
        if len(data) > limit:
            raise UserError(f"at most {limit:,} bytes for {name} in {self.folder}", f"{len(data):,}", DOWNLOAD)
        return data

    def _headers(self, path: Path) -> list[Header]:
        """The headers of the file and of its other parts, which lie beside it."""
        self.used[path.name] = path
        first = read_header(path)
        count = first.values.get("split.count", 0)
        if not isinstance(count, int) or not 0 <= count <= MAX_PARTS:
            raise UserError(f"at most {MAX_PARTS} parts of {path}", f"{count!r}"[:80], DOWNLOAD)
        if count < 2:
            return [first]
        name = SPLIT.fullmatch(path.name)
        if name is None or int(name[3]) != count or int(name[2]) != 1 or first.values.get("split.no") != 0:
            expected = f"the first of the {count} parts, by its name NAME-00001-of-{count:05}.gguf"
            raise UserError(expected, path.name, "pass that, with the others beside it")
        beside = Folder(path.parent)
        parts = [beside.path(f"{name[1]}-{number:05}-of-{name[3]}.gguf") for number in range(2, count + 1)]
        self.used |= beside.used
        headers = [first, *map(read_header, parts)]
        for number, header in enumerate(headers):
            if (header.values.get("split.no"), header.values.get("split.count")) != (number, count):
                raise UserError(f"part {number + 1} of {count} in {header.path}", "another", DOWNLOAD)
        return headers


def _tensors(headers: list[Header]) -> dict[str, Place]:
    found: dict[str, Place] = {}
    for header in headers:
        for name, place in header.tensors.items():
            if name in found:
                raise UserError(f"{name} in one part", f"in {found[name].path} and {header.path}", DOWNLOAD)
            found[name] = place
    return found


def _sampling(data: Metadata) -> dict[str, Any]:
    """Options of generation, if the file recommends some."""
    keys = {name: f"general.sampling.{name}" for name in SAMPLING}
    found = {SAMPLING[name]: data.values[key] for name, key in keys.items() if key in data.values}
    return {**found, "do_sample": True} if found else {}
