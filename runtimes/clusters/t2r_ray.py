"""Serve a graph on a Ray cluster: replicas, sessions that stay where their states are, streams that outlive a replica.

    serve run t2r_ray:app graph=story.onnx keep=/shared/sessions replicas=4

POST /v1/completions is that of `t2r-run serve`. With `session_id`, requests of a session go to the replica that has its
states (model multiplexing, with the session as the model); every replica writes them to the folder `keep`, so that any
other one can load them. If a replica dies, its streams continue at another one, after the tokens that were
sent: the same tokens, if they are the most likely ones (temperature 0).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse

from t2r_runtime import Decoder, Translator
from t2r_runtime.serve import run
from t2r_runtime.serve.access import Access
from t2r_runtime.serve.answer import Answer
from t2r_runtime.serve.completions import MAX_TOKENS, complete
from t2r_runtime.serve.errors import ApiError
from t2r_runtime.serve.fields import Fields
from t2r_runtime.serve.log import Log
from t2r_runtime.serve.models import Limits

SESSIONS = 1024  # of a replica, that the router knows of
KEEP_BYTES = 1 << 30
ATTEMPTS = 5  # replicas that may die under one request


@serve.deployment
class Decoders:
    """A replica: the rows and sessions of `t2r-run serve`, without HTTP."""

    def __init__(self, graph: str, keep: str, rows: int, threads: int) -> None:
        def decoder(path: Path) -> Decoder:
            return Decoder(path, threads=threads)

        def translator(path: Path) -> Translator:
            return Translator(path, threads=threads)

        limits = Limits(rows), Path(keep), KEEP_BYTES
        self._served = run.served([Path(graph)], decoder, translator, *limits, Access(), Log())
        self._model = self._served.model(None)
        self._engine = self._model.decoder()
        self._started = False

    @serve.multiplexed(max_num_models_per_replica=SESSIONS)
    async def _here(self, session: str) -> str:
        """Tell the router that this replica has the states of a session."""
        return session

    async def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        return await asyncio.to_thread(self._model.text().encode, text)

    async def answer(self, body: dict[str, Any]) -> AsyncIterator[str]:
        """The events of a stream; an error is the last of them."""
        if not self._started:
            self._started = True
            self._engine.start(asyncio.get_running_loop())
        if session := serve.get_multiplexed_model_id():
            await self._here(session)
        answer: Answer | None = None
        try:
            answer, _ = await complete(self._served, self._model, Fields(body))
            async for event in answer.events():
                yield event
        except ApiError as error:
            yield f"data: {json.dumps(error.body)}\n\n"
        finally:
            if answer is not None:
                answer.close()


@serve.deployment
class Front:
    """What clients talk to: it sends a request to a replica, and what is left of it to another one if that dies."""

    def __init__(self, decoders: DeploymentHandle) -> None:
        self._decoders = decoders

    async def __call__(self, request: Request) -> Any:
        """Answer /v1/completions: a stream of one text."""
        try:
            body = await request.json()
        except ValueError:
            body = None
        if not _is_stream(body):
            message = "expected an object with stream: true and one text; received another; see docs/clusters.md"
            return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, 400)
        return StreamingResponse(self._events(body), media_type="text/event-stream")

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        if isinstance(body.get("prompt"), str):
            body = {**body, "prompt": await self._decoders.ids.remote(body["prompt"])}
        session = str(body.get("session_id") or "")
        replicas = self._decoders.options(stream=True, multiplexed_model_id=session)
        for attempt in range(ATTEMPTS):
            sent: list[int] = []
            try:
                async for event in replicas.answer.remote({**body, "return_tokens": True}):
                    sent += _tokens(event)
                    yield event
                return
            except (RayError, RayServeException):
                if attempt == ATTEMPTS - 1:
                    raise
                left = body.get("max_tokens", MAX_TOKENS) - len(sent)
                body = {**body, "prompt": [*body["prompt"], *sent], "max_tokens": left}


def _is_stream(body: Any) -> bool:
    """Whether a body requests a stream of one text."""
    if not isinstance(body, dict) or body.get("stream") is not True or body.get("n", 1) != 1:
        return False
    prompt = body.get("prompt")
    return isinstance(prompt, str) or (isinstance(prompt, list) and all(type(token) is int for token in prompt))


def _tokens(event: str) -> list[int]:
    """The tokens of an event of a stream."""
    data = event.removeprefix("data: ").strip()
    found = {} if data == "[DONE]" else json.loads(data)
    return [token for choice in found.get("choices", ()) for token in choice["tokens"]]


def app(arguments: dict[str, str]) -> serve.Application:
    """The application, of `graph`, `keep`, and optionally `replicas`, `rows`, `threads` and `cpus` of a replica."""
    replicas, rows, threads = (int(arguments.get(name, "1")) for name in ("replicas", "rows", "threads"))
    actor = {"num_cpus": float(arguments.get("cpus", threads))}
    decoders = Decoders.options(num_replicas=replicas, max_ongoing_requests=2 * rows, ray_actor_options=actor)
    front = Front.options(max_ongoing_requests=1024, ray_actor_options={"num_cpus": 0})
    return front.bind(decoders.bind(arguments["graph"], arguments["keep"], rows, threads))
