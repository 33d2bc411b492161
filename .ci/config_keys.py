"""Prints what imports do with each key of config.json, from the importers' tables: `python .ci/config_keys.py`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from t2r_export.checkpoints.importers import IMPORTERS
from t2r_export.checkpoints.importers.generation_keys import CARRIED, DECODERS, GENERATION, NOTED, TRANSLATORS
from t2r_export.checkpoints.importers.generation_keys import HARMLESS as OF_NO_TEXT
from t2r_export.checkpoints.importers.keys import HARMLESS, NAMED, REFUSED, SYNONYMS

HEAD = """# Keys of config.json and generation_config.json

What an import does with each key of a family's `config.json`, so that a model here is the model that transformers makes
of the same file, or an error. Generated from the importers' tables, which tests compare with the installed
transformers.

- **Read**: obeyed, with the default that transformers' class of the family has where the key is absent.
- **Refused**: another value than those named would make another function, in transformers or in the family that the key
  is from. The error names the key. Of several names of one thing, which are listed below, a refused one may also have
  the value that is read under another.
- **Harmless**: any value; it changes nothing that is computed at inference.
- **Noted**: harmless here, but transformers changes the stored weights whenever it loads the folder (its fault).
  Here they are taken as they are stored, and a line says so.

Any other key is passed over, as transformers does, and named in a line on stderr and in the checkpoint's provenance
(`config_keys_not_used`). Special tokens that the vocabulary does not have are passed over with a line of their own.

## Every family
"""

GENERATES = """## How a model generates

Read from the file that transformers goes by: `generation_config.json` if the folder has one, else these keys of
`config.json`. A key that is null is absent there. What is **carried** becomes special tokens and the options of the
graph (`t2r.generation`), which every runtime obeys unless its caller says otherwise. A folder without any key that says
how tokens are chosen says nothing, and the runtimes' own defaults hold. What is **noted** changes the text of
transformers and is not carried: the import names it in a line, and so it does a carried value that is out of a
runtime's range. How long a decoder's text is (`max_length`, `max_new_tokens`) each caller says.
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


def page() -> str:
    parts = [
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
