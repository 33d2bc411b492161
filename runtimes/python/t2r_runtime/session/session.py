"""Open a step graph that may come from a stranger: every way in which it is not ours ends in one line.

Checked here, before the first step: the file, the provider, the metadata, that the graph's inputs and outputs are
exactly those the metadata promises, and that the provider runs it. A state under another name would otherwise stay at
its initial value, and a node without a provider would run on the CPU, both silently.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import t2r_runtime.session.providers as providers
from t2r_runtime.checks import listed, require_kind
from t2r_runtime.contract.signature import (
    COMPANIONS,
    DRAFT_CHECK,
    GENERATE,
    MAX_STATE_BYTES,
    PREFILL,
    ROLES,
    STEP,
    Signature,
)
from t2r_runtime.errors import UserError, printable
from t2r_runtime.session.interface import Form, check_interface, first_feeds
from t2r_runtime.session.refusals import existing_graph, not_opened
from t2r_runtime.session.threads import once
from t2r_runtime.session.tuning import threads_for, usable_cores

if TYPE_CHECKING:
    import onnxruntime as ort

IN_SESSIONS = (PREFILL, DRAFT_CHECK)  # sessions of their own beside the step's, on the same states
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

    path: Path
    session: ort.InferenceSession
    signature: Signature
    device: str
    placement: Mapping[str, int]  # provider → number of nodes
    captured: bool = False  # steps are replayed as CUDA graphs
    max_state_bytes: int = MAX_STATE_BYTES  # of all states at batch 1, as the caller allows
    # by role, what opens another graph of the same states when it is first used
    companions: Mapping[str, Callable[[], ort.InferenceSession]] = field(default_factory=dict)


def open_graph(
    path: str | Path,
    provider: str = "cpu",
    threads: int | None = None,
    provider_options: Mapping[str, str] | None = None,
    allow_fallback: bool = False,
    config: Mapping[str, str] | None = None,
    companions: Collection[str] = COMPANIONS,
    max_state_bytes: int = MAX_STATE_BYTES,
) -> Graph:
    """Open `path` and check that it is a step graph of this contract.

    The companions that it names must lie beside it; each is opened, and checked, when it is first used.

    Args:
        path: the .onnx file; weights stored outside of it must lie in its folder.
        provider: a key of t2r_runtime.PROVIDERS.
        threads: threads inside an operator; None is as many as `tuning` finds right for the graph's bytes,
            and for companions that read many tokens in a run one a physical core that this process may use.
        provider_options: passed on to the provider, over those of PROVIDERS.
        allow_fallback: let other providers run the nodes that this one does not take.
        config: entries of ONNX Runtime's session configuration, for this graph and its companions.
        companions: roles of the companions to have too. On WebGPU those that share states with the step are left
            out, where the memory of states is one session's; and the generation graph is for the CPU alone.
        max_state_bytes: the most that all states may take at batch 1; more is refused before any is made.

    Raises:
        UserError: an unknown or missing provider, no such file, not a graph, a graph that ONNX Runtime or the provider
            refuses, no metadata of ours, inputs and outputs that are not those of the metadata, or nodes that the
            provider did not take.
    """
    extra = _texts({} if provider_options is None else provider_options, "provider_options")
    roles = listed(companions, "roles of companions", "graph")
    require_kind(max_state_bytes, int, "a number of bytes as max_state_bytes", "metadata")
    chosen = providers.find_provider(provider)
    captured = _captured(chosen, extra)
    path = existing_graph(path)
    given = _texts({} if config is None else config, "session_config")
    steps = threads_for(path, provider, threads)
    session, signature, taken = _open(
        path, provider, _options(steps, given), extra, allow_fallback, max_state_bytes, STEP
    )
    left_out = [*((GENERATE,) if provider != "cpu" else ()), *(IN_SESSIONS if chosen.device == "webgpu" else ())]
    others = {}
    for role in signature.graphs:
        if role in roles and role not in left_out:
            more = dict(given)
            if role in IN_SESSIONS:
                # for many rows, products of weights as they lie in the file are as fast: no second copy of them
                if signature.quantization == "none":
                    more.setdefault("session.disable_prepacking", "1")
                more.setdefault("session.force_spinning_stop", "1")  # not in the way of the steps
            # what reads many tokens in a run gives more threads enough to do
            count = usable_cores() if threads is None and role != GENERATE else steps
            options = _options(count, more)
            # prompts differ in length: no captured graphs
            free = {key: value for key, value in extra.items() if key != "enable_cuda_graph"}
            others[role] = _when_used(path, signature, role, provider, options, free, allow_fallback, max_state_bytes)
    return Graph(path, session, signature, chosen.device, providers.counted(taken), captured, max_state_bytes, others)


def _when_used(
    step: Path,
    signature: Signature,
    role: str,
    provider: str,
    options: ort.SessionOptions,
    extra: Mapping[str, str],
    allow_fallback: bool,
    max_state_bytes: int,
) -> Callable[[], ort.InferenceSession]:
    """What opens the companion that the step graph at `step` names, once: it takes as long as that one."""
    path = step.with_name(signature.graphs[role])
    if not path.is_file():
        do = "copy the files beside it too, or leave its role out of companions"
        raise UserError(f"the {ROLES[role]} {path.name} beside {step.name}", "none", do, "file")

    @once
    def opened() -> ort.InferenceSession:
        session, other, _ = _open(path, provider, options, extra, allow_fallback, max_state_bytes, role)
        if other != signature.companion(role):
            raise UserError(f"in {path.name} the same model as in {step.name}", "another", "export both again", "graph")
        return session

    return opened


def _open(
    path: Path,
    provider: str,
    options: ort.SessionOptions,
    extra: Mapping[str, str],
    allow_fallback: bool,
    max_state_bytes: int,
    role: str,
) -> tuple[ort.InferenceSession, Signature, providers.Placement]:
    """One graph of this contract, of that role."""
    chosen = providers.find_provider(provider)
    try:
        session = providers.open_session(path, chosen, options, extra)
        metadata = session.get_modelmeta().custom_metadata_map
    except UserError:
        raise
    except Exception as error:  # ONNX Runtime's errors have no common base below Exception
        who = "ONNX Runtime" if provider == "cpu" else f"{provider}'s {chosen.ort_name} here"
        raise not_opened(path, who, error) from error
    signature = Signature.from_metadata(metadata, max_state_bytes)
    if signature.role != role:
        do = "open the step graph that names it"
        raise UserError(f"a {ROLES[role]}", f"a {ROLES[signature.role]}", do, "graph")
    signature.require_memory(signature.batch or 1, max_state_bytes)
    check_interface(
        signature,
        forms(session.get_inputs()),
        forms(session.get_outputs()),
    )
    if _captured(chosen, extra):
        signature.require_constant("for CUDA graphs (enable_cuda_graph)")
    try:
        taken = providers.placement(session, chosen, lambda: first_feeds(signature))
    except Exception as error:  # as above
        raise UserError(
            f"a first step on {provider}", printable(error), "choose another provider", "provider"
        ) from error
    if not allow_fallback:
        providers.check_placement(provider, chosen, taken, () if signature.source is None else chosen.elsewhere)
    return session, signature, taken


def _captured(provider: providers.Provider, extra: Mapping[str, str]) -> bool:
    """Whether steps are to be replayed as CUDA graphs."""
    return extra.get("enable_cuda_graph", "0") in ("1", "True", "true") and provider.device == "cuda"


def _options(threads: int | None, config: Mapping[str, str]) -> ort.SessionOptions:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4  # what goes wrong arrives as an exception; the log would say it a second time
    # No plan of which results share memory: it is made when a graph is opened, at worst in the square of its nodes, and
    # what is freed goes back to the arena, where the next result finds it.
    options.enable_mem_reuse = False
    if threads is not None:
        options.intra_op_num_threads = threads
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    return options


def _texts(options: Mapping[str, str], name: str) -> dict[str, str]:
    """A mapping of texts to texts, and nothing else: ONNX Runtime's own messages name neither."""
    require_kind(options, Mapping, f"a mapping of texts as {name}", "provider")
    for text in (*options.keys(), *options.values()):
        require_kind(text, str, f"texts in {name}", "provider")
    return dict(options)


def forms(nodes: Sequence[ort.NodeArg]) -> dict[str, Form]:
    """Inputs or outputs of a session by name, each with its dtype and dimensions."""
    return {node.name: (TYPES.get(node.type, node.type), tuple(node.shape or ())) for node in nodes}
