"""Opens a step graph of unknown origin; every defect is an error of one line.

Checked before the first step: the file, the provider, the metadata, that the inputs and outputs are those of the
metadata, and that the provider runs the graph. Otherwise a state of another name would keep its initial value, and a
node that the provider does not support would run on the CPU, both silently.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import t2r_runtime.session.providers as providers
from t2r_runtime.checks import listed, require_kind
from t2r_runtime.contract.signature import COMPANIONS, DRAFT_CHECK, PREFILL, ROLES, STEP, Signature
from t2r_runtime.contract.state_spec import MAX_STATE_BYTES
from t2r_runtime.errors import UserError, printable
from t2r_runtime.session.interface import Form, check_interface, first_feeds
from t2r_runtime.session.model_file import check_once
from t2r_runtime.session.refusals import existing_graph, not_opened
from t2r_runtime.session.threads import once
from t2r_runtime.session.tuning import threads_for, usable_cores

if TYPE_CHECKING:
    import onnxruntime as ort

LOG = logging.getLogger(__name__)
IN_SESSIONS = (PREFILL, DRAFT_CHECK)  # roles that share the states of the step graph
TYPES = {
    "tensor(double)": "float64",
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int8)": "int8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}


@dataclass(frozen=True)
class Graph:
    """An opened step graph."""

    path: Path
    session: ort.InferenceSession
    signature: Signature
    device: str
    placement: Mapping[str, int]  # provider → number of nodes
    captured: bool = False  # steps are replayed as CUDA graphs
    rows_option: str | None = None  # of steps whose caches stay in place (t2r_runtime.session.reserve)
    windows_option: str | None = None  # the same of windows
    max_state_bytes: int = MAX_STATE_BYTES  # of all states at batch 1, as the caller allows
    # role → function that opens a companion on first use
    companions: Mapping[str, Callable[[], ort.InferenceSession]] = field(default_factory=dict)
    apart: set[str] = field(default_factory=set)  # windows that the provider has refused to keep in place


@dataclass(frozen=True)
class _Opening:
    """How a step graph and its companions are opened."""

    name: str  # of the provider
    provider: providers.Provider
    extra: Mapping[str, str]  # provider options
    allow_fallback: bool
    max_state_bytes: int

    @property
    def captured(self) -> bool:
        """Whether steps are replayed as CUDA graphs."""
        return self.extra.get("enable_cuda_graph", "0") in ("1", "True", "true") and self.provider.device == "cuda"

    def open(
        self, path: Path, role: str, options: ort.SessionOptions
    ) -> tuple[ort.InferenceSession, Signature, providers.Placement]:
        """Open and check a graph of this role."""
        try:
            session = providers.open_session(path, self.provider, options, self.extra)
            metadata = session.get_modelmeta().custom_metadata_map
        except UserError:
            raise
        except Exception as error:  # ONNX Runtime's errors have no common base below Exception
            who = "ONNX Runtime" if self.name == "cpu" else f"{self.name}'s {self.provider.ort_name} here"
            raise not_opened(path, who, error) from error
        check_once(path)
        signature = Signature.from_metadata(metadata, self.max_state_bytes)
        if signature.role != role:
            do = "open the step graph that names it"
            raise UserError(f"a {ROLES[role]}", f"a {ROLES[signature.role]}", do, "graph")
        signature.require_memory(signature.batch or 1, self.max_state_bytes)
        check_interface(signature, forms(session.get_inputs()), forms(session.get_outputs()))
        if self.captured:
            signature.require_constant("for CUDA graphs (enable_cuda_graph)")
        try:
            taken = providers.placement(session, self.provider, lambda: first_feeds(signature))
        except Exception as error:  # as above
            expected = f"a first step on {self.name}"
            raise UserError(expected, printable(error), "choose another provider", "provider") from error
        if not self.allow_fallback:
            lengths = frozenset() if signature.source is None else self.provider.elsewhere
            providers.check_placement(self.name, self.provider, taken, self.provider.shapes | lengths)
        return session, signature, taken

    def companion(
        self, step: Path, signature: Signature, role: str, options: Callable[[], ort.SessionOptions]
    ) -> Callable[[], ort.InferenceSession]:
        """A function that opens a companion of the step graph at `step` once, which takes as long as the step graph.

        If the provider rejects it, `Provider.companions` opens it, if set; one line is logged.
        """
        path = step.with_name(signature.graphs[role])
        if not path.is_file():
            do = "copy the companions too, or leave its role out of companions"
            raise UserError(f"the {ROLES[role]} {path.name} beside {step.name}", "none", do, "file")

        @once
        def opened() -> ort.InferenceSession:
            try:
                session, other, _ = self.open(path, role, options())
            except UserError as error:
                if (instead := self.provider.companions) is None:
                    raise
                opening = replace(self, name=instead, provider=providers.find_provider(instead), extra={})
                session, other, _ = opening.open(path, role, options())
                LOG.warning(
                    "the %s runs on %s, not on %s: received %s", ROLES[role], instead, self.name, error.received
                )
            if other != signature.companion(role):
                expected = f"{path.name} to have the same model as {step.name}"
                raise UserError(expected, "another model", "export both again", "graph")
            return session

        return opened


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
    """Open the step graph at `path` and check that it follows the contract.

    The companions that it names must be beside it; each is opened and checked on first use.

    Args:
        path: the .onnx file; external weights must be in its folder.
        provider: a key of t2r_runtime.PROVIDERS.
        threads: intra-op threads. None chooses by the size of the graph (`tuning`); companions that read many tokens
            per run get one thread per usable physical core.
        provider_options: options of the provider, which override those of PROVIDERS.
        allow_fallback: let other providers run the nodes that this one does not support.
        config: session configuration entries of ONNX Runtime, for this graph and its companions.
        companions: roles of the companions to use. On WebGPU those that share states with the step graph are not
            used, as memory belongs to one session.
        max_state_bytes: maximum size of all states at batch 1.

    Raises:
        UserError: an unknown or missing provider, a missing file, a graph that ONNX Runtime or the provider rejects,
            missing or invalid metadata, other inputs and outputs than in the metadata, or nodes that the provider does
            not support.
    """
    extra = _texts({} if provider_options is None else provider_options, "provider_options")
    roles = listed(companions, "roles of companions", "graph")
    for role in roles:
        require_kind(role, str, "roles of companions as strings", "graph")
    require_kind(max_state_bytes, int, "a number of bytes as max_state_bytes", "metadata")
    opening = _Opening(provider, providers.find_provider(provider), extra, allow_fallback, max_state_bytes)
    path = existing_graph(path)
    given = _texts({} if config is None else config, "session_config")
    steps = threads_for(path, provider, threads)
    session, signature, taken = opening.open(path, STEP, _options(steps, given))
    device = opening.provider.device
    left_out = IN_SESSIONS if device == "webgpu" else ()
    # prompts differ in length: companions are not captured
    free = replace(opening, extra={key: value for key, value in extra.items() if key != "enable_cuda_graph"})
    others = {}
    for role in signature.graphs:
        if role in roles and role not in left_out:
            more = dict(given)
            if role in IN_SESSIONS:
                # prepacking does not speed up products of many rows, and copies the weights
                if signature.quantization == "none":
                    more.setdefault("session.disable_prepacking", "1")
                more.setdefault("session.force_spinning_stop", "1")  # spinning threads would slow down the steps
            count = usable_cores() if threads is None else steps
            others[role] = free.companion(path, signature, role, partial(_options, count, more))
    placement, alone = providers.counted(taken), set(taken) == {opening.provider.ort_name}
    found = alone and providers.keeps_in_place(opening.provider)
    in_place = (opening.provider.rows_option, opening.provider.windows_option) if found else (None, None)
    return Graph(path, session, signature, device, placement, opening.captured, *in_place, max_state_bytes, others)


def _options(threads: int | None, config: Mapping[str, str]) -> ort.SessionOptions:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4  # errors are raised; the log would repeat them
    # Planning memory reuse takes up to quadratic time in the number of nodes when a graph is opened; the arena reuses
    # freed memory anyway.
    options.enable_mem_reuse = False
    if threads is not None:
        options.intra_op_num_threads = threads
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    return options


def _texts(options: Mapping[str, str], name: str) -> dict[str, str]:
    """Check a mapping of str to str; ONNX Runtime's messages name neither key nor value."""
    require_kind(options, Mapping, f"a mapping of texts as {name}", "provider")
    for text in (*options.keys(), *options.values()):
        require_kind(text, str, f"texts in {name}", "provider")
    return dict(options)


def forms(nodes: Sequence[ort.NodeArg]) -> dict[str, Form]:
    """Dtype and dimensions of the inputs or outputs of a session, by name."""
    return {node.name: (TYPES.get(node.type, node.type), tuple(node.shape or ())) for node in nodes}
