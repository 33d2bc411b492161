"""`t2r-run serve`: serve graphs over HTTP with OpenAI's endpoints."""

from __future__ import annotations

import gc
import importlib.util
import ipaddress
import os
from pathlib import Path

import click

from t2r_runtime import glibc
from t2r_runtime.cli import program, providers
from t2r_runtime.cli.output import note
from t2r_runtime.errors import UserError, printable
from t2r_runtime.serve.access import ANY, Access, host_name
from t2r_runtime.serve.log import FORMATS, NONE, Log
from t2r_runtime.serve.tools.formats import FORMATS as TOOL_FORMATS
from t2r_runtime.session.refusals import existing_graph

NEEDED = ("starlette", "uvicorn")


@click.command("serve")
@click.argument("graphs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="GRAPH…")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0 is a free one.",
)
@click.option(
    "--rows", type=click.IntRange(min=1), default=64, show_default=True, help="Maximum number of rows, per graph."
)
@click.option(
    "--queue",
    type=click.IntRange(min=0),
    default=256,
    show_default=True,
    help="Number of waiting texts, per graph.",
)
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for the states of texts, kept over restarts.")
@click.option(
    "--keep-mb",
    type=click.IntRange(min=0),
    default=1024,
    show_default=True,
    help="Megabytes of kept states in memory, and as many in --keep; the least valuable go first. 0 keeps none.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=4096,
    show_default=True,
    help="Maximum number of new tokens that a request may ask for.",
)
@click.option("--seconds", type=click.IntRange(min=1), default=600, show_default=True, help="Time limit of a request.")
@click.option(
    "--api-key",
    envvar="T2R_API_KEY",
    metavar="TEXT",
    help="Key that requests need. Default: $T2R_API_KEY, or none.",
)
@click.option(
    "--allow-host",
    metavar="NAME",
    multiple=True,
    help="Name that requests may have in Host and Origin, such as models.example.com; * allows all. Repeatable. "
    "Default: the name of --host and localhost; with a --host beyond it, IP addresses too.",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default=NONE,
    show_default=True,
    help="Write a line to stderr for each request: time, path, status, id, model, tokens, cached tokens, milliseconds.",
)
@click.option(
    "--tool-format",
    type=click.Choice([*TOOL_FORMATS]),
    help="How the models write calls of tools. Default: as their chat templates say.",
)
@click.option(
    "--draft",
    metavar="lookup|GRAPH",
    help="Speculative decoding of a text that is alone: draft tokens by prompt lookup or with a smaller model.",
)
@providers.threads_option
@providers.option
def command(
    graphs: tuple[Path, ...],
    host: str,
    port: int,
    rows: int,
    queue: int,
    keep: Path | None,
    keep_mb: int,
    max_tokens: int,
    seconds: int,
    api_key: str | None,
    allow_host: tuple[str, ...],
    log_format: str,
    tool_format: str | None,
    draft: str | None,
    threads: int | None,
    provider: providers.Provider,
) -> None:
    """Serve each GRAPH, an exported .onnx file, over HTTP: completions, chats and translations."""
    for package in NEEDED:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"the package {package}", "a Python without it", f"pip install {' '.join(NEEDED)}")
    if api_key is not None and not (api_key and api_key.isascii() and api_key.isprintable() and " " not in api_key):
        raise UserError("an API key of printable ASCII without spaces", "another", "choose another --api-key")
    for name in allow_host:
        if name != ANY and (not name or name.lower() not in (host_name(name), host_name(f"[{name}]"))):
            do = "leave scheme, port and path out"
            raise UserError("a host name or * as --allow-host", printable(name, 100) or "none", do)
    for graph in graphs:
        existing_graph(graph)

    from t2r_runtime.serve import run
    from t2r_runtime.serve.models import Limits

    one_arena()
    with run.listening(host, port) as listener:
        beyond = not _loopback(listener.getsockname()[0])
        served = run.served(
            graphs,
            lambda path: providers.decoder(path, provider, threads),
            lambda path: providers.translator(path, provider, threads),
            Limits(rows, queue, max_tokens, float(seconds)),
            keep,
            keep_mb * 10**6,
            Access(frozenset({host.lower()} - {""}), frozenset(map(str.lower, allow_host)), beyond, api_key),
            Log(log_format),
            None if tool_format is None else TOOL_FORMATS[tool_format],
            providers.draft(draft, threads),
        )
        if api_key is None and beyond:
            note("t2r-run serve: everybody in this network may use it; --api-key asks for a key")
        address = f"[{host}]" if ":" in host else host
        server = run.server(served)
        # commands collect rarely (t2r_runtime.cli.program); a server collects the garbage of its requests often, and
        # never scans the objects that exist at its start
        gc.collect()
        gc.freeze()
        gc.set_threshold(*program.COLLECTED)
        note(f"serving {', '.join(served.models)} on http://{address}:{listener.getsockname()[1]}")
        server.run([listener])


def one_arena() -> None:
    """Limit glibc's malloc to one arena: with one per thread, a server's memory grows."""
    if "MALLOC_ARENA_MAX" not in os.environ:
        glibc.choose({glibc.ARENA_MAX: 1})


def _loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
