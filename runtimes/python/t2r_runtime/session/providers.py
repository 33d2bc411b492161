"""Execution providers of ONNX Runtime: how each is opened, and which nodes it runs.

ONNX Runtime runs nodes that a provider does not support on the CPU, with a warning at most. Here that is an error that
names the nodes, unless the caller allows fallback. The flag session.disable_cpu_ep_fallback names no node.
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

from t2r_runtime.errors import UserError, printable, shown

if TYPE_CHECKING:
    import onnxruntime as ort


class Node(NamedTuple):
    """A node of an optimized graph."""

    name: str
    operator: str


Placement = dict[str, list[Node]]  # ONNX Runtime's name of a provider → its nodes

CPU = "CPUExecutionProvider"
RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"  # ignored before ONNX Runtime 1.24
IN_PLACE = "rows windows"  # what the device of the provider t2r says of its options
NAMED_NODES = NAMED_OPERATORS = 6  # listed in an error
# Operators that ONNX Runtime places on the CPU where they compute shapes; CUDA has kernels of all for floats.
SHAPES = frozenset(["Add", "Cast", "Concat", "Div", "Gather", "Mod", "Mul", "Neg", "Shape", "Slice", "Squeeze", "Sub"])
# Without soc_model the simulator computes in float32, with wrong results.
QNN_SIMULATOR = {"htp_arch": "75", "soc_model": "57"} if platform.machine().lower() in ("x86_64", "amd64") else {}


@dataclass(frozen=True)
class Provider:
    """Properties of an execution provider."""

    ort_name: str
    install: str  # what to do if it is missing
    plugin: str | None = None  # Python module of its library, if not part of onnxruntime
    options: Mapping[str, str] = field(default_factory=dict)  # overridden by the caller's
    config: Mapping[str, str] = field(default_factory=dict)  # of sessions; overridden by the caller's
    device: str = "cpu"  # memory of states, ids and logits between steps
    compiles: bool = False  # supports ahead-of-time compilation to a file
    partial: bool = False  # cannot run a whole step graph, so requires allow_fallback
    elsewhere: frozenset[str] = frozenset()  # operators on source lengths that may run on the CPU
    shapes: frozenset[str] = frozenset()  # operators on shapes that may run on the CPU
    threads_option: str | None = None  # its option for the number of threads, if it has its own threads
    rows_option: str | None = None  # of runs whose caches stay in place (t2r_runtime.session.reserve)
    windows_option: str | None = None  # the same of windows
    companions: str | None = None  # provider of the companions that this one rejects
    hint: str = "export the graph for this provider"  # what to do if it does not support every node


PROVIDERS: dict[str, Provider] = {
    "cpu": Provider(CPU, "install onnxruntime"),
    "t2r": Provider(
        "T2rExecutionProvider",
        "run `make provider` in a clone of t2r-export, or install the wheel onnxruntime_ep_t2r of a release",
        plugin="onnxruntime_ep_t2r",
        config={
            "session.disable_quant_qdq": "1",  # otherwise the optimizer adds QuantizeLinear to w4 and w8
            "optimization.disable_specified_optimizers": "ConstantFolding",  # which doubles the bytes of scales
        },
        threads_option="threads",
        rows_option="ep.t2rexecutionprovider.rows",
        windows_option="ep.t2rexecutionprovider.windows",
        companions="cpu",
        hint="export with the target portable, states of fixed size, and no quantization or w8 or w4",
    ),
    "cuda": Provider(
        "CUDAExecutionProvider",
        "install onnxruntime-gpu[cuda,cudnn] in an environment without onnxruntime, on a machine with an NVIDIA driver",
        options={"use_tf32": "0"},  # the default multiplies float32 with 10 bits of precision
        device="cuda",
        shapes=SHAPES,
    ),
    "openvino": Provider(
        "OpenVINOExecutionProvider",
        "install onnxruntime-openvino in an environment without onnxruntime",
        options={"device_type": "CPU", "precision": "ACCURACY"},  # the default may compute in bfloat16
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
        # otherwise the last DequantizeLinear runs on the CPU
        options={"backend_type": "htp", "offload_graph_io_quantization": "0", **QNN_SIMULATOR},
        compiles=True,
        hint="export with a fixed batch and the target npu or portable",
    ),
    "xnnpack": Provider(
        "XnnpackExecutionProvider",
        "use an ONNX Runtime built with XNNPACK: Debian's python3-onnxruntime, or the packages for Android and iOS",
        partial=True,
        hint="it supports matrix products only",
    ),
    "dnnl": Provider(
        "DnnlExecutionProvider",
        "use an ONNX Runtime built with oneDNN: Debian's python3-onnxruntime",
        partial=True,
        hint="it supports float arithmetic only",
    ),
    "coreml": Provider(
        "CoreMLExecutionProvider",
        "install onnxruntime on macOS",
        options={"ModelFormat": "MLProgram"},
        hint="export with a fixed batch and the target npu",
    ),
    "nnapi": Provider(
        "NnapiExecutionProvider",
        "use an ONNX Runtime built for Android; there is no Python package with it",
        hint="export with a fixed batch and the target npu",
    ),
}


def named(name: str) -> Provider:
    """The entry of PROVIDERS, installed or not. Raises UserError for an unknown name."""
    if not isinstance(name, str) or name not in PROVIDERS:
        raise UserError(f"a provider of: {', '.join(PROVIDERS)}", shown(name), "choose one of these", "provider")
    return PROVIDERS[name]


def find_provider(name: str) -> Provider:
    """The entry of PROVIDERS of an installed provider.

    Raises:
        UserError: an unknown name, or a provider that is not installed.
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
    """Versions of the installed packages of a provider.

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
    """Open a session on `provider` that records the placement of nodes.

    Args:
        extra: provider options, which override those of the table.

    Raises:
        UserError: no device for a plugin, or options for the provider cpu, which ONNX Runtime would ignore.
        Exception: ONNX Runtime rejects the graph.
    """
    import onnxruntime as ort

    ort.disable_telemetry_events()  # on Windows; elsewhere t2r_runtime/__init__.py turned them off
    if extra and provider.ort_name == CPU:
        expected = "no options for the provider cpu, which has none"
        raise UserError(expected, ", ".join(extra), "leave them out", "provider")
    chosen = {**provider.options, **extra}
    for key, value in provider.config.items():
        try:
            options.get_session_config_entry(key)
        except Exception:  # the caller did not set it; ONNX Runtime's errors have no common base below Exception
            options.add_session_config_entry(key, value)
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

    # a registered plugin is listed among the built-in providers, so check the installation
    if provider.plugin is None or importlib.util.find_spec(provider.plugin) is None:
        if provider.device == "cuda" and hasattr(ort, "preload_dlls"):
            ort.preload_dlls()  # CUDA libraries from Python packages
        # enable_fallback would retry on the CPU and print to stdout
        return ort.InferenceSession(
            str(path), sess_options=options, providers=[(provider.ort_name, dict(chosen))], enable_fallback=0
        )
    if provider.threads_option is not None:
        chosen = {provider.threads_option: str(options.intra_op_num_threads), **chosen}
        options.intra_op_num_threads = 1  # no second pool, whose threads would compete with the provider's
    options.add_provider_for_devices([_plugin_device(provider)], dict(chosen))
    return ort.InferenceSession(str(path), sess_options=options)


def keeps_in_place(provider: Provider) -> bool:
    """Whether the library of a provider takes the options of states in place; an older one would ignore them."""
    return provider.rows_option is not None and _plugin_device(provider).ep_metadata.get("in_place") == IN_PLACE


def placement(session: ort.InferenceSession, provider: Provider, feeds: Callable[[], Mapping[str, Any]]) -> Placement:
    """The nodes of each provider; the nodes of a fused kernel are listed individually if known.

    Args:
        feeds: returns the inputs of one step, which is profiled before ONNX Runtime 1.24.
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
            with contextlib.suppress(OSError):  # not empty: not created here
                profile.parent.rmdir()
        events = json.loads(written)
        for event in events:
            where = event.get("args", {}).get("provider")
            if where and event["name"].endswith("_kernel_time"):
                operator = event["args"].get("op_name", "")
                taken.setdefault(where, []).append(Node(event["name"].removesuffix("_kernel_time"), operator))
    return taken


