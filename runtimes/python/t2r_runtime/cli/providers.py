"""The options `--provider` and `--threads`, and the graphs that they open."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from t2r_runtime.cli.output import note
from t2r_runtime.errors import UserError
from t2r_runtime.session.providers import named
from t2r_runtime.session.refusals import existing_graph

if TYPE_CHECKING:
    from t2r_runtime import Decoder, Translator

F = TypeVar("F", bound=Callable[..., Any])


class Provider(NamedTuple):
    """A value of `--provider`."""

    name: str
    options: dict[str, str]
    allow_fallback: bool


CPU = Provider("cpu", {}, False)


def read(text: str) -> Provider:
    """Parse a provider, such as `qnn+cpu:soc_model=57,htp_arch=75`. A part without = continues the previous value.

    Raises:
        UserError: an unknown provider or a malformed text.
    """
    name, _, rest = text.partition(":")
    name, plus, other = name.partition("+")
    named(name)
    given: list[str] = []
    for part in rest.split(",") if rest else []:
        if "=" in part:
            given.append(part)
        elif given:
            given[-1] += f",{part}"
        else:
            raise UserError("a provider as NAME:KEY=VALUE,KEY=VALUE", repr(text), "correct --provider")
    if plus and other != "cpu":
        raise UserError("+cpu or nothing after a provider's name", repr(f"+{other}"), "correct --provider")
    return Provider(name, {key: value for key, _, value in (option.partition("=") for option in given)}, bool(plus))


def option(function: F) -> F:
    """Add the option `--provider`; the command gets a Provider as `provider`."""
    return click.option(
        "--provider",
        default="cpu",
        show_default=True,
        metavar="NAME[+cpu][:KEY=VALUE,…]",
        callback=lambda context, parameter, value: read(value),
        help="ONNX Runtime execution provider and its options; +cpu runs unsupported nodes on the CPU.",
    )(function)


def threads_option(function: F) -> F:
    """Add the option `--threads`; None chooses by the size of the graph."""
    text = "Number of intra-op threads. Default: chosen by the size of the graph."
    return click.option("--threads", type=click.IntRange(min=1), help=text)(function)


@contextlib.contextmanager
def own_stdout() -> Iterator[None]:
    """Redirect what native libraries print on stdout to stderr; the QNN simulator prints a greeting."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def decoder(graph: Path, provider: Provider, threads: int | None, prefill_from: int = 1) -> Decoder:
    """Open a decoder; see t2r_runtime.Decoder. A translator's graph is accepted."""
    existing_graph(graph)

    from t2r_runtime import Decoder

    name, options, allow_fallback = provider
    with own_stdout():
        opened = Decoder(graph, name, threads, options, allow_fallback, prefill_from=prefill_from)
    for line in opened.signature.warnings:
        note(f"note: {line}")
    return opened


def decoder_alone(graph: Path, provider: Provider, threads: int | None, prefill_from: int = 1) -> Decoder:
    """Open a decoder that is not a translator's. Raises UserError if it is."""
    opened = decoder(graph, provider, threads, prefill_from)
    if opened.signature.source is not None:
        raise UserError("the graph of a decoder", "a translator's", "use translate")
    return opened


def draft(given: str | None, threads: int | None) -> str | Decoder | None:
    """The `draft` of Decoder.generate, as `--draft` gives it; a graph is opened on the CPU."""
    from t2r_runtime.decode.speculation import LOOKUP

    if given is None or given == LOOKUP:
        return given
    return decoder_alone(Path(given), CPU, threads)


def translator(graph: Path, provider: Provider, threads: int | None) -> Translator:
    """Open a translator; see t2r_runtime.Translator."""
    existing_graph(graph)

    from t2r_runtime import Translator

    with own_stdout():
        opened = Translator(graph, provider.name, threads, provider.options, provider.allow_fallback)
    for line in opened.signature.warnings:
        note(f"note: {line}")
    return opened


def note_split(provider: str, placement: Mapping[str, int]) -> None:
    """Print on stderr how many nodes each provider runs, if another than `provider` runs any."""
    if any(name != provider for name in placement):
        note(split(provider, placement))


def split(provider: str, placement: Mapping[str, int]) -> str:
    """How many nodes each provider runs, `provider` first, even if it runs none."""
    others = ", ".join(f"{name} {count}" for name, count in placement.items() if name != provider)
    return f"{provider} runs {placement.get(provider, 0)} of {sum(placement.values())} nodes, {others}"
