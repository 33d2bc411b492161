"""modeling_t2r.py, which runs a saved model without t2r-export: the modules of remote/ in one file.

transformers copies a single code file of a folder, and one file is easier to review before trusting it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

CODE = Path("modeling_t2r.py")
FOLDER = Path(__file__).with_name("remote")
MODULES = ("base", "linear", "softmax", "layers", "model")  # each after those that it imports


def modeling_code() -> str:
    """The package's docstring, all external imports, and each module's code below its imports."""
    names: dict[str, set[str]] = defaultdict(set)  # imported names, by module
    lines, bodies = set(), []
    for name in MODULES:
        source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        tree = ast.parse(source)
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in imports:
            if isinstance(node, ast.Import):
                lines.add(ast.unparse(node))
            elif node.module and not node.module.startswith(__name__.partition(".")[0]):
                names[node.module] |= {alias.name for alias in node.names}
        body = "\n".join(source.splitlines()[imports[-1].end_lineno :]).strip()
        bodies.append(f"# -- {ast.get_docstring(tree)}\n\n{body}\n")
    future = f"from __future__ import {', '.join(names.pop('__future__'))}\n"
    found = [*lines, *(f"from {module} import {', '.join(sorted(of))}" for module, of in names.items())]
    head = (FOLDER / "__init__.py").read_text(encoding="utf-8")
    return "\n\n".join([f"{head}\n{future}\n" + "\n".join(sorted(found)) + "\n", *bodies])
