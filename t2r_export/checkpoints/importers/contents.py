"""Every file that from_pretrained and AutoTokenizer of transformers read in a folder, and what an import does with it.

docs/families.md shows the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from t2r_export.checkpoints.importers.chat import ENDING, TEMPLATE
from t2r_export.checkpoints.importers.files import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    CONFIG,
    GENERATION,
    INDEX,
    PICKLED_ADAPTER,
    SUBFOLDER,
    WEIGHTS,
    Folder,
)
from t2r_export.checkpoints.importers.special import ADDED, SPECIAL
from t2r_export.checkpoints.importers.special import CONFIG as TOKENIZER_CONFIG
from t2r_export.checkpoints.importers.tokenizers import SOURCE, TARGET, TARGET_VOCABULARY, TOKENIZER, VOCABULARY

SAVE_TOKENIZER = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers writes it"


@dataclass(frozen=True)
class File:
    """What an import does with a file.

    Attributes:
        use: a sentence for the docs.
        instead: if present, this other file is read and the file itself has no effect, as in transformers.
        note: message on a file that is not read; empty: it is read, merged or refused.
    """

    use: str
    instead: tuple[str, ...] = ()
    note: str = ""


_OLDER = File(
    f"named in a note, if there is no {TOKENIZER}",
    (TOKENIZER, SOURCE),
    f"and there is no {TOKENIZER}: {SAVE_TOKENIZER}",
)
_TOKENS = f"merged into {TOKENIZER} and the tokens of chats, unless {TOKENIZER_CONFIG} has an `added_tokens_decoder`"
_ALONE = f"since there is no {ADAPTER}"
_PIECES = File(f"read for a translator, if there is no {TOKENIZER}")
_PICKLE = File("refused, if there are no safetensors: a pickle can run code", (WEIGHTS, INDEX))
FILES: dict[str, File] = {
    CONFIG: File("read: the family and its keys"),
    GENERATION: File("read: special tokens and options of generation"),
    WEIGHTS: File("read"),
    INDEX: File(f"read with its shards, if there is no {WEIGHTS}", (WEIGHTS,)),
    "pytorch_model.bin": _PICKLE,
    "pytorch_model.bin.index.json": _PICKLE,
    ADAPTER: File("merged ([adapters](#adapters))"),
    ADAPTER_WEIGHTS: File("merged ([adapters](#adapters))", (ADAPTER,), _ALONE),
    PICKLED_ADAPTER: File(f"refused, if there is no {ADAPTER_WEIGHTS}: a pickle can run code", (ADAPTER,), _ALONE),
    TOKENIZER: File("read"),
    TOKENIZER_CONFIG: File("read: special and added tokens, the chat template"),
    SPECIAL: File(f"{_TOKENS}; it overrides {TOKENIZER_CONFIG}"),
    ADDED: File(_TOKENS),
    TEMPLATE: File(f"read: the chat template; it overrides {TOKENIZER_CONFIG}"),
    f"{SUBFOLDER}/default{ENDING}": File(f"read: the chat template; it overrides {TEMPLATE}"),
    f"{SUBFOLDER}/*{ENDING}": File("named in a note: a graph has one chat template"),
    SOURCE: _PIECES,
    TARGET: _PIECES,
    TARGET_VOCABULARY: _PIECES,
    VOCABULARY: File(f"{_PIECES.use}; of a decoder as merges.txt"),
    **dict.fromkeys(
        ("merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "tiktoken.model", "tekken.json"), _OLDER
    ),
    "custom_generate/generate.py": File("named in a note", note="since it is a program"),
}
# patterns of the files that are read
READ = (
    *(CONFIG, GENERATION, WEIGHTS, INDEX, "model-*-of-*.safetensors", ADAPTER, ADAPTER_WEIGHTS),
    *(TOKENIZER, TOKENIZER_CONFIG, SPECIAL, ADDED, TEMPLATE, f"{SUBFOLDER}/*{ENDING}"),
    *(SOURCE, TARGET, VOCABULARY, TARGET_VOCABULARY),
)


def notes(files: Folder) -> Iterator[str]:
    """A line for each file of the folder that is not read and has an effect in transformers, and its remarks."""
    yield from files.remarks
    for name, file in FILES.items():
        if file.note and files.has(name) and not any(map(files.has, file.instead)):
            yield f"{name} is not read, {file.note}"