def check_placement(name: str, provider: Provider, taken: Placement, spared: Collection[str] = ()) -> None:
    """Raise UserError if nodes run on other providers, except operators in `spared`."""
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
            f"{len(elsewhere)} of {total} on another provider ({operators}{more}): {named}{_refusal(provider)}",
            f"{provider.hint}, or allow fallback",
            "provider",
        )


def _refusal(provider: Provider) -> str:
    """A plugin's reason for rejecting the graph, in brackets; empty if it gives none."""
    if provider.plugin is None or importlib.util.find_spec(provider.plugin) is None:
        return ""
    why = getattr(importlib.import_module(provider.plugin), "get_refusal", lambda: "")()
    return f" ({printable(why)})" if why else ""


def counted(taken: Placement) -> dict[str, int]:
    """Number of nodes per provider, by the names of PROVIDERS."""
    names = {entry.ort_name: name for name, entry in PROVIDERS.items()}
    return dict(Counter({names.get(where, where): len(nodes) for where, nodes in taken.items()}))


def _plugin_device(provider: Provider) -> ort.OrtEpDevice:
    """The preferred device of a plugin: NPU, GPU, then CPU (a simulator)."""
    import onnxruntime as ort

    assert provider.plugin is not None

    def offered() -> list[ort.OrtEpDevice]:
        return [device for device in ort.get_ep_devices() if device.ep_name == provider.ort_name]

    if not offered():  # none, or not registered yet; a library can be registered once per process
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
