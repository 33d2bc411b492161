"""Open a step graph that may come from a stranger: every way in which it is not ours ends in one line.

Checked here, before the first step: the file, the provider, the metadata, that the graph's inputs and outputs are
exactly those the metadata promises, and that the provider runs it. A state under another name would otherwise stay at
its initial value, and a node without a provider would run on the CPU, both silently.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from t2r_runtime import providers
from t2r_runtime.errors import UserError, printable
from t2r_runtime.interface import Form, check_interface, first_feeds
from t2r_runtime.signature import GENERATE, PREFILL, ROLES, STEP, Signature, StateSpec

if TYPE_CHECKING:
    import onnxruntime as ort

TYPES = {
    "tensor(double)": "float64",
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}


@dataclass(frozen=True)
class Graph:
    """An opened step graph: the session, what its metadata says, where its states live and what ran where."""

    session: ort.InferenceSession
    signature: Signature
    device: str
    placement: Mapping[str, int]  # provider → number of nodes
    captured: bool = False  # steps are replayed as CUDA graphs
    # opened when they are first used:
    prefill: Callable[[], ort.InferenceSession] | None = None  # reads many tokens at once, with the same states
    loop: Callable[[], ort.InferenceSession] | None = None  # writes by itself


def open_graph(
    path: str | Path,
    provider: str = "cpu",
    threads: int | None = None,
    provider_options: Mapping[str, str] | None = None,
    allow_fallback: bool = False,
    config: Mapping[str, str] | None = None,
    prefill: bool = True,
    loop: bool = True,
) -> Graph:
    """Open `path` and check that it is a step graph of this contract.

    The graphs beside it that it names must be there; each is opened, and checked, when it is first used.

    Args:
        path: the .onnx file; weights stored outside of it must lie in its folder.
        provider: a key of t2r_runtime.PROVIDERS.
        threads: threads inside an operator; None is one a physical core, or one a core that this process may use where
            those are fewer than the machine's.
        provider_options: passed on to the provider, over those of PROVIDERS.
        allow_fallback: let other providers run the nodes that this one does not take.
        config: entries of ONNX Runtime's session configuration.
        prefill: have the prefill graph too. On WebGPU it is left out, where the memory of states is one session's.
        loop: have the graph that writes too, on the CPU; others leave its choice of a token to the CPU.

    Raises:
        UserError: an unknown or missing provider, no such file, not a graph, a graph that ONNX Runtime or the provider
            refuses, no metadata of ours, inputs and outputs that are not those of the metadata, or nodes that the
            provider did not take.
    """
    extra = dict(provider_options or {})
    chosen = providers.find_provider(provider)
    captured = _captured(chosen, extra)
    session, signature, taken = _open(
        existing_file(path, "an ONNX file"), provider, _options(threads, config or {}), extra, allow_fallback
    )
    if signature.role != STEP:
        raise UserError("a step graph", f"a {ROLES[signature.role]}", "open the step graph that names it")
    many = None
    if prefill and PREFILL in signature.graphs and chosen.device != "webgpu":
        options = _options(threads, config or {})
        if signature.quantization == "none":
            # for many rows, products of weights as they lie in the file are as fast: no second copy of them in memory
            options.add_session_config_entry("session.disable_prepacking", "1")
        options.add_session_config_entry("session.force_spinning_stop", "1")  # its threads are not in the steps' way
        free = {key: value for key, value in extra.items() if key != "enable_cuda_graph"}  # prompts differ in length
        place = _beside(Path(path), signature, PREFILL, "prefill")
        many = _when_used(place, Path(path), signature.companion(PREFILL), provider, options, free, allow_fallback)
    writer = None
    if loop and GENERATE in signature.graphs and provider == "cpu":
        place = _beside(Path(path), signature, GENERATE, "loop")
        options = _options(threads, config or {})
        writer = _when_used(place, Path(path), signature.companion(GENERATE), provider, options, extra, allow_fallback)
    return Graph(session, signature, chosen.device, providers.counted(taken), captured, many, writer)


def _beside(step: Path, signature: Signature, role: str, option: str) -> Path:
    """The path of the companion of that role, which the step graph at `step` names."""
    path = step.with_name(signature.graphs[role])
    if not path.is_file():
        raise UserError(
            f"the {ROLES[role]} {path.name} beside {step.name}", "none", f"put it there, or use {option}=False"
        )
    return path


def _when_used(
    path: Path,
    step: Path,
    expected: Signature,
    provider: str,
    options: ort.SessionOptions,
    extra: Mapping[str, str],
    allow_fallback: bool,
) -> Callable[[], ort.InferenceSession]:
    """What opens the graph at `path`, which the step graph at `step` names, once: it takes as long as that one."""

    @functools.cache
    def opened() -> ort.InferenceSession:
        session, other, _ = _open(path, provider, options, extra, allow_fallback)
        if other != expected:
            raise UserError(f"in {path.name} the same model as in {step.name}", "another", "export both again")
        return session

    return opened


def _open(
    path: Path, provider: str, options: ort.SessionOptions, extra: Mapping[str, str], allow_fallback: bool
) -> tuple[ort.InferenceSession, Signature, providers.Placement]:
    """One graph of this contract."""
    chosen = providers.find_provider(provider)
    try:
        session = providers.open_session(path, chosen, options, extra)
        metadata = session.get_modelmeta().custom_metadata_map
    except UserError:
        raise
    except Exception as error:  # ONNX Runtime's errors have no common base below Exception
        who = "ONNX Runtime" if provider == "cpu" else f"{provider}'s {chosen.ort_name} here"
        too_new = re.search("Current official support for domain .* is till opset [0-9]+", str(error))
        if too_new:
            raise UserError(
                f"an opset that {who} reads",
                f"a newer one ({too_new[0]})",
                "export with --target portable or fused, or set ALLOW_RELEASED_ONNX_OPSET_ONLY=0 in the environment",
            ) from error
        raise UserError(
            f"an ONNX graph that {who} accepts", printable(error), "export the model again with t2r-export"
        ) from error
    signature = read_signature(metadata)
    check_interface(
        signature,
        {node.name: _form(node) for node in session.get_inputs()},
        {node.name: _form(node) for node in session.get_outputs()},
    )
    if _captured(chosen, extra):
        signature.require_constant("for CUDA graphs (enable_cuda_graph)")
    try:
        taken = providers.placement(session, chosen, first_feeds(signature))
    except Exception as error:  # as above
        raise UserError(f"a first step on {provider}", printable(error), "choose another provider") from error
    if not allow_fallback:
        providers.check_placement(provider, chosen, taken)
    return session, signature, taken


def _fewer_cores() -> int | None:
    """The cores that this process may use, where that is not all of them."""
    if not hasattr(os, "sched_getaffinity"):  # macOS, Windows
        return None
    usable = len(os.sched_getaffinity(0))
    return usable if usable < (os.cpu_count() or usable) else None


def _captured(provider: providers.Provider, extra: Mapping[str, str]) -> bool:
    """Whether steps are to be replayed as CUDA graphs."""
    return extra.get("enable_cuda_graph", "0") in ("1", "True", "true") and provider.device == "cuda"


def existing_file(path: str | Path, what: str) -> Path:
    """`path` as a Path, if it is a regular file: a pipe or a device would be read for ever."""
    if not os.path.isfile(path):
        why = "is not a file" if os.path.exists(path) else "does not exist"
        raise UserError(what, f"{path}, which {why}", "check the path")
    return Path(path)


def _options(threads: int | None, config: Mapping[str, str]) -> ort.SessionOptions:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4  # what goes wrong arrives as an exception; the log would say it a second time
    if threads is None:
        # ONNX Runtime counts the machine's cores; threads of a process that may use fewer would wait for each other
        threads = _fewer_cores()
    if threads is not None:
        if type(threads) is not int or threads < 1:
            raise UserError("a number of threads of at least 1", repr(threads), "leave it out for one a physical core")
        options.intra_op_num_threads = threads
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    return options


def read_signature(metadata: Mapping[str, str]) -> Signature:
    """The signature in a graph's metadata, with every value checked.

    Raises:
        UserError: no metadata of ours, or of another version, or without a key, or with a malformed value.
    """
    try:
        signature = Signature.from_metadata(metadata)
        problems = _malformed(signature)
    except UserError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        problems = [printable(error)]
        raise _bad_metadata(problems) from error
    if problems:
        raise _bad_metadata(problems)
    return signature


def _bad_metadata(problems: list[str]) -> UserError:
    return UserError("metadata of the contract's form", printable("; ".join(problems)), "export the model again")


def _malformed(signature: Signature) -> list[str]:
    """What is wrong with the values of metadata that has all its keys; JSON from a stranger can hold anything."""

    def count(value: Any) -> bool:
        return type(value) is int and value > 0

    def token(value: Any) -> bool:
        return type(value) is int and 0 <= value < signature.vocab_size

    def initial(spec: StateSpec) -> bool:
        kind = np.dtype(spec.dtype)
        most = float((np.finfo if kind.kind == "f" else np.iinfo)(kind).max)
        return type(spec.initial) in (int, float) and abs(spec.initial) <= most

    names = [spec.name for spec in signature.states]
    strings = (signature.checkpoint_sha256, signature.producer, signature.target, signature.quantization)
    checks = {
        "vocab_size": count(signature.vocab_size),
        "batch": signature.batch is None or count(signature.batch),
        "max_positions": signature.max_positions is None or count(signature.max_positions),
        "past_end": signature.past_end in ("refuse", "clamp"),
        "states": all(isinstance(name, str) for name in names)
        and len(set(names)) == len(names)
        and all(initial(spec) and type(spec.constant) is bool for spec in signature.states)
        and all(type(d) in (int, str) for spec in signature.states for d in spec.shape),
        "checkpoint_sha256, producer, target, quantization": all(isinstance(text, str) for text in strings),
        "tokenizer": signature.tokenizer is None or isinstance(signature.tokenizer, str),
        "top_k": signature.top_k is None or (count(signature.top_k) and signature.top_k <= signature.vocab_size),
        "role": isinstance(signature.role, str) and signature.role in ROLES,
        "graphs": isinstance(signature.graphs, Mapping)
        and all(map(_is_file_name, signature.graphs.values()))
        and (signature.role == STEP or not signature.graphs),
        "layers": all(isinstance(layer, Mapping) for layer in signature.layers),
    }
    problems = [f"a bad value of {key}" for key, good in checks.items() if not good]
    if not problems and not all(token(t) for t in (*signature.eos_tokens, signature.bos_token or 0)):
        problems = ["a bad value of bos_token or eos_tokens"]
    return problems


def _is_file_name(name: Any) -> bool:
    """Whether this names a file in a graph's own folder: a stranger's graph must not lead anywhere else."""
    return isinstance(name, str) and name.isprintable() and name not in ("", ".", "..") and not set(name) & set("/\\:")


def _form(node: ort.NodeArg) -> Form:
    return TYPES.get(node.type, node.type), tuple(node.shape or ())
