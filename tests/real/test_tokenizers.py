"""The tokenizers of C++ and JavaScript cut odd texts as Python's does, and that one as llama.cpp."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import t2r_library
from random_texts import texts

from real.conftest import Graphs
from t2r_runtime import Decoder, Tokenizer

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "runtimes" / "js"
LIBRARY = Path(os.environ.get("T2R_CPP_BUILD") or ROOT / "build" / "cpp") / "release" / "libt2r.so"
TEXTS = list(texts(7, 5000, ["the", "Hello", "don't", " world", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]))
PROGRAM = """
import { readFileSync } from "node:fs";
import { Tokenizer } from "./src/tokenizer.js";
const { source, bos, texts } = JSON.parse(readFileSync(0, "utf-8"));
const tokenizer = new Tokenizer(source, bos);
console.log(JSON.stringify(texts.map((text) => tokenizer.encode(text))));
"""


@pytest.fixture(scope="module")
def expected(graphs: Graphs) -> tuple[str, int, list[list[int]]]:
    """tokenizer.json, the token of an empty text, and the tokens of TEXTS."""
    signature = Decoder(graphs("keep")).signature
    tokenizer = Tokenizer.of(signature)
    assert signature.tokenizer is not None
    return signature.tokenizer, signature.bos_token, [tokenizer.encode(text) for text in TEXTS]


def test_llama_cpp(model: Path, expected: tuple[str, int, list[list[int]]]) -> None:
    """transformers is no reference: it ignores the file's `tokenizer.ggml.pre`."""
    llama_cpp = pytest.importorskip("llama_cpp")
    theirs = llama_cpp.Llama(str(model), vocab_only=True, verbose=False)
    for text, ids in zip(TEXTS, expected[2], strict=True):
        if text:  # ours begins an empty text with the start token
            assert theirs.tokenize(text.encode(), add_bos=False, special=True) == ids, text


def test_cpp(expected: tuple[str, int, list[list[int]]]) -> None:
    if not LIBRARY.exists():
        pytest.skip("libt2r is not built; tox run -e cpp builds it")
    source, bos, ids = expected
    ours = t2r_library.Tokenizer(t2r_library.Library(LIBRARY), source, bos_token=bos)
    assert [ours.encode(text) for text in TEXTS] == ids


def test_javascript(expected: tuple[str, int, list[list[int]]]) -> None:
    if shutil.which("node") is None or not (SCRIPTS / "node_modules").exists():
        pytest.skip("the packages of runtimes/js are not installed; tox run -e js installs them")
    source, bos, ids = expected
    done = subprocess.run(
        ["node", "--input-type=module", "-e", PROGRAM],
        input=json.dumps({"source": source, "bos": bos, "texts": TEXTS}),
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == ids
