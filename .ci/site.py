"""MkDocs hooks (mkdocs.yml): pages outside docs/, links between pages, generated references, no remote assets."""

from __future__ import annotations

import ast
import base64
import html
import json
import posixpath
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = {  # file of the repository → page of the site; files in docs/ keep their names
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "runtimes/CONTRACT.md": "contract.md",
    **{
        f"runtimes/contract/{page.name}": f"contract/{page.name}"
        for page in sorted(ROOT.glob("runtimes/contract/*.md"))
    },
    **{
        str(page.relative_to(ROOT)): f"{page.parents[1].name}/{page.parent.name}.md"
        for folder in ("runtimes", "models")
        for page in sorted(ROOT.glob(f"{folder}/*/README.md"))
    },
}
CODE = re.compile(r"^```.*?^```$|^(?: {4}|\t).*?$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
LIST = re.compile(r"^([^\s|#>-][^\n]*)\n(?=- |1\. )", re.MULTILINE)
REMOTE = re.compile(r"""<(?:script|link|img)\b[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")
NUMBER = re.compile(r"<td([^>]*)>(?=[+-]?\d[^<]{0,28}</td>)")  # short cells that begin with a number
DECLARED = re.compile(  # names of functions, structs, callbacks and enums
    r"^T2R_API [^(]*?(\w+)\(|^\} (\w+);|^typedef (?:struct|enum) \w+ (?:\{.*\} )?(\w+);|\(\*(\w+)\)", re.MULTILINE
)
STAGES = (
    "t2r_export.config.finetune.FinetuneConfig",
    "t2r_export.config.export.ExportConfig",
    "t2r_export.config.quantize.QuantizeConfig",
)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside docs/ and the generated ones."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "site.css", abs_src_path=str(ROOT / ".ci/site.css")))
    header = (ROOT / "runtimes/cpp/include/t2r.h").read_text(encoding="utf-8")
    notebook = json.loads((ROOT / "docs/notebook.ipynb").read_text(encoding="utf-8"))
    for page, text in {
        "reference/python.md": python_reference(),
        "reference/c.md": c_reference(header),
        "reference/options.md": options_reference(),
        "reference/config-keys.md": keys_reference(),
        "reference/proved-models.md": proved_reference(),
        "notebook.md": notebook_page(notebook),
    }.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Convert links and lists of GitHub's Markdown to those of the site."""
    uri = page.file.src_uri
    source = next((source for source, other in PAGES.items() if other == uri), f"docs/{uri}")
    parts = re.split(f"({CODE.pattern})", markdown, flags=CODE.flags)
    return "".join(part if n % 2 else LIST.sub(r"\1\n\n", relinked(part, source, uri)) for n, part in enumerate(parts))


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Mark cells of numbers, which site.css keeps on one line."""
    return NUMBER.sub(r'<td\1 class="number">', html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Reject a page that loads anything from another host."""
    from mkdocs.exceptions import PluginError

    found = remote(output)
    if found:
        raise PluginError(f"expected no remote assets in {page.file.src_uri}; received {found[0]}; keep a copy here")
    return output


def remote(output: str) -> list[str]:
    """URLs of a page's scripts, styles, fonts and images on other hosts; hyperlinks do not count."""
    return REMOTE.findall(output)


def relinked(text: str, source: str, uri: str) -> str:
    """Rewrite the links of the repository's file `source` for page `uri`. Links to files without a page become code."""

    def link(found: re.Match[str]) -> str:
        image, shown, target, anchor = found.groups("")
        if ":" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target)).replace(".ipynb", ".md")
        page = PAGES.get(path) or PAGES.get(f"{path}/README.md")
        if page is None and path.startswith("docs/"):
            page = path.removeprefix("docs/")
        if page is not None:
            return f"{image}[{shown}]({posixpath.relpath(page, posixpath.dirname(uri) or '.')}{anchor})"
        if not (ROOT / path).exists():
            return found[0]  # MkDocs reports it
        return f"`{path}`" if shown.strip("`") in (path, posixpath.basename(path)) else f"{shown} (`{path}`)"

    return LINK.sub(link, text)


