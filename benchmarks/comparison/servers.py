"""Servers of decoders on loopback, each in its own process: `t2r-run serve`, and llama.cpp's `llama-server`."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from comparison.engines import ENGINES as DECODERS
from comparison.engines import Candidate, Engine, Files, parse, require_installed
from comparison.peer_files import write_gguf
from comparison.sizes import softmax_model
from t2r_export.python import ARGUMENTS
from t2r_runtime.errors import UserError

HOST = "127.0.0.1"
LISTENS = re.compile(r"(?:serving|listening) .*?on http://127\.0\.0\.1:(\d+)\n")
LLAMA_SERVER = "llama-server"  # a program on the PATH
KEEP_MB = 8192  # limit of kept session states
PATIENCE = 240  # timeout in seconds for a start or an answer


@dataclass(frozen=True, kw_only=True)
class Place:
    """Settings of a server.

    Args:
        slots: texts side by side.
        context: maximum tokens of a text.
        folder: folder of its log and kept texts.
        keeps: whether it keeps texts across restarts.
    """

    slots: int
    context: int
    threads: int
    folder: Path
    keeps: bool = False


class Server:
    """A server that runs until the end of a `with` block.

    Raises:
        UserError: it does not start; quotes the end of its output.
    """

    path: str  # of completions

    def __init__(self, files: Files, place: Place) -> None:
        self.files, self.place = files, place
        place.folder.mkdir(parents=True, exist_ok=True)
        self._log = place.folder / "log"
        self._start()

    def _start(self) -> None:
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.port = self._listening()

    def restart(self) -> None:
        """Kill the server with SIGKILL, and start it again."""
        self.kill()
        self._start()

    def command(self) -> list[str]:
        """The command line."""
        raise NotImplementedError

    def body(self, ids: Sequence[int], tokens: int, text: int) -> dict[str, Any]:
        """A request that streams `tokens` greedy tokens after `ids`.

        Args:
            text: the number of the text, below `slots`. Its tokens that were read before are not read again.
        """
        raise NotImplementedError

    def keep(self, text: int) -> None:
        """Write the states of a text to a file, unless the server has done so."""

    def recall(self, text: int) -> None:
        """Read that file after a restart, unless a request does so."""

    def _listening(self) -> int:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            if (found := LISTENS.search(self.said())) is not None:
                return int(found[1])
            time.sleep(0.05)
        self.kill()
        received = " ".join(self.said().split())[-400:]
        raise UserError("a server that listens", received, "leave that engine out, or correct it")

    def said(self) -> str:
        """Standard output and error so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def ask(self, path: str, body: Any = None) -> bytes:
        """The response to a GET, or to a POST if there is a body. Raises OSError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{HOST}:{self.port}{path}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return bytes(answer.read())

    def resident(self) -> int:
        """Resident bytes of the process; 0 without /proc."""
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]
        return 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)
        self.kill()


class T2RServer(Server):
    """`t2r-run serve`; a text is a session, whose states are kept when an answer ends."""

    path = "/v1/completions"

    def command(self) -> list[str]:
        place = self.place
        options: dict[str, object] = {
            "port": 0,
            "rows": place.slots,
            "queue": 2 * place.slots,
            "threads": place.threads,
        }
        options |= {"keep-mb": KEEP_MB, **(self.files.options or {})}
        options |= {"keep": place.folder / "keep"} if place.keeps else {}
        given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        return [*ARGUMENTS, "-m", "t2r_runtime", "serve", str(self.files.path), *given]

    def body(self, ids: Sequence[int], tokens: int, text: int) -> dict[str, Any]:
        asked = {"prompt": list(ids), "max_tokens": tokens, "session_id": str(text), "stream": True}
        return {**asked, "temperature": 0, "ignore_eos": True, "return_tokens": True}

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = self.ask("/metrics").decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[ {{]", line))


class LlamaServer(Server):
    """llama.cpp's server; a text is a slot, which a client saves and restores by name."""

    path = "/completion"

    def command(self) -> list[str]:
        place = self.place
        options: dict[str, object] = {"model": self.files.path, "host": HOST, "port": 0, "parallel": place.slots}
        options |= {"ctx-size": place.slots * place.context, "threads": place.threads, "threads-batch": place.threads}
        # no further copies of prompts in memory besides the slots: they would cost it time
        options |= {"slot-save-path": place.folder, "cache-ram": 0}
        return [LLAMA_SERVER, *(part for name, value in options.items() for part in (f"--{name}", str(value)))]

    def body(self, ids: Sequence[int], tokens: int, text: int) -> dict[str, Any]:
        asked = {"prompt": list(ids), "n_predict": tokens, "id_slot": text, "cache_prompt": True, "stream": True}
        return {**asked, "samplers": ["top_k"], "top_k": 1, "ignore_eos": True}  # its fastest greedy sampling

    def keep(self, text: int) -> None:
        self.ask(f"/slots/{text}?action=save", {"filename": f"{text}.bin"})

    def recall(self, text: int) -> None:
        self.ask(f"/slots/{text}?action=restore", {"filename": f"{text}.bin"})


def parsed(engines: Sequence[str]) -> list[Candidate]:
    """The candidates; graphs of t2r get a dynamic batch and a prefill graph, which are not part of their names.

    Raises:
        UserError: as for `parse`, a repeated candidate, or a missing requirement of an engine.
    """
    if len(set(engines)) != len(engines) or not engines:
        raise UserError("engines, each once", ", ".join(engines) or "none", "correct the plan")
    whole = [f"{text}:batch=any:prefill=1" if text.startswith("t2r") else text for text in engines]
    candidates = [replace(parse(each, ENGINES), name=text) for text, each in zip(engines, whole, strict=True)]
    require_installed(candidates, ENGINES)
    if any(c.engine == LLAMA_SERVER for c in candidates) and shutil.which(LLAMA_SERVER) is None:
        raise UserError(f"llama.cpp's {LLAMA_SERVER} on the PATH", "none", "build it, or measure without that engine")
    return candidates


def _make_llama(candidate: Candidate, size: str, folder: Path) -> Files:
    path = write_gguf(softmax_model(size), folder / "model.gguf", candidate.form, words=True)
    return Files(path, path.stat().st_size)


LLAMA = Engine(("Q4_0", "Q8_0", "F32"), (), ("gguf",), _make_llama)
ENGINES: dict[str, Engine[str]] = {"t2r": DECODERS["t2r"], LLAMA_SERVER: LLAMA}
SERVERS: dict[str, type[Server]] = {"t2r": T2RServer, LLAMA_SERVER: LlamaServer}
