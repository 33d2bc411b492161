"""Messages in docs/troubleshooting.md occur in the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^### `(.*)`$", PAGE, flags=re.MULTILINE)
SOURCES = [*(ROOT / "t2r_export").rglob("*.py"), *(ROOT / "runtimes" / "python" / "t2r_runtime").rglob("*.py")]
CODE = " ".join(" ".join(path.read_text(encoding="utf-8").split()) for path in SOURCES)
CODE = re.sub(r'" f?"|\{(?:[^{}]|\{[^{}]*\})*\}', lambda found: "" if '"' in found[0][:1] else "…", CODE)
NAMES = (
    "model_type",
    "config.json",
    "model.safetensors.index.json",
    "model.safetensors",
    "ALLOW_RELEASED_ONNX_OPSET_ONLY",
)


def invented(message: str) -> Iterator[str]:
    """Parts of a message that occur in no string of the code."""
    for name in NAMES:
        message = message.replace(name, "…")
    for part in re.split(r"^expected |; (?:received )?|^check failed: |…", message):
        if part.strip(" ,.():") and part not in CODE:
            yield part


@pytest.mark.parametrize("message", MESSAGES)
def test_message_exists(message: str) -> None:
    assert list(invented(message)) == []


def test_invented_message_is_detected() -> None:
    assert len(MESSAGES) > 10
    assert list(invented("expected a CUDA device; received a toaster; choose device cpu")) == ["a toaster"]
