"""Subprocess that renders one chat template in jinja2's sandbox, with resource limits.

    python -P chat_worker.py < request.json > answer.json

A template is an untrusted program. The sandbox hides Python's internals, but limits neither time nor memory; process
limits do. This module does not import the runtime, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
from typing import Any

MEMORY = 1 << 30  # bytes of address space
SECONDS = 5  # CPU time


def environment() -> Any:
    """jinja2's immutable sandbox, with the globals and filters that chat templates expect."""
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """`{% generation %}` marks the model's output for training; it renders as its content."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: object) -> None:
        raise TemplateError(str(message))

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # jinja2's tojson escapes HTML
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def named(*given: Any, **names: Any) -> Namespace:
        if any(str(name).startswith("_") for name in dict(*given, **names)):
            raise TemplateError("no names of a namespace that begin with _")
        return Namespace(*given, **names)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], cache_size=0
    )
    made.filters["tojson"] = tojson
    made.globals.update(
        raise_exception=raise_exception,
        strftime_now=lambda form: datetime.datetime.now().strftime(form),
        namespace=named,
        dict=lambda *given, **names: dict(*given, **names),
    )
    return made


def render(request: dict[str, Any]) -> dict[str, str]:
    """The rendered text, or an error. Without "names" the template is only compiled, and the text is empty."""
    try:
        template = environment().from_string(request["template"])
        text = template.render(**request["names"]) if "names" in request else ""
    except MemoryError:
        return {"error": "rendering exceeded its memory limit"}
    except Exception as error:  # a template can raise any exception
        return {"error": f"{error or type(error).__name__}"[:1000]}
    if len(text) > request["limit"]:
        return {"error": f"the rendered text has more than {request['limit']} characters"}
    return {"text": text}


def main() -> None:
    """Answer the request on stdin."""
    request = json.load(sys.stdin)
    environment()  # import jinja2 before memory is limited
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no limits; the caller has a timeout
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    json.dump(render(request), sys.stdout)


if __name__ == "__main__":
    main()