def python_reference() -> str:
    """Directives of mkdocstrings for the public names of both packages."""
    parsed = ast.parse((ROOT / "runtimes/python/t2r_runtime/__init__.py").read_text(encoding="utf-8"))
    [homes] = [
        ast.literal_eval(node.value)
        for node in parsed.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES"
    ]
    runtime = [f"t2r_runtime.{module}.{name}" for module, names in homes.items() for name in names]
    parts = ["# Python reference", "Generated from the docstrings. A guide with examples: [Python](../python.md)."]
    parts += ["## t2r_export", *map(_directive, ("t2r_export.api.load", "t2r_export.api.Model", *STAGES))]
    parts += ["## t2r_runtime", *map(_directive, runtime)]
    return "\n\n".join(parts) + "\n"


def _directive(name: str) -> str:
    return f"::: {name}"


def c_reference(header: str) -> str:
    """The C header as a page: a section per part, a heading per declaration, its comment as text."""
    intro, _, body = header.partition('extern "C" {\n#endif')
    source = "Generated from `runtimes/cpp/include/t2r.h`. A guide with examples: [apps](../embedding.md#c)."
    parts = ["# C reference", source]
    parts += [_comment(paragraph) for paragraph in intro.partition("*/")[0].split("\n\n")]
    for block in body.split("#ifdef __cplusplus")[0].strip().split("\n\n"):
        section = re.fullmatch(r"/\* ---- (.*) ---- \*/", block.strip())
        if section:
            parts.append(f"## {section[1]}")
            continue
        comment, code = re.fullmatch(r"\s*(/\*.*?\*/\n)?(.*)", block, re.DOTALL).groups("")  # type: ignore[union-attr]
        names = ["".join(name) for name in DECLARED.findall(code)]
        parts += [f"### {', '.join(names)}", _comment(comment), f"```c\n{code.strip()}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _comment(text: str) -> str:
    """The text of a C comment."""
    return textwrap.dedent(re.sub(r"^\s*/\*|\*/\s*$", "  ", text)).strip().replace("\n   ", "\n")


def options_reference() -> str:
    """Usage, help and options of every verb, as lists that wrap on any screen."""
    sys.path[:0] = [str(ROOT), str(ROOT / "runtimes/python")]
    import click

    from t2r_export.cli import VERBS, t2r
    from t2r_runtime.cli import VERBS as VERBS_THAT_RUN

    names = ", ".join(f"`{verb}`" for verb in VERBS_THAT_RUN)
    parts = [
        "# Options",
        "Rules that all verbs share: [commands](../commands.md). `t2r VERB --help` prints the same.",
        f"`t2r-run`, the program of t2r-runtime, has the verbs {names}, with the options below.",
    ]
    # a command keeps the names of its help from its first context: the program's own
    top = click.Context(t2r, info_name="t2r", help_option_names=["-h", "--help"])
    for verb in VERBS:
        command = t2r.get_command(top, verb)
        context = click.Context(command, info_name=verb, parent=top)
        options = [parameter.get_help_record(context) for parameter in command.params]
        rows = [f"- `{record[0]}` {plain(record[1])}" for record in options if record and record[1]]
        usage = " ".join(command.collect_usage_pieces(context))
        about = "\n\n".join(plain(" ".join(part.split())) for part in (command.help or "").split("\n\n"))
        parts.append(f"## {verb}\n\n`{context.command_path} {usage}`\n\n{about}\n\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """A text in Markdown in which no character has a meaning, but for code in backticks."""
    parts = re.split("(`[^`]+`)", text)
    return "".join(
        part if code else re.sub(r"([\\*_{}\[\]#])", r"\\\1", html.escape(part, quote=False))
        for part, code in zip(parts, [False, True] * len(parts), strict=False)
    )


def keys_reference() -> str:
    """What imports do with each key of config.json."""
    sys.path[:0] = [str(ROOT / ".ci"), str(ROOT), str(ROOT / "runtimes/python")]
    from config_keys import page

    return page()


def proved_reference() -> str:
    """The measured errors of every imported family."""
    sys.path.insert(0, str(ROOT / ".ci"))
    from proved_models import KEPT, page

    return page(json.loads(KEPT.read_text(encoding="utf-8")))


def notebook_page(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown: its cells and their output."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            if "text" in output:
                parts.append("```text\n" + "".join(output["text"]).rstrip() + "\n```")
            elif "image/svg+xml" in output.get("data", {}):
                picture = base64.b64encode("".join(output["data"]["image/svg+xml"]).encode()).decode()
                parts.append(f"![output of the cell](data:image/svg+xml;base64,{picture})")
    return "\n\n".join(parts) + "\n"
