"""Providers: a missing one is a one-line error, and so are nodes left to another provider."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from runtime import graphs
from runtime.conftest import Open
from t2r_runtime import Decoder, UserError
from t2r_runtime.session import providers
from t2r_runtime.session.providers import (
    CPU,
    PROVIDERS,
    Node,
    Provider,
    check_placement,
    counted,
    find_provider,
    placement,
)
from t2r_runtime.session.session import open_graph
from t2r_runtime.session.states import States

NOT_IN_THE_CPU_WHEEL = sorted(PROVIDERS.keys() - {"cpu"})


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        Decoder(path, threads=1, **options)
    message = str(caught.value)
    assert message.isprintable() and len(message) < 600
    return message


def test_an_unknown_provider_lists_the_known_ones(tmp_path: Path) -> None:
    known = "cpu, t2r, cuda, openvino, webgpu, qnn, xnnpack, dnnl, coreml, nnapi"
    message = f"expected a provider of: {known}; received 'tpu'; choose one of these"
    assert refused(graphs.save(tmp_path / "g.onnx"), provider="tpu") == message


@pytest.mark.parametrize("name", NOT_IN_THE_CPU_WHEEL)
def test_missing_provider_install_hint(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CPU])
    monkeypatch.setattr(providers.importlib.util, "find_spec", lambda _: None)
    message = refused(graphs.save(tmp_path / "g.onnx"), provider=name)
    entry = PROVIDERS[name]
    received = f"{ort.__version__} with {CPU}"
    assert message == f"expected an ONNX Runtime with {entry.ort_name}; received {received}; {entry.install}"
    assert entry.install.startswith(("install onnxruntime", "use an ONNX Runtime built", "run `make provider`"))


def test_provider_from_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers.importlib.util, "find_spec", lambda name: name)
    assert find_provider("webgpu") is PROVIDERS["webgpu"]


def test_a_plugin_says_what_it_has_against_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = types.SimpleNamespace(get_refusal=lambda: "expected Add, received Sub")
    monkeypatch.setattr(providers.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(providers.importlib, "import_module", lambda _: plugin)
    with pytest.raises(UserError, match=r"1 of 1 on another provider \(1 Sub\): s \(expected Add, received Sub\);"):
        check_placement("t2r", PROVIDERS["t2r"], {CPU: [Node("s", "Sub")]})


def test_a_plugin_without_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = types.SimpleNamespace(get_library_path=lambda: "nowhere.so")
    monkeypatch.setattr(providers.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(providers.importlib, "import_module", lambda _: plugin)
    monkeypatch.setattr(ort, "register_execution_provider_library", lambda *_: None)
    message = refused(graphs.save(tmp_path / "g.onnx"), provider="webgpu")
    assert message.startswith("expected a device for WebGpuExecutionProvider; received none on this machine; see docs/")


def test_provider_fails_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers.importlib.util, "find_spec", lambda name: name)
    message = refused(graphs.save(tmp_path / "g.onnx"), provider="qnn", provider_options={"backend_type": "none"})
    assert message.startswith("expected an ONNX graph that qnn's QNNExecutionProvider here accepts; received ")


def test_the_cpu_runs_every_node(tmp_path: Path) -> None:
    decoder = Decoder(graphs.save(tmp_path / "g.onnx"), threads=1)
    assert decoder.placement == {"cpu": len(graphs.model().graph.node)}


def test_fallback_error_names_nodes(pretender: str, tmp_path: Path) -> None:
    model = graphs.model()
    message = refused(graphs.save(tmp_path / "g.onnx"), provider=pretender)
    total = len(model.graph.node)
    assert message.startswith(f"expected every node on nowhere; received {total} of {total} on another provider (")
    assert message.endswith(", …; go home, or allow fallback")
    named = message.partition("): ")[2].partition(", …")[0].split(", ")
    assert len(named) == providers.NAMED_NODES
    assert set(named) <= {node.name or node.op_type for node in model.graph.node}


def test_allowed_fallback_is_reported(pretender: str, tmp_path: Path) -> None:
    path = graphs.save(tmp_path / "g.onnx")
    decoder = Decoder(path, pretender, threads=1, allow_fallback=True)
    assert decoder.placement == {"cpu": len(graphs.model().graph.node)}
    np.testing.assert_array_equal(decoder.step(3), Decoder(path, threads=1).step(3))


def test_a_companion_that_a_provider_does_not_take(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another provider runs it, and one line reports it."""
    checked: list[str] = []

    def check(name: str, *_: Any) -> None:
        checked.append(name)
        if checked == ["picky", "picky"]:
            raise UserError("every node", "another", "none")

    monkeypatch.setitem(PROVIDERS, "picky", Provider(CPU, "", companions="cpu"))
    monkeypatch.setattr(providers, "check_placement", check)
    golden = Path(__file__).parents[2] / "models" / "tiny" / "prefill.onnx"
    expected = Decoder(golden, threads=1).prefill([1, 2, 3])
    checked.clear()
    np.testing.assert_array_equal(Decoder(golden, "picky", threads=1).prefill([1, 2, 3]), expected)
    assert checked == ["picky", "picky", "cpu"]
    assert caplog.messages == ["the prefill graph runs on cpu, not on picky: received another"]


