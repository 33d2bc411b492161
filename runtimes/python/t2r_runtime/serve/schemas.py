"""JSON schemas in llguidance's grammars."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

BLANKS = r" ?|\n {0,16}"  # between the parts of JSON; without a bound, some models write nothing else
JSON_OPTIONS = {"whitespace_pattern": BLANKS, "lenient": False, "coerce_one_of": False}


def json_value(schema: Mapping[str, Any]) -> str:
    """A value of a schema, in Lark."""
    return f"%json {json.dumps({**schema, 'x-guidance': JSON_OPTIONS}, ensure_ascii=False)}"
