"""Opens the graphs and runs the server until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import t2r_runtime.session.snapshot as snapshot
from t2r_runtime.decode.decoder import Decoder
from t2r_runtime.errors import UserError, printable
from t2r_runtime.serve.access import Access
from t2r_runtime.serve.app import application
from t2r_runtime.serve.connections import MOST, Patience
from t2r_runtime.serve.encoders import Encoders
from t2r_runtime.serve.engine import Engine
from t2r_runtime.serve.grammars import Grammars
from t2r_runtime.serve.log import Log
from t2r_runtime.serve.metrics import Metrics
from t2r_runtime.serve.models import Limits, Model, Served, name_of, names_of
from t2r_runtime.serve.prefixes import Prefixes, adapted, graph_key
from t2r_runtime.serve.tools.base import Format
from t2r_runtime.serve.tools.formats import format_of
from t2r_runtime.serve.translations import Translations
from t2r_runtime.text.tokenizer import Tokenizer
from t2r_runtime.translate.translator import Translator

if TYPE_CHECKING:
    import uvicorn

KEEP_ALIVE = 30  # seconds between requests of a connection


def served(
    graphs: Sequence[Path],
    opened: Callable[[Path], Decoder],
    translator: Callable[[Path], Translator],
    limits: Limits,
    folder: Path | None,
    keep_bytes: int,
    access: Access,
    log: Log,
    tool_format: Format | None = None,
    draft: object = None,
) -> Served:
    """Open the graphs.

    Args:
        opened, translator: open a graph.
        tool_format: that of the calls of all models; None reads it from their chat templates.
        draft: as for Decoder.generate.

    Raises:
        UserError: as for Decoder, Translator, Pool and Prefixes, or two graphs with the same name.
    """
    metrics, models = Metrics(), dict[str, Model]()
    for name, path in zip(names_of(graphs), graphs, strict=True):
        with _named(path, graphs):
            decoder = opened(path)
            signature = decoder.signature
            if signature.source is None:
                engine = Engine(name, decoder, limits.rows, limits.queue, metrics, draft)
                tokenizer = None if signature.tokenizer is None else Tokenizer.of(signature)
                key = graph_key(path, decoder.placement, access.key)
                grammars = None if tokenizer is None else Grammars(tokenizer, signature.vocab_size)
                chat = signature.chat_template
                calls = tool_format or (None if chat is None else format_of(chat["template"]))
                for adapter in (None, *(signature.adapters or ())):
                    called, own = name_of(name, adapter), adapted(key, adapter)
                    if called in models:
                        raise UserError("models of different names", f"two named {called}", "rename a file", "file")
                    more = engine, None, grammars, None, calls, adapter
                    models[called] = Model(called, signature, tokenizer, own, *more)
            else:
                signature.require_memory(limits.rows)
                translations = Translations(name, translator(path), limits.rows, limits.queue)
                source, target = Tokenizer.of_source(signature), Tokenizer.of(signature)
                models[name] = Model(name, signature, source, translations=translations, written=target)
    largest = max(snapshot.most_bytes(model.signature) for model in models.values())
    prefixes = Prefixes(folder, keep_bytes, largest)
    metrics.gauge("t2r_kept_bytes", lambda: prefixes.kept_bytes)
    return Served(models, prefixes, metrics, limits, Encoders(), access, log)


@contextlib.contextmanager
def _named(path: Path, graphs: Sequence[Path]) -> Iterator[None]:
    """Name the graph in errors if there are several."""
    try:
        yield
    except UserError as error:
        where = "" if len(graphs) == 1 or str(path) in str(error) else f" as {path}"
        raise UserError(f"{error.expected}{where}", error.received, error.do, error.kind) from error


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket. Raises UserError if the address is unknown or in use."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address, family=family, backlog=MOST)
    except (OSError, UnicodeError, OverflowError) as error:
        why = printable(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise UserError(f"to listen on {printable(host)}:{port}", why, "choose another --host or --port") from error
    with listener:
        yield listener


def server(serve: Served) -> uvicorn.Server:
    """A server whose `run` ends at SIGTERM or SIGINT, after finishing its requests; a second SIGINT drops them."""
    import uvicorn

    # these would log what clients do: writes after they have disconnected, and requests that are no HTTP
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").addFilter(_is_ours)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """As uvicorn's, but drop clients that keep the server waiting, also while it ends."""
            await super().startup(sockets)
            self.watch = asyncio.create_task(Patience().keep(self.server_state.connections))

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """As uvicorn's, but a second SIGINT acts as if all clients disconnected: their requests are dropped."""
            if self.should_exit and sig == signal.SIGINT:
                asyncio.get_running_loop().call_soon_threadsafe(self.leave)
            else:
                super().handle_exit(sig, frame)

        def leave(self) -> None:
            for connection in [*self.server_state.connections]:
                connection.transport.abort()

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """As uvicorn's, but a signal ends the server, not the process."""
            with super().capture_signals():
                yield
                self._captured_signals.clear()

    config = uvicorn.Config(
        application(serve),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST,
        timeout_keep_alive=KEEP_ALIVE,
    )
    return Server(config)


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a logged error is not that of a client that sent no HTTP."""
    from h11 import ProtocolError

    return not (record.exc_info and isinstance(record.exc_info[1], ProtocolError))
