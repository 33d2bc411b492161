"""Decoder engines and candidates.

A candidate is written as engine, form and options, such as `t2r:w4:K=64:block=128`; a final `again` makes a control
that reuses the files. A new engine needs an entry in ENGINES, a function that writes its files, and a runner.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from comparison import timing
from comparison.bandwidth import TokenBytes, token_bytes
from comparison.peer_files import write_folder, write_gguf
from comparison.sizes import config_of, random_model, softmax_model, student
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.errors import CheckFailed
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_export.python import ARGUMENTS
from t2r_export.quantize import export_quantized
from t2r_export.verify import verify
from t2r_runtime.errors import UserError
from t2r_runtime.session.providers import PROVIDERS

S = TypeVar("S")
AGAIN = "again"
# candidate options of the student → option of `t2r convert`; other options are for the export
STUDENT = {"K": "feature_size", "rule": "update_rule", "positions": "positions", "gate": "gate"}


@dataclass(frozen=True)
class Candidate:
    """An engine, a form of the model, and options; `name` is the text it was parsed from."""

    name: str
    engine: str
    form: str
    options: Mapping[str, str]

    @property
    def files_key(self) -> tuple[str, ...]:
        """Candidates with the same key share files."""
        return (self.engine, self.form, *(f"{k}={v}" for k, v in sorted(self.options.items())))

    @property
    def constant(self) -> bool:
        """Whether its states have constant size."""
        return self.engine == "t2r" or self.form == "t2r"


@dataclass(frozen=True)
class Files:
    """Files of a candidate."""

    path: Path
    bytes: int
    token_bytes: TokenBytes | None = None  # of t2r graphs
    options: Mapping[str, Any] | None = None  # for the runner


@dataclass(frozen=True)
class Engine(Generic[S]):
    """An engine; `make` writes a candidate's files into an empty folder."""

    forms: tuple[str, ...]
    options: tuple[str, ...]
    modules: tuple[str, ...]  # required packages of the extra `peers`
    make: Callable[[Candidate, S, Path], Files]


Engines = Mapping[str, Engine[S]]


def parse(text: str, engines: Engines[Any] | None = None) -> Candidate:
    """Parse `engine:form:option=value:…`; `engines` defaults to ENGINES.

    Raises:
        UserError: an unknown engine, form or option; lists the known ones.
    """
    engines = ENGINES if engines is None else engines
    engine, *rest = text.removesuffix(f":{AGAIN}").split(":")
    if engine not in engines:
        raise UserError(f"an engine of {', '.join(engines)}", repr(text), "write engine:form, as in t2r:w4")
    known = engines[engine]
    if not rest or rest[0] not in known.forms:
        forms = ", ".join(f"{engine}:{form}" for form in known.forms)
        raise UserError(f"one of {forms}", repr(text), "choose one of those")
    options: dict[str, str] = {}
    for part in rest[1:]:
        name, equals, value = part.partition("=")
        if name not in known.options or not equals or name in options:
            named = ", ".join(known.options) or "none"
            raise UserError(f"options of {engine} ({named}) as name=value", repr(part), "correct the candidate")
        options[name] = value
    return Candidate(text, engine, rest[0], options)


def require_installed(candidates: list[Candidate], engines: Engines[Any] | None = None) -> None:
    """Check the packages of all engines before a long measurement.

    Raises:
        UserError: a package is missing; names the extra that installs it.
    """
    engines = ENGINES if engines is None else engines
    for candidate in candidates:
        missing = [m for m in engines[candidate.engine].modules if importlib.util.find_spec(m) is None]
        if missing:
            raise UserError(
                f"the packages that {candidate.engine} needs",
                f"no {', '.join(missing)}",
                "install the extra `peers` (pip install 't2r-export[peers]'), or measure without that engine",
            )
        provider = PROVIDERS.get(candidate.options.get("provider", "cpu"))
        plugin = provider.plugin if provider else None
        if plugin and importlib.util.find_spec(plugin) is None:
            do = "install runtimes/provider, or measure without that candidate"
            raise UserError(f"the package of the provider in {candidate.name}", f"no {plugin}", do)


def make(candidate: Candidate, size: str, folder: Path) -> Files:
    """Write a candidate's files into the empty `folder`.

    Raises:
        CheckFailed: a t2r graph fails parity. UserError: the engine does not support the model.
    """
    return ENGINES[candidate.engine].make(candidate, size, folder)


def as_checkpoint(model: Transformer, name: str) -> Checkpoint:
    """A checkpoint without a file, with the hash of `name` as its digest."""
    return Checkpoint(model.config, model, None, {}, hashlib.sha256(name.encode()).hexdigest())