def test_the_session_config_of_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches the step graph and its companions; the caller's own entry goes before it."""
    key = "session.disable_quant_qdq"
    assert PROVIDERS["t2r"].config[key] == "1"
    monkeypatch.setitem(PROVIDERS, "careful", Provider(CPU, "", config={key: "1"}))
    golden = Path(__file__).parents[2] / "models" / "tiny" / "prefill.onnx"
    for config, expected in ({}, "1"), ({key: "0"}, "0"):
        graph = open_graph(golden, "careful", config=config)
        for session in graph.session, graph.companions["prefill"]():
            assert session.get_session_options().get_session_config_entry(key) == expected


def test_single_node_fallback() -> None:
    entry = PROVIDERS["xnnpack"]
    a, b, c = Node("a", "Gemm"), Node("b", "Gemm"), Node("c", "Sin")
    check_placement("xnnpack", entry, {entry.ort_name: [a, b]})
    message = r"received 1 of 3 on another provider \(1 Sin\): c; it supports matrix products only, or"
    with pytest.raises(UserError, match=message):
        check_placement("xnnpack", entry, {entry.ort_name: [a, b], CPU: [c]})
    with pytest.raises(UserError, match=r"received 3 of 3 on another provider \(2 Gemm, 1 Sin\): a, b, c;"):
        check_placement("xnnpack", entry, {CPU: [a, b, c]})
    assert counted({entry.ort_name: [a, b], CPU: [c], "New": [c]}) == {"xnnpack": 2, "cpu": 1, "New": 1}


def test_placement_from_a_profile(tmp_path: Path) -> None:
    """ONNX Runtime before 1.24 reports placement only there."""

    def profiled() -> Any:
        options = ort.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(tmp_path / "profile")
        session = ort.InferenceSession(graphs.save(tmp_path / "g.onnx"), options, providers=[CPU])
        return types.SimpleNamespace(run=session.run, end_profiling=session.end_profiling)

    feeds = {spec.past: np.full(spec.dims(1), spec.initial, spec.dtype) for spec in graphs.states("constant")}
    with pytest.raises(Exception, match="input_ids"):
        placement(profiled(), PROVIDERS["dnnl"], dict)
    taken = placement(profiled(), PROVIDERS["dnnl"], lambda: {"input_ids": np.zeros(1, np.int64), **feeds})
    assert taken.keys() == {CPU}
    assert 0 < len(taken[CPU]) <= len(graphs.model().graph.node)  # some nodes were fused
    assert list(tmp_path.glob("profile*")) == []


