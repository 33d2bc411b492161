"""The endpoints as a Starlette application."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t2r_runtime.errors import printable
from t2r_runtime.serve import chats, completions, responses, tokens, translate
from t2r_runtime.serve.answer import GONE, Answer, Gone, Stream, unless_gone
from t2r_runtime.serve.encoders import WINDOW
from t2r_runtime.serve.errors import TOO_SLOW, ApiError, reported, wrong
from t2r_runtime.serve.fields import Fields, parsed
from t2r_runtime.serve.metrics import TYPE
from t2r_runtime.serve.models import BODY_SECONDS, MAX_BODY, Model, Served
from t2r_runtime.serve.request_options import RequestOptions

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

Endpoint = Callable[[Served, "Request"], Awaitable["ASGIApp"]]
Start = Callable[[Served, Model, Fields], Awaitable[tuple[Answer | responses.Response, RequestOptions]]]
Call = Callable[[Served, Model, Fields], Awaitable[Mapping[str, Any]]]
PAGE = Path(__file__).with_name("page.html")
PAGE_HEADERS = {
    # nothing but the file's own script and style, and requests to this server
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
}
POSTED = "/v1/completions, /v1/chat/completions, /v1/responses or /v1/translate"
METHODS = f"use POST {POSTED}, or GET /v1/models, or open / in a browser"


def application(served: Served) -> Starlette:
    """The application; its lifespan starts and stops the engines."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    def route(path: str, endpoint: Endpoint, method: str = "POST", guarded: bool = True) -> Route:
        return Route(path, partial(_safe, endpoint, served, guarded), methods=[method])

    return Starlette(
        routes=[
            route("/", page, "GET", guarded=False),
            route("/health", health, "GET", guarded=False),
            route("/metrics", metrics, "GET"),
            route("/v1/models", models, "GET"),
            route("/v1/models/{name}", model, "GET"),
            route("/v1/completions", partial(_completed, completions.complete)),
            route("/v1/chat/completions", partial(_completed, chats.chat)),
            route("/v1/responses", partial(_completed, responses.respond)),
            route("/v1/translate", partial(_called, translate.translate)),
            route("/tokenize", partial(_called, tokens.tokenize)),
            route("/detokenize", partial(_called, tokens.detokenize)),
            route("/tokenizer_info", tokenizer_info, "GET"),
        ],
        exception_handlers={HTTPException: partial(_refused, served)},
        lifespan=lambda app: _running(served),
    )


async def page(served: Served, request: Request) -> Response:
    """A page that uses this server; it asks for the key where one is needed."""
    from starlette.responses import FileResponse

    return FileResponse(PAGE, media_type="text/html", headers=PAGE_HEADERS)


async def health(served: Served, request: Request) -> Response:
    return reply({"status": "ok"})


async def metrics(served: Served, request: Request) -> Response:
    from starlette.responses import Response

    return Response(served.metrics.text(), media_type=TYPE)


async def models(served: Served, request: Request) -> Response:
    return reply({"object": "list", "data": [described(model) for model in served.models.values()]})


async def model(served: Served, request: Request) -> Response:
    return reply(described(served.model(request.path_params["name"])))


async def tokenizer_info(served: Served, request: Request) -> Response:
    return reply(tokens.about(served.model(request.query_params.get("model"))))


async def _called(call: Call, served: Served, request: Request) -> Response:
    """Answer with the result of a call."""
    fields = await _fields(request)
    return reply(await unless_gone(request.receive, call(served, served.model(fields.text("model")), fields)))


async def _completed(start: Start, served: Served, request: Request) -> ASGIApp:
    """Answer with one kind of completions, whole or as a stream."""
    fields = await _fields(request)
    answer, options = await unless_gone(request.receive, start(served, served.model(fields.text("model")), fields))
    request.state.answer = answer
    if options.stream:
        return Stream(served, answer, partial(_logged, served, request))
    try:
        return reply(await unless_gone(request.receive, answer.whole()))
    finally:
        answer.close()


async def _safe(endpoint: Endpoint, served: Served, guarded: bool, request: Request) -> Any:
    """Call an endpoint, and answer every error in OpenAI's form."""
    request.state.started = time.monotonic()
    try:
        if guarded:
            served.access.check(request.headers)
        response = await endpoint(served, request)
        status = 200
    except Gone:
        served.metrics.count("t2r_cancelled_total")
        response, status = reply({}, GONE), GONE
    except Exception as error:
        found = reported(error)
        response, status = reply(found.body, found.status, found.headers), found.status
    served.metrics.count("t2r_requests_total", status=str(status))
    if guarded and not isinstance(response, Stream):  # a stream is logged at its end
        _logged(served, request, status)
    return response


def _logged(served: Served, request: Request, status: int) -> None:
    """Write the line of a request."""
    state = request.state
    answer = state.answer.summary if hasattr(state, "answer") else None
    served.log.write(request.method, request.url.path, status, state.started, answer)


async def _refused(served: Served, request: Request, error: Any) -> Response:
    """Answer a request of an unknown path or method."""
    request.state.started = time.monotonic()
    served.metrics.count("t2r_requests_total", status=str(error.status_code))
    received = printable(f"{request.method} {request.url.path}")
    message = f"expected a path and a method of this server; received {received}; {METHODS}"
    _logged(served, request, error.status_code)
    return reply(ApiError(error.status_code, message).body, error.status_code, error.headers)


def reply(data: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of one JSON object."""
    from starlette.responses import JSONResponse

    return JSONResponse(data, status, headers)


def described(model: Model) -> dict[str, Any]:
    """A model in OpenAI's list format."""
    kind = "translator" if model.engine is None else "language model"
    made = {"id": model.name, "object": "model", "created": model.created, "owned_by": "t2r", "kind": kind}
    return {**made, "max_model_len": model.signature.reach}


@contextlib.asynccontextmanager
async def _running(served: Served) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    both = [worker for model in served.models.values() for worker in (model.engine, model.translations) if worker]
    workers = dict.fromkeys(both)  # models of one graph share an engine
    for worker in workers:
        worker.start(loop)
    grammars = dict.fromkeys(model.grammars for model in served.models.values() if model.grammars is not None)
    # in the thread of long texts, before the first request that needs it
    prepared = asyncio.gather(
        *(served.encoders.run(WINDOW + 1, each.prepare) for each in grammars), return_exceptions=True
    )
    try:
        yield
    finally:
        await prepared
        for worker in workers:
            await asyncio.to_thread(worker.stop)
        await asyncio.to_thread(served.encoders.stop)


async def _fields(request: Request) -> Fields:
    """The fields of the body.

    Raises:
        ApiError: a body of another type, one that is too large, or too slow.
        Gone: the client disconnected before its end.
    """
    from starlette.requests import ClientDisconnect

    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # also rejects forms of other sites
        raise wrong("a body of content-type application/json", kind or "none", "set the header", status=415)
    if (coding := request.headers.get("content-encoding", "identity")) != "identity":
        raise wrong("a body without content-encoding", coding, "send it uncompressed", status=415)
    too_large = wrong(f"a body of at most {MAX_BODY:,} bytes", "a larger one", "send less", status=413)
    size = request.headers.get("content-length", "0")
    if not size.isdecimal() or int(size[:20]) > MAX_BODY:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:
                    raise too_large
    except ClientDisconnect:
        raise Gone from None
    except TimeoutError:
        raise wrong(f"a body within {BODY_SECONDS:g} s", "a slower one", "send it faster", status=TOO_SLOW) from None
    return parsed(bytes(body))