def require_parity(loaded: Checkpoint, path: Path, provider: str = "cpu", greedy: bool = True, steps: int = 8) -> None:
    """Verify a graph on a provider.

    Args:
        greedy: whether greedy tokens are compared too; among random weights many tokens are nearly as likely.

    Raises:
        CheckFailed: names the failed checks.
    """
    report = verify(loaded, path, provider, steps=steps)
    if not (report.passed if greedy else all(check.passed for check in report.checks)):
        failed = ", ".join(f"{c.name} {c.worst:.1e} > {c.tolerance:.1e}" for c in report.checks if not c.passed)
        raise CheckFailed(f"no speed for {path.name}, which is not the model: {failed or 'another greedy token'}")


def _make_t2r(candidate: Candidate, size: str, folder: Path) -> Files:
    options = candidate.options
    loaded = as_checkpoint(student_model(candidate, size), "/".join((size, *candidate.files_key)))
    batch = None if options.get("batch") == "any" else whole(candidate, "batch", 1)
    how = ExportConfig(
        batch=batch,
        target=options.get("target", ExportConfig.target),
        top_k=whole(candidate, "top_k", 0) or None,
        prefill=bool(whole(candidate, "prefill", 0)),
        draft_check=bool(whole(candidate, "draft_check", 0)),
    )
    path = folder / "graph.onnx"
    if candidate.form == "float32":
        files = export(loaded, path, how).files
    else:
        bits = QuantizeConfig(
            scheme=candidate.form,
            block_size=whole(candidate, "block", 0) or None,
            head_bits=whole(candidate, "head_bits", 0) or None,
            embedding_bits=whole(candidate, "embedding_bits", 0) or None,
        )
        files = export_quantized(loaded, path, how, bits)[1].files
    provider = options.get("provider", "cpu")
    require_parity(loaded, path, provider=provider)
    return Files(path, sum(file.stat().st_size for file in files), token_bytes(path), {"provider": provider})


def _make_genai(candidate: Candidate, size: str, folder: Path) -> Files:
    source = write_folder(softmax_model(size), folder / "source")
    timing.run(genai_command(source, folder / "model", candidate))
    size_ = sum(file.stat().st_size for file in (folder / "model").glob("model.onnx*"))
    return Files(folder / "model", size_, options={"vocabulary": config_of(size).vocab_size})


def genai_command(source: Path, out: Path, candidate: Candidate) -> list[str]:
    """The command line of onnxruntime-genai's own model builder."""
    block = whole(candidate, "block", 32)
    program = [*ARGUMENTS, "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(out)]
    cache = ["-c", str(out.parent / "cache")]
    return [*program, "-p", candidate.form, "-e", "cpu", *cache, "--extra_options", f"block_size={block}"]


def _make_llama_cpp(candidate: Candidate, size: str, folder: Path) -> Files:
    path = write_gguf(softmax_model(size), folder / "model.gguf", candidate.form)
    return Files(path, path.stat().st_size, options=dict(candidate.options))


def _make_torch(candidate: Candidate, size: str, folder: Path) -> Files:
    model = softmax_model(size) if candidate.form == "softmax" else student_model(candidate, size)
    path = folder / "model.pt"
    checkpoint.save(path, model, None, {"origin": f"random weights, {size}"})
    return Files(path, path.stat().st_size)


def student_model(candidate: Candidate, size: str) -> Transformer:
    """A random student of that size with the candidate's conversion options."""
    given: dict[str, Any] = {name: candidate.options[key] for key, name in STUDENT.items() if key in candidate.options}
    if "feature_size" in given:
        given["feature_size"] = whole(candidate, "K", 0)
    return random_model(size, student(size, **given))


def whole(candidate: Candidate, option: str, default: int) -> int:
    """A candidate's option as a number, or `default`. Raises UserError for other values."""
    text = candidate.options.get(option, str(default))
    if not text.isdecimal():
        raise UserError(f"a whole number for {option}", f"{text!r} in {candidate.name}", "correct the candidate")
    return int(text)


ENGINES: dict[str, Engine[str]] = {
    "t2r": Engine(
        ("float32", "fp16", "int8", "w8", "w4"),
        (
            *STUDENT,
            "block",
            "head_bits",
            "embedding_bits",
            "target",
            "batch",
            "top_k",
            "prefill",
            "draft_check",
            "provider",
        ),
        (),
        _make_t2r,
    ),
    "genai": Engine(("int4", "int8", "fp32"), ("block",), ("onnxruntime_genai", "transformers"), _make_genai),
    "llama.cpp": Engine(("Q4_0", "Q8_0", "F32"), ("flash",), ("llama_cpp", "gguf"), _make_llama_cpp),
    "torch": Engine(("softmax", "t2r"), tuple(STUDENT), (), _make_torch),
}