@pytest.mark.parametrize(
    "name, given, expected",
    [
        ("openvino", {"device_type": "GPU", "cache_dir": "here"}, {"precision": "ACCURACY"}),
        ("cuda", {"device_id": "1"}, {"use_tf32": "0"}),
        ("cuda", {"use_tf32": "1"}, {}),
    ],
)
def test_options_are_passed_on(
    name: str, given: dict[str, str], expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    real: Callable[..., Any] = ort.InferenceSession

    def opened(path: str, **arguments: Any) -> Any:
        seen.append(arguments["providers"])
        return real(path, sess_options=arguments["sess_options"], providers=[CPU])

    opened.get_provider_graph_assignment_info = None  # type: ignore[attr-defined]
    monkeypatch.setattr(ort, "InferenceSession", opened)
    monkeypatch.setattr(ort, "preload_dlls", lambda: None, raising=False)
    ort_name = PROVIDERS[name].ort_name
    monkeypatch.setattr(ort, "get_available_providers", lambda: [ort_name, CPU])
    message = refused(graphs.save(tmp_path / "g.onnx"), provider=name, provider_options=given)
    assert seen == [[(ort_name, {**expected, **given})]]
    assert message.startswith(f"expected every node on {name}; ")


def test_shapes_may_be_computed_on_the_cpu_beside_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = graphs.save(tmp_path / "g.onnx"), providers.open_session
    monkeypatch.setattr(ort, "get_available_providers", lambda: [PROVIDERS[n].ort_name for n in ("cuda", "openvino")])
    monkeypatch.setattr(
        providers, "open_session", lambda path, _, options, __: real(path, PROVIDERS["cpu"], options, {})
    )
    elsewhere = [Node("s", "Shape"), Node("g", "Gather")]
    monkeypatch.setattr(
        providers, "placement", lambda _, provider, __: {provider.ort_name: [Node("e", "Exp")], CPU: elsewhere}
    )
    assert open_graph(path, "cuda").placement == {"cuda": 1, "cpu": 2}
    with pytest.raises(UserError, match=r"node on openvino; received 2 of 3 on .* \(1 Shape, 1 Gather\): s, g;"):
        open_graph(path, "openvino")
    elsewhere.append(Node("x", "Exp"))
    with pytest.raises(UserError, match=r"node on cuda; received 1 of 4 on another provider \(1 Exp\): x;"):
        open_graph(path, "cuda")


def test_cuda_graphs_need_constant_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", CPU])
    real = providers.open_session
    monkeypatch.setattr(
        providers, "open_session", lambda path, _, options, __: real(path, PROVIDERS["cpu"], options, {})
    )
    path = graphs.save(tmp_path / "g.onnx", "growing")
    message = refused(path, provider="cuda", provider_options={"enable_cuda_graph": "1"})
    assert message.startswith(
        "expected states of constant size for CUDA graphs (enable_cuda_graph); received a model whose cache.1 grow "
    )


def test_cuda_graph_id_per_binding(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph replays its captured addresses. The CPU provider accepts the ids and ignores them."""
    decoder, call = opened(top_k=3), States._call
    object.__setattr__(decoder._graph, "captured", True)
    runs: list[tuple[str, ort.IOBinding]] = []

    def seen(self: States, session: Any, binding: ort.IOBinding, options: ort.RunOptions) -> None:
        runs.append((options.get_run_config_entry("gpu_graph_id"), binding))
        call(self, session, binding, options)

    monkeypatch.setattr(States, "_call", seen)
    for batch in (2, 3, 2):  # states are allocated anew each time
        decoder.reset(batch=batch)
        for token in (3, 4, 5):
            decoder.step([token] * batch)
            decoder.top_k([[token]] * batch)
            decoder.top_k([[token]] * batch)
    pairs = set(runs)
    assert len(runs) == 27
    assert len(pairs) == len({number for number, _ in pairs}) == len({binding for _, binding in pairs}) == 3 * 2 * 2


def test_options_for_cpu_are_refused(tmp_path: Path) -> None:
    message = refused(graphs.save(tmp_path / "g.onnx"), provider_options={"precision": "low"})
    assert "no options for the provider cpu, which has none; received precision; leave them out" in message
