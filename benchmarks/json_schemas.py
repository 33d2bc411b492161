"""JSON documents written at random under the masks of a server, against the JSON Schema Test Suite: docs/serving.md.

    python benchmarks/json_schemas.py SUITE [--graph models/tiny/bytes.onnx]

SUITE is a folder of the suite's draft, as json/tests/draft2020-12 of the source distribution of jsonschema. Each schema
of it is compiled as `response_format` is, and ten documents of at most 400 tokens are written with masks; tokens are
drawn evenly from those allowed, but a closing character in three of ten. The package jsonschema, which the script needs
(pip install jsonschema), tells whether a document is valid; it is asked first about the suite's own documents, of which
the answers are known.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2r_runtime import Decoder, Tokenizer
from t2r_runtime.errors import UserError
from t2r_runtime.serve.errors import ApiError
from t2r_runtime.serve.grammars import Form, Grammars, Mask

SAMPLES, TOKENS, CLOSING, SHARE = 10, 400, '"]}', 0.3


def written(
    mask: Mask, tokenizer: Tokenizer, closing: Sequence[int], stop: int, chance: random.Random
) -> tuple[str, str]:
    """A document, and why it has no end if so."""
    ids: list[int] = []
    for _ in range(TOKENS):
        try:
            allowed = mask.allowed()
        except UserError:  # the tokenizer cannot write what has to follow
            return "", "no token"
        ends = [token for token in closing if allowed[token]]
        choices: Sequence[int] = ends if ends and chance.random() < SHARE else np.flatnonzero(allowed).tolist()
        token = chance.choice([*choices, stop] if allowed[stop] else choices)
        if token == stop:
            return tokenizer.decode(ids), ""
        ids.append(token)
        if mask.take(token):
            return tokenizer.decode(ids), ""
    return "", "no end"


def judged(schema: Any, document: str) -> str:
    import jsonschema

    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(document))
    except (jsonschema.ValidationError, json.JSONDecodeError):
        return "invalid"
    return "valid"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--graph", type=Path, default=Path("models/tiny/bytes.onnx"))
    given = parser.parse_args()
    signature, chance = Decoder(given.graph).signature, random.Random(0)
    tokenizer, [stop, *_] = Tokenizer.of(signature), signature.eos_tokens
    closing = [ids[0] for ids in map(tokenizer.encode, CLOSING) if len(ids) == 1]
    grammars, compiled = Grammars(tokenizer, signature.vocab_size), 0
    refused, found, judge = Counter[str](), Counter[str](), Counter[str]()
    for file in sorted(given.suite.glob("*.json")):
        for case in json.loads(file.read_text("utf-8")):
            form = Form("json", json.dumps(case["schema"]), "response_format")
            try:
                mask = grammars.mask(form, [stop])
            except ApiError as error:
                refused[file.stem] += 1
                print(f"{file.stem}: {case['description']}: {error.message}", file=sys.stderr)
                continue
            compiled += 1
            for known in case["tests"]:
                right = (judged(case["schema"], json.dumps(known["data"])) == "valid") is known["valid"]
                judge["right" if right else "wrong"] += 1
            for _ in range(SAMPLES):
                text, why = written(mask.copy(), tokenizer, closing, stop, chance)
                kind = why or judged(case["schema"], text)
                found[kind] += 1
                if kind == "invalid":
                    print(f"invalid: {file.stem}: {case['description']}: {case['schema']}: {text}", file=sys.stderr)
    print(f"{compiled} schemas compiled, {refused.total()} refused: {dict(refused)}")
    print(f"{found.total():,} documents: {dict(found)}; jsonschema on those of the suite: {dict(judge)}")


if __name__ == "__main__":
    main()
