"""Command lines of README.md and of the pages in docs/, and why the test does not run some of them as written.

Of README.md and the quickstart every block counts, of other pages the first one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cpp_build import ROOT

WHOLE = ("README.md", "docs/quickstart.md")
BLOCK = re.compile(
    r"^```\n(?P<fenced>(?:(?!```)[^\n]*\n)*)```$|(?:\A|(?<=\n\n))(?P<indented>(?: {4}[^\n]+\n)+)", re.MULTILINE
)
PROGRAM = re.compile(r"(?:[A-Z_]+=\S+ )*(?P<name>[\w-]+) ")
OURS = ("t2r", "t2r-export", "t2r-run")
OTHERS = ("accelerate", "cd", "export", "hf", "make", "npm", "pip", "printf", "python", "python3", "serve", "tox")
# page: {beginning of a line: why no test runs the line as written}
NOT_RUN = {
    "README.md": {
        "make demo": "make installs torch from the index; tests/cli/test_demo.py runs the demo",
        "make install": "make installs torch from the index",
        "make test": "this is a part of it",
        "export PATH": "the environment's programs are on PATH",
        "pip install": "test_installed.py installs the same wheels; torch comes from the index",
        "t2r distill": "trains for hours; tests/test_distill.py runs it on a small model",
    },
    "docs/quickstart.md": {
        "t2r distill SRC student --data text.txt\n": "trains for an hour; tests/test_distill.py",
        "t2r finetune student.pt best.pt": "trains for an hour",
    },
    "docs/clusters.md": {"": "Ray is in tox's environment clusters, which tests this"},
    "docs/commands.md": {"t2r verify MODEL.pt out.onnx --provider qnn": "needs onnxruntime-qnn; tox's parity-qnn"},
    "docs/comparison.md": {"": "needs environments with other exporters"},
    "docs/families.md": {"": "downloads a model"},
    "docs/finetuning.md": {"t2r finetune": "trains for minutes; the quickstart's finetune is run"},
    "docs/parity.md": {"": "a quarter of a minute; tests/test_verify.py compares with float64"},
    "docs/install.md": {"": "as in README.md"},
    "docs/performance.md": {"": "an hour on an idle machine"},
    "docs/pruning.md": {"": "measures and trains for minutes; tests/pruning runs it on small models"},
    "docs/providers.md": {"": "an environment of tox, which .ci/run runs"},
    "docs/quality.md": {"": "trains for hours, on texts beside the repository"},
    "docs/real-weights.md": {"": "SmolLM2, which tox's environment real downloads"},
    "docs/record.md": {"": "minutes on an idle machine"},
    "docs/serving.md": {"pip install": "as in README.md", "t2r-run serve": "runs until it is stopped"},
}
# page: {beginning of a line: (options that are added, why)}
SHORTER = {
    "docs/quickstart.md": {
        "t2r finetune student.pt tuned.pt": ("--steps 1,1 --batch 2 --length 16", "takes a minute"),
    }
}
Line = tuple[str, str]  # page, command line


def documented() -> list[Line]:
    """All command lines that count, in the order of the pages."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [
        (name, line)
        for page in pages
        for name in [page.relative_to(ROOT).as_posix()]
        for line in lines(page.read_text("utf-8"), every=name in WHOLE)
    ]


def lines(page: str, every: bool) -> Iterator[str]:
    """The command lines of every block of a page, or of the first one; without # comments."""
    for block in BLOCK.finditer(page):
        text = block["fenced"] or re.sub("^ {4}", "", block["indented"], flags=re.MULTILINE)
        for line in re.sub(r"\\\n\s*", "", text).splitlines():
            line = re.sub(r"\s+#\s.*", "", line)
            program = PROGRAM.match(f"{line} ")
            if program is not None and program["name"] in (*OURS, *OTHERS):
                yield line
        if not every:
            return


def reason(line: Line) -> str | None:
    """Why a line is not run; None if it is."""
    page, words = line
    return next((why for start, why in NOT_RUN.get(page, {}).items() if f"{words}\n".startswith(start)), None)


def run_as(line: Line) -> str:
    """The line as it is run: as written, unless SHORTER has options for it."""
    page, words = line
    more = [options for start, (options, _) in SHORTER.get(page, {}).items() if words.startswith(start)]
    return " ".join([words, *more])


def stale() -> list[Line]:
    """Entries of NOT_RUN that no line begins with."""
    found = [(page, f"{line}\n") for page, line in documented()]
    entries = [(page, start) for page, starts in NOT_RUN.items() for start in starts]
    return [
        entry for entry in entries if not any(page == entry[0] and line.startswith(entry[1]) for page, line in found)
    ]
