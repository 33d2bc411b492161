"""The execution providers of ONNX Runtime: one table, how each is opened, and proof of what each really runs.

ONNX Runtime gives every node that a provider does not take to the CPU, with no more than a warning. Here that is an
error which names the nodes, unless the caller allows it; and what ran where can always be asked for. The flag
session.disable_cpu_ep_fallback would refuse too, but names no node.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from t2r_runtime.errors import UserError, shown

if TYPE_CHECKING:
    import onnxruntime as ort


class Node(NamedTuple):
    """A node of a graph as ONNX Runtime runs it."""

    name: str
    operator: str


Placement = dict[str, list[Node]]  # ONNX Runtime's name of a provider → the nodes that it took

CPU = "CPUExecutionProvider"
RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"  # ignored before ONNX Runtime 1.24
NAMED_NODES = NAMED_OPERATORS = 6  # of those that fell back, in an error
# A chip has to be named where there is none: without soc_model the simulator computes in float32, and wrongly.
QNN_SIMULATOR = {"htp_arch": "75", "soc_model": "57"} if platform.machine().lower() in ("x86_64", "amd64") else {}


@dataclass(frozen=True)
class Provider:
    """How one execution provider is found, opened and fed."""

    ort_name: str
    install: str  # what to do where it is missing
    plugin: str | None = None  # the Python module that brings its library, if it is not part of onnxruntime
    options: Mapping[str, str] = field(default_factory=dict)  # the caller's go before these
    device: str = "cpu"  # where states, ids and logits live between steps, in ONNX Runtime's words
    fixed_batch: bool = False  # takes nothing of a graph whose batch is free
    compiles: bool = False  # its compiled programs can be kept in a file and opened again
    partial: bool = False  # never takes a whole step graph, so that it needs allow_fallback
    elsewhere: frozenset[str] = frozenset()  # operators on the lengths of sources that it may leave to the CPU
    hint: str = "export the graph for this provider"  # what to do where it did not take every node


PROVIDERS: dict[str, Provider] = {
    "cpu": Provider(CPU, "install onnxruntime"),
    "cuda": Provider(
        "CUDAExecutionProvider",
        "install onnxruntime-gpu[cuda,cudnn] in an environment without onnxruntime, on a machine with an NVIDIA driver",
        device="cuda",
    ),
    "openvino": Provider(
        "OpenVINOExecutionProvider",
        "install onnxruntime-openvino in an environment without onnxruntime",
        options={"device_type": "CPU", "precision": "ACCURACY"},  # its own default may compute in bfloat16
        hint="export with the target portable",
    ),
    "webgpu": Provider(
        "WebGpuExecutionProvider",
        "install onnxruntime-ep-webgpu beside onnxruntime",
        plugin="onnxruntime_ep_webgpu",
        device="webgpu",
        elsewhere=frozenset({"Cast", "Concat", "Gather"}),  # lengths are int64, for which it has few kernels
        hint="export without quantization, or with one that WebGPU takes",
    ),
    "qnn": Provider(
        "QNNExecutionProvider",
        "install onnxruntime-qnn beside onnxruntime",
        plugin="onnxruntime_qnn",
        # left to itself it gives the logits' last DequantizeLinear to the CPU
        options={"backend_type": "htp", "offload_graph_io_quantization": "0", **QNN_SIMULATOR},
        fixed_batch=True,
        compiles=True,
        hint="export with a fixed batch and the target npu or portable",
    ),
    "xnnpack": Provider(
        "XnnpackExecutionProvider",
        "use an ONNX Runtime built with XNNPACK: Debian's python3-onnxruntime, or the packages for Android and iOS",
        partial=True,
        hint="it takes matrix products only",
    ),
    "dnnl": Provider(
        "DnnlExecutionProvider",
        "use an ONNX Runtime built with oneDNN: Debian's python3-onnxruntime",
        partial=True,
        hint="it takes float arithmetic only",
    ),
    "coreml": Provider(
        "CoreMLExecutionProvider",
        "install onnxruntime on macOS",
        options={"ModelFormat": "MLProgram"},
        fixed_batch=True,
        hint="export with a fixed batch and the target npu",
    ),
    "nnapi": Provider(
        "NnapiExecutionProvider",
        "use an ONNX Runtime built for Android; there is no Python package with it",
        fixed_batch=True,
        hint="export with a fixed batch and the target npu",
    ),
}


def named(name: str) -> Provider:
    """The entry of PROVIDERS, installed or not. Raises UserError for an unknown name, with the known ones."""
    if not isinstance(name, str) or name not in PROVIDERS:
        raise UserError(f"a provider of: {', '.join(PROVIDERS)}", shown(name), "choose one of these", "provider")
    return PROVIDERS[name]


def find_provider(name: str) -> Provider:
    """The entry of PROVIDERS, if this installation has what it needs.

    Raises:
        UserError: an unknown name, with the known ones; one that is not installed, with what to install.
    """
    chosen = named(name)

    import onnxruntime as ort

    available = ort.get_available_providers()
    plugged = chosen.plugin is not None and importlib.util.find_spec(chosen.plugin) is not None
    if chosen.ort_name not in available and not plugged:
        raise UserError(
            f"an ONNX Runtime with {chosen.ort_name}",
            f"{ort.__version__} with {', '.join(available)}",
            chosen.install,
            "provider",
        )
    return chosen


def versions(name: str) -> dict[str, str]:
    """The packages that a provider runs with here, and their versions.

    Raises:
        UserError: as for `find_provider`.
    """
    import importlib.metadata

    import onnxruntime as ort

    chosen = find_provider(name)
    found = {"onnxruntime": str(ort.__version__)}
    if chosen.plugin is not None:
        package = chosen.plugin.replace("_", "-")
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # built into this onnxruntime
            found[package] = importlib.metadata.version(package)
    return found


def open_session(
    path: Path, provider: Provider, options: ort.SessionOptions, extra: Mapping[str, str]
) -> ort.InferenceSession:
    """A session of the graph at `path` that asks for `provider` first and records what each provider took.

    Args:
        extra: options of the provider, over those of the table.

    Raises:
        UserError: a plugin without a device here. Exception: whatever ONNX Runtime has against the graph.
    """
    import onnxruntime as ort

    chosen = {**provider.options, **extra}
    if hasattr(ort.InferenceSession, "get_provider_graph_assignment_info"):
        options.add_session_config_entry(RECORD_PLACEMENT, "1")
    elif provider.ort_name != CPU:
        import shutil
        import tempfile

        options.enable_profiling = True
        folder = tempfile.mkdtemp(prefix="t2r-placement-")  # `placement` removes it
        options.profile_file_prefix = os.path.join(folder, "profile")
        try:
            return _opened(path, provider, options, chosen)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return _opened(path, provider, options, chosen)


def _opened(
    path: Path, provider: Provider, options: ort.SessionOptions, chosen: Mapping[str, str]
) -> ort.InferenceSession:
    import onnxruntime as ort

    # asked of the installation: ONNX Runtime lists a registered plugin among the providers that it was built with
    if provider.plugin is None or importlib.util.find_spec(provider.plugin) is None:
        if provider.device == "cuda" and hasattr(ort, "preload_dlls"):
            ort.preload_dlls()  # CUDA's libraries out of their Python packages
        # enable_fallback would open the session again with the CPU alone, after a line on standard output
        return ort.InferenceSession(
            str(path), sess_options=options, providers=[(provider.ort_name, dict(chosen))], enable_fallback=0
        )
    options.add_provider_for_devices([_plugin_device(provider)], dict(chosen))
    return ort.InferenceSession(str(path), sess_options=options)


def placement(session: ort.InferenceSession, provider: Provider, feeds: Callable[[], Mapping[str, Any]]) -> Placement:
    """The nodes that each provider took; a part of the graph that became one kernel counts as its nodes, if known.

    Args:
        feeds: makes inputs for one step. ONNX Runtime before 1.24 has no other way to tell than a profile of one.
    """
    taken: Placement = {}
    if hasattr(session, "get_provider_graph_assignment_info"):
        for part in session.get_provider_graph_assignment_info():
            taken.setdefault(part.ep_name, []).extend(
                Node(node.name or node.op_type, node.op_type) for node in part.get_nodes()
            )
    elif provider.ort_name != CPU:
        try:
            session.run(None, dict(feeds()))
        finally:
            profile = Path(session.end_profiling())
            written = profile.read_text()
            profile.unlink()
            with contextlib.suppress(OSError):  # another's, with other things in it
                profile.parent.rmdir()
        events = json.loads(written)
        for event in events:
            where = event.get("args", {}).get("provider")
            if where and event["name"].endswith("_kernel_time"):
                operator = event["args"].get("op_name", "")
                taken.setdefault(where, []).append(Node(event["name"].removesuffix("_kernel_time"), operator))
    return taken


def check_placement(name: str, provider: Provider, taken: Placement, spared: Collection[str] = ()) -> None:
    """Refuse a session some of whose nodes run elsewhere than on the provider, but those of the `spared` operators.

    Raises:
        UserError: names the nodes, and says what would help.
    """
    others = [node for where, nodes in taken.items() if where != provider.ort_name for node in nodes]
    elsewhere = [node for node in others if node.operator not in spared]
    if elsewhere:
        total = sum(map(len, taken.values()))
        counts = Counter(node.operator for node in elsewhere)
        operators = ", ".join(f"{count} {operator}" for operator, count in counts.most_common(NAMED_OPERATORS))
        more = ", …" if len(counts) > NAMED_OPERATORS else ""
        named = ", ".join(node.name for node in elsewhere[:NAMED_NODES])
        named += ", …" if len(elsewhere) > NAMED_NODES else ""
        raise UserError(
            f"every node on {name}",
            f"{len(elsewhere)} of {total} on another provider ({operators}{more}): {named}",
            f"{provider.hint}, or allow fallback",
            "provider",
        )


def counted(taken: Placement) -> dict[str, int]:
    """`taken` for people: this package's names, and how many nodes."""
    names = {entry.ort_name: name for name, entry in PROVIDERS.items()}
    return dict(Counter({names.get(where, where): len(nodes) for where, nodes in taken.items()}))


def _plugin_device(provider: Provider) -> ort.OrtEpDevice:
    """The most special device that a plugin offers: an NPU before a GPU before a CPU (which is a simulator)."""
    import onnxruntime as ort

    assert provider.plugin is not None

    def offered() -> list[ort.OrtEpDevice]:
        return [device for device in ort.get_ep_devices() if device.ep_name == provider.ort_name]

    if not offered():  # nothing, or not registered yet: a library can be registered once in a process
        try:
            library = importlib.import_module(provider.plugin).get_library_path()
            ort.register_execution_provider_library(provider.ort_name, library)
        except Exception as error:  # ONNX Runtime's errors have no common base below Exception
            if "already registered" not in str(error):
                raise
    devices = offered()
    if not devices:
        raise UserError(
            f"a device for {provider.ort_name}",
            "none on this machine",
            "see docs/providers.md on drivers and software",
            "provider",
        )
    order = [ort.OrtHardwareDeviceType.NPU, ort.OrtHardwareDeviceType.GPU, ort.OrtHardwareDeviceType.CPU]
    return min(devices, key=lambda device: order.index(device.device.type))
