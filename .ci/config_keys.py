"""Prints what imports do with each file of a folder, each key of config.json and each family that is not supported.

`python .ci/config_keys.py`; all from the importers' tables.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from t2r_export.checkpoints.importers import IMPORTERS
from t2r_export.checkpoints.importers.contents import FILES
from t2r_export.checkpoints.importers.generation_keys import CARRIED, DECODERS, GENERATION, NOTED, TRANSLATORS
from t2r_export.checkpoints.importers.generation_keys import HARMLESS as OF_NO_TEXT
from t2r_export.checkpoints.importers.keys import HARMLESS, NAMED, REFUSED, SYNONYMS
from t2r_export.checkpoints.importers.unread import REASONS

HEAD = """## Keys of config.json and generation_config.json

What an import does with each key of a family's `config.json`. The result is the model that transformers builds from the
same file, or an error. Generated from the importers' tables, which tests compare with the installed transformers.

- **Read**: used; an absent key has the default of the family's class in transformers.
- **Refused**: any value but those listed would build a different model. The error names the key. If several names mean
  the same (listed below), the refused one may also repeat the value of the one that is read.
- **Harmless**: no value changes what is computed at inference.
- **Noted**: harmless, but transformers changes the stored weights when it loads the folder. The import uses them as
  they are stored, and prints a line.

Any other key is ignored, as in transformers; a line on stderr and the checkpoint's provenance (`config_keys_not_used`)
name it. Special tokens that the vocabulary lacks are ignored too, with a line.

### Every family
"""

GENERATES = """### Options of generation

Read from `generation_config.json` if the folder has one, else from these keys of `config.json`, as in transformers. A
key that is null counts as absent. **Carried** keys become special tokens and the graph's options (`t2r.generation`),
which every runtime uses unless its caller overrides them; without such keys the runtimes' defaults apply. **Noted**
keys would change the text in transformers and are not carried: a line names them, and a carried value outside of a
runtime's range. The length of a text (`max_length`, `max_new_tokens`) is set by each caller.
"""


def spelt(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def refused(table: Mapping[str, tuple[Any, ...]]) -> str:
    rows = [f"| `{key}` | {', '.join(map(spelt, neutral))} |" for key, neutral in sorted(table.items())]
    return "\n".join(["| refused | unless it is absent or |", "|---|---|", *rows])


def harmless(keys: Iterable[str]) -> str:
    return "Harmless: " + ", ".join(f"`{key}`" for key in sorted(keys)) + ".\n"


def pattern(name: re.Pattern[str]) -> str:
    """A pattern escaped for a Markdown table."""
    return name.pattern.replace(r"\w*", "…").replace("|", r"\|")


def files() -> str:
    uses: dict[str, list[str]] = {}
    for name, file in FILES.items():
        uses.setdefault(file.use, []).append(f"`{name}`")
    return "\n".join(
        [
            "| file | |",
            "|---|---|",
            *(f"| {', '.join(names)} | {use.replace('(#', '(../families.md#')} |" for use, names in uses.items()),
        ]
    )


def unread() -> str:
    rows = [f"| {', '.join(f'`{name}`' for name in sorted(names.split()))} | {why} |" for why, names in REASONS.items()]
    return "\n".join(["| `model_type` | what it has |", "|---|---|", *rows])


def page() -> str:
    parts = [
        "# Files and keys of a folder\n",
        "What an import does with the files of a Hugging Face folder and with the keys of its config.json.\n",
        "## Files of a folder\n",
        files(),
        "",
        "## Families that are not supported\n",
        unread(),
        "",
        HEAD,
        refused({**REFUSED, **{pattern(name): neutral for name, neutral in NAMED.items()}}),
        "",
        "Names of one thing: " + "; ".join(" = ".join(f"`{name}`" for name in names) for names in SYNONYMS) + "; "
        "`head_dim` = `hidden_size` / `num_attention_heads`; `num_key_value_heads` = `num_attention_heads`.\n",
        harmless(HARMLESS),
        GENERATES,
        harmless(CARRIED).replace("Harmless", "Carried"),
        refused(NOTED).replace("refused", "noted"),
        "",
        "Only a translator has these:\n",
        refused(DECODERS).replace("refused", "noted of a decoder"),
        "",
        "And only a decoder this one:\n",
        refused(TRANSLATORS).replace("refused", "noted of a translator"),
        "",
        harmless(OF_NO_TEXT),
    ]
    for family, importer in IMPORTERS.items():
        if importer.nested is not None:
            parts += [
                f"## {family}\n",
                f"The keys of `{importer.text or family + '_text'}`, in the object `{importer.nested}`.\n",
            ]
            continue
        keys = importer.keys
        rows = [f"| `{key}` | {spelt(value)} |" for key, value in sorted(keys.read.items())]
        own = {key: neutral for key, neutral in keys.refused.items() if key not in REFUSED}
        others = keys.harmless - HARMLESS - GENERATION - keys.noted
        parts += [f"## {family}\n", "| read | absent is |", "|---|---|", *rows, ""]
        parts += [f"`{alias}` is another spelling of `{key}`." for alias, key in keys.aliases.items()]
        parts += [""] if keys.aliases else []
        parts += [refused(own), ""] if own else []
        parts += [harmless(others)] if others else []
        parts += [harmless(keys.noted).replace("Harmless", "Noted")] if keys.noted else []
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
