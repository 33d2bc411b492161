"""`t2r save`: write a model or a graph in another format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from t2r_export.cli.given import check_given
from t2r_export.cli.output import base_option, force_option, note_each, size
from t2r_export.cli.spelled import Spelled
from t2r_export.config.options import made, options
from t2r_export.config.saved import ADAPTER, COMPILED, FORMS, OURS, CheckpointForm, TransformersForm, WebForm
from t2r_export.paths import ADAPTERS, check_base, check_folder, check_outputs, existing_model
from t2r_runtime.cli import providers
from t2r_runtime.cli.output import json_option, note, show
from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file
from t2r_runtime.session.refusals import existing_graph

if TYPE_CHECKING:
    from t2r_export.checkpoints.checkpoint import Checkpoint

FILE = click.Path(path_type=Path)
FILES = {OURS: "checkpoint", ADAPTER: "adapter"}  # forms of one file, and the kind of it


@click.command("save")
@click.argument("source", type=FILE)
@click.argument("out", type=FILE)
@click.option(
    "--as",
    "form",
    type=Spelled("a form", {name: options(form) for name, form in FORMS.items()}),
    required=True,
    is_eager=True,
    help="Model: transformers, a folder for AutoModelForCausalLM; marian (post-norm) or pegasus (pre-norm), a "
    "translator's folder; t2r, a model.pt; adapter, an .adapter, what it adds to --base. Graph: web, files for a "
    "web server with sizes and hashes; compiled, for one device of a provider. With options; KIND:help lists them.",
)
@providers.option
@base_option
@force_option
@json_option
def command(
    source: Path,
    out: Path,
    form: tuple[str, dict[str, Any]],
    provider: providers.Provider,
    base: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write SOURCE to OUT in another format.

    A decoder becomes a folder for transformers: of its class, or with modeling_t2r.py and trust_remote_code=True. A
    softmax translator becomes a folder for transformers and CTranslate2; any model a model.pt, or a small .adapter with
    only what differs from the model --base; a graph a folder for web
    pages, or a graph compiled ahead of time. A compiled graph is opened like any other, with the same provider. Name
    the device with --provider qnn:soc_model=57.

    A page writes texts without end. So --as web:page=… first lets the graph write a text of 2,000 tokens, and refuses a
    graph that predicts the last of them much worse than it would without the text before them; --force writes the page
    all the same.
    """
    check_given()
    kind = form[0]
    how: Any = made(FORMS[kind], form[1], f"options of {kind}")
    if isinstance(how, WebForm):
        return _web(source, out, how, force, as_json)
    if kind == COMPILED:
        return _compiled(source, out, provider, as_json)
    existing_model(source)
    beside = base if source.suffix == ADAPTERS else None
    check_base(source, beside)
    if isinstance(how, TransformersForm):
        for path in (how.verify, how.evaluate, how.bench):
            if path is not None:
                existing_file(path, "a report to read")
    if kind == ADAPTER and base is None:
        raise UserError("--base FILE with --as adapter", "none", "name the model that SOURCE was made of")
    if kind in FILES:
        check_outputs([(FILES[kind], out)], [source, base and existing_model(base)], force)
    else:
        check_folder(out)

    import torch

    from t2r_export.checkpoints import checkpoint

    loaded = checkpoint.load(source, base=beside)
    note_each(loaded.warnings)
    if isinstance(how, TransformersForm):
        return _transformers(loaded, out, how, as_json)
    if isinstance(how, CheckpointForm):
        kept = loaded.tokenizer, loaded.provenance, loaded.source_tokenizer
        checkpoint.save(out, loaded.model, *kept, getattr(torch, how.weights))
        files = [out]
    elif kind == ADAPTER and base is not None:
        found = checkpoint.save_adapter(out, loaded, checkpoint.load(base))
        ranks = f", of ranks up to {found.largest_rank}" if found.low_rank else ""
        changed = f"{found.low_rank} changed by matrices of low rank{ranks}, {found.full_rank} changed in full"
        note(f"tensors: {found.whole} new, {changed}; all others are the base's")
        files = [out]
    else:
        files = _folder(loaded, out, kind)
    written = sum(path.stat().st_size for path in files)
    names = [path.name for path in files]
    show(as_json, {"out": out, "files": names, "bytes": written}, f"{out}: {', '.join(names)}, {size(written)}")


def _transformers(loaded: Checkpoint, out: Path, how: TransformersForm, as_json: bool) -> None:
    from t2r_export.checkpoints.hub import save_transformers

    saved = save_transformers(loaded, out, how)
    written = sum(path.stat().st_size for path in saved.files)
    names = [path.name for path in saved.files]
    loads = "trust_remote_code=True" if saved.code else "a class of transformers"
    data = {"out": out, "files": names, "bytes": written, "class": saved.architecture, "remote_code": saved.code}
    show(as_json, data, f"{out}: {saved.architecture}, {loads}\n{', '.join(names)}, {size(written)}")


def _folder(loaded: Checkpoint, out: Path, family: str) -> list[Path]:
    from t2r_export.checkpoints.hub import save_translator

    if loaded.source_tokenizer is not None:
        note("no tokenizer written: the format has one for source and target together")
    return save_translator(loaded, out, family)


def _web(graph: Path, folder: Path, how: WebForm, force: bool, as_json: bool) -> None:
    check_folder(folder)
    for path in [graph] if how.peer is None else [graph, how.peer]:
        existing_graph(path)

    from t2r_export.providers.pack import pack

    packed = pack(graph, folder, how.page, how.peer, any_length=force)
    total = sum(file.size for file in packed.files)
    lines = [f"{file.name}: {size(file.size)}" for file in packed.files if how.page is None or file.size > 100_000]
    count = len(packed.files)
    lines.append(f"{folder}: {count} {'file and its' if count == 1 else 'files and their'} list, {size(total)}")
    show(as_json, {"folder": folder, **vars(packed), "bytes": total}, "\n".join(lines))


def _compiled(source: Path, out: Path, provider: providers.Provider, as_json: bool) -> None:
    check_outputs([("compiled graph", out)], [existing_graph(source)])

    from t2r_export.providers.compile import compile_graph

    with providers.own_stdout():
        report = compile_graph(source, out, *provider)
    taken = f"{report.placement.get(provider.name, 0)} of {sum(report.placement.values())}"
    programs = f"{report.programs} program{'s' if report.programs > 1 else ''}"
    lines = [f"{file}: {size(file.stat().st_size)}" for file in report.files]
    lines.append(f"{taken} operators compiled for {provider.name}, {programs}")
    show(as_json, report, "\n".join(lines))
