"""One server for the tests that do not change it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_models import LETTERS, letter_tokenizer
from runtime import translators
from runtime.serve.server import Server, letters, running


@pytest.fixture(scope="package")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return letters(tmp_path_factory.mktemp("served"), eos_tokens=(2,))


@pytest.fixture(scope="package")
def translator_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = {"tokenizer": letter_tokenizer(), "source_tokenizer": letter_tokenizer(LETTERS[: translators.SOURCE])}
    return translators.save(tmp_path_factory.mktemp("served"), 1, **texts)


@pytest.fixture(scope="package")
def server(graph: Path) -> Iterator[Server]:
    with running(graph, "--rows", 4, "--queue", 200) as server:
        yield server
