"""The options that choose a provider, and the report of a graph whose nodes are split between providers."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from t2r_runtime.cli.output import note
from t2r_runtime.errors import UserError
from t2r_runtime.session.providers import named
from t2r_runtime.session.refusals import existing_graph

if TYPE_CHECKING:
    from t2r_runtime import Decoder, Translator

F = TypeVar("F", bound=Callable[..., Any])


def read(text: str) -> tuple[str, tuple[str, ...], bool]:
    """`qnn+cpu:soc_model=57,htp_arch=75` -> a provider, its options, and whether the CPU runs what it does not take.

    What has no = goes on with the value before it, so that values may have commas.

    Raises:
        UserError: no such provider, or another form.
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
        raise UserError("+cpu behind a provider, or nothing", repr(f"+{other}"), "correct --provider")
    return name, tuple(given), bool(plus)


def options(function: F) -> F:
    """The option `--provider`, given to the command as `provider`, `provider_options` and `allow_fallback`."""

    def split_up(context: click.Context, option: click.Parameter, value: str) -> str:
        name, context.params["provider_options"], context.params["allow_fallback"] = read(value)
        return name

    return click.option(
        "--provider",
        default="cpu",
        show_default=True,
        metavar="NAME[+cpu][:KEY=VALUE,…]",
        callback=split_up,
        help="Execution provider of ONNX Runtime that runs the graph, with options for it; with +cpu, the CPU runs the "
        "nodes that it does not take.",
    )(function)


def parsed(given: Sequence[str]) -> dict[str, str]:
    """Options as a provider takes them."""
    return {key: value for key, _, value in (option.partition("=") for option in given)}


@contextlib.contextmanager
def own_stdout() -> Iterator[None]:
    """Send to stderr what native libraries print meanwhile; the QNN simulator greets on stdout, where results go."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def opened(
    graph: Path,
    provider: str,
    threads: int | None,
    provider_options: Sequence[str],
    allow_fallback: bool,
    **more: int,
) -> Decoder:
    """The graph as the options say. `more` are arguments of t2r_runtime.Decoder."""
    decoder: Decoder = _opened("Decoder", graph, provider, threads, provider_options, allow_fallback, **more)
    return decoder


def decoder_alone(
    graph: Path,
    provider: str,
    threads: int | None,
    provider_options: Sequence[str],
    allow_fallback: bool,
    **more: int,
) -> Decoder:
    """`opened`, of a model without an encoder."""
    decoder = opened(graph, provider, threads, provider_options, allow_fallback, **more)
    if decoder.signature.source is not None:
        raise UserError("the graph of a decoder alone", "a translator's", "use translate")
    return decoder


def translator(
    graph: Path, provider: str, threads: int | None, provider_options: Sequence[str], allow_fallback: bool
) -> Translator:
    """The translator as the options say."""
    made: Translator = _opened("Translator", graph, provider, threads, provider_options, allow_fallback)
    return made


def _opened(
    kind: str,
    graph: Path,
    provider: str,
    threads: int | None,
    provider_options: Sequence[str],
    allow_fallback: bool,
    **more: int,
) -> Any:
    """What of the runtime opens a graph, by its name, on this one."""
    existing_graph(graph)

    import t2r_runtime

    with own_stdout():
        return getattr(t2r_runtime, kind)(graph, provider, threads, parsed(provider_options), allow_fallback, **more)


def note_split(provider: str, placement: Mapping[str, int]) -> None:
    """Say on stderr who runs how many nodes, if anybody but `provider` runs any."""
    if any(name != provider for name in placement):
        note(split(provider, placement))


def split(provider: str, placement: Mapping[str, int]) -> str:
    """Who runs how many nodes, `provider` first, even if it takes none."""
    others = ", ".join(f"{name} {count}" for name, count in placement.items() if name != provider)
    return f"{provider} runs {placement.get(provider, 0)} of {sum(placement.values())} nodes, {others}"
