"""Python API of the pipeline; options and errors are those of the command line.

    import t2r_export

    student = t2r_export.load("stories260K").convert(feature_size=16).finetune("tuned.pt", "tales.txt", steps=100)
    student.export("out.onnx", prefill=True)
    assert student.verify("out.onnx").passed

Methods return new models and do not change `self`. See t2r_export.convert, finetune, export, quantize and verify for
the stages, and t2r_export.config for all options.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch

from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.layer_numbers import ranges
from t2r_export.config.model import ModelConfig
from t2r_export.config.options import made as _made
from t2r_export.config.options import read_kind
from t2r_export.config.plain import to_plain
from t2r_export.config.pruning import PruneConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.config.stages import parse_plan
from t2r_export.config.students import student_mixer
from t2r_export.config.typed import typed
from t2r_export.convert import conversion, provenance, source_mixers
from t2r_export.data.corpus import read_corpus
from t2r_export.export import ExportReport, export
from t2r_export.finetune import finetune
from t2r_export.model.transformer import Transformer
from t2r_export.paths import check_outputs
from t2r_export.proof.report import Report
from t2r_export.pruning.prune import provenance as pruned
from t2r_export.pruning.prune import prune
from t2r_export.quantize import export_quantized
from t2r_export.verify import verify
from t2r_runtime.errors import UserError

C = TypeVar("C")
Files = str | Path | Iterable[str | Path]
SUMMARY = 7  # lines of a model's summary for its size and kinds of layers


@dataclasses.dataclass(frozen=True, repr=False)
class Model:
    """A model and the stages of the pipeline as methods.

    Attributes:
        checkpoint: config, torch module, tokenizer, provenance and SHA-256.
    """

    checkpoint: Checkpoint

    @classmethod
    @typed
    def new(cls, config: ModelConfig, tokenizer: str | None = None, seed: int = 0) -> Model:
        """An untrained model with random weights; see docs/own-models.md.

        Args:
            tokenizer: contents of a tokenizer.json.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Transformer(config).eval()
        return cls(checkpoint.made(model, tokenizer, {}))

    def __repr__(self) -> str:
        """A summary in a few lines."""
        made, config = self.checkpoint, self.config
        mixers = [
            "; ".join(", ".join(filter(None, (part.label, part.summary()))) for part in layer.mixers)
            for layer in config.layers
        ]
        lines = [
            f"{'decoder' if config.encoder is None else 'translator'} of {len(mixers)} layers, width {config.width}, "
            f"{sum(weight.numel() for weight in made.model.parameters()):,} parameters",
            *(
                f"layers {ranges([n for n, m in enumerate(mixers) if m == mixer])}: {mixer}"
                for mixer in dict.fromkeys(mixers)
            ),
        ]
        if len(lines) > SUMMARY:
            lines[SUMMARY:] = [f"… {len(lines) - SUMMARY} more kinds of layers"]
        tokenizer = "no tokenizer" if made.tokenizer is None else "with a tokenizer"
        lines += [
            f"positions: {config.positions_summary}",
            f"vocabulary: {config.vocab_size:,} tokens, {tokenizer}",
            f"sha256: {made.sha256}",
        ]
        return "\n  ".join(["Model", *lines])

    @property
    def config(self) -> ModelConfig:
        """The config of the model."""
        return self.checkpoint.config

    @typed
    def save(self, path: str | Path) -> Path:
        """Write a model.pt, replacing an existing model. Raises UserError if `path` cannot be written."""
        check_outputs([("checkpoint", Path(path))], force=True)
        made = self.checkpoint
        checkpoint.save(path, made.model, made.tokenizer, made.provenance, made.source_tokenizer)
        return Path(path)

    @typed
    def convert(
        self,
        mixer: str = "linear",
        layers: str = "all",
        seed: int = 0,
        cross: str | None = None,
        encoder: bool = False,
        **options: Any,
    ) -> Model:
        """`t2r convert`: replace the mixer of the chosen layers; new parameters are untrained.

        Args:
            mixer: a kind in t2r_export.config.uniform.MIXERS, optionally with options: `linear:feature_size=32`.
            layers: `all`, `softmax`, `none`, `every:N` or layer numbers such as `0,2,5`.
            cross: cross-attention of a translator, `softmax` or `linear:feature_size=32`.
            encoder: convert the encoder of a translator too; see t2r_export.convert.source_mixers.
            options: fields of the mixer's config: `feature_size=32`, `feature_map="elu"`, `window=64`, …; defaults as
                on the command line (t2r_export.config.students).

        Raises:
            UserError: an invalid option; see t2r_export.convert.convert.
        """
        old = self.checkpoint
        kind, values = read_kind(mixer)
        config, _ = student_mixer(kind, {**values, **options}, old.config)
        others = source_mixers(old.config, config, None if cross is None else read_kind(cross), encoder)
        made = conversion(old.model, config, layers, seed, *others)
        done = provenance(old, made.untrained, mixer=to_plain(config), layers=layers, seed=seed)
        return Model(checkpoint.made(made.model, old.tokenizer, done, old.source_tokenizer))

    @typed
    def prune(self, data: Files, **options: float) -> Model:
        """`t2r prune`: remove the least needed parts, measured on a text; finetune the result with `self` as teacher.

        Args:
            data: one or several texts, or token ids as .npy.
            options: shares by kind, fields of t2r_export.config.pruning.PruneConfig: `ffn=0.25`, `state=0.5`, …

        Raises:
            UserError: an invalid share; see t2r_export.pruning.prune.prune.
        """
        old, shares = self.checkpoint, _made(PruneConfig, options)
        corpus = read_corpus(_paths(data), old.tokenizer, old.config)
        found = prune(old.model, shares, corpus)
        done = pruned(old, found, text_sha256=corpus.sha256, shares=shares.shares)
        return Model(checkpoint.made(found.model, old.tokenizer, done, old.source_tokenizer))

    @typed
    def finetune(
        self,
        output: str | Path,
        data: Files,
        stages: str | None = None,
        steps: int | str | None = None,
        learning_rates: str | None = None,
        **options: Any,
    ) -> Model:
        """`t2r finetune`: train to match the teacher. Returns the trained model, which is also written to `output`.

        Args:
            output: a .pt file; the log is written beside it, and during training the state for `resume=True`.
            data: one or several texts, or token ids as .npy.
            stages, steps, learning_rates: comma-separated, one per stage. Default: `transfer,distill`, without stages
                that have nothing to train in this model, and the defaults of the stages.
            options: other fields of FinetuneConfig: `teacher=`, `batch=`, `length=`, `lora=True`, `resume=True`, …

        Raises:
            UserError, CheckFailed, KeyboardInterrupt: see t2r_export.finetune.finetune.
        """
        plan = parse_plan(stages, None if steps is None else str(steps), learning_rates)
        with tempfile.TemporaryDirectory() as folder:
            made = {
                "model": self.save(Path(folder) / "model.pt"),
                "output": Path(output),
                "data": tuple(_paths(data)),
                "plan": plan,
            }
            finetune(_made(FinetuneConfig, {**options, **made}))
        return load(output)

    @typed
    def export(
        self,
        path: str | Path,
        quantize: str | QuantizeConfig | None = None,
        check: str | Path | None = None,
        **options: Any,
    ) -> ExportReport:
        """`t2r-export`: write the recurrent graph, after a trial step.

        Args:
            quantize: a scheme with options, such as `w4:block_size=128`, or a config.
            check: text on which the loss of the quantized graph must stay within the scheme's bound.
            options: fields of ExportConfig: `target="fused"`, `prefill=True`, `top_k=40`, …

        Raises:
            UserError: an invalid option. CheckFailed: an inexact fold, or a graph that does not run.
        """
        config = _made(ExportConfig, options)
        if quantize is None:
            if check is not None:
                raise UserError("check beside quantize", "check alone", "name a scheme, or leave it out")
            return export(self.checkpoint, path, config)
        how = _scheme(quantize) if isinstance(quantize, str) else quantize
        text = None if check is None else Path(check)
        return export_quantized(self.checkpoint, Path(path), config, how, text)[0]

    @typed
    def verify(
        self,
        graph: str | Path,
        provider: str = "cpu",
        steps: int = 1000,
        on_progress: Callable[[int], None] = lambda _: None,
        reference: str = "float32",
    ) -> Report:
        """`t2r verify`: compare a graph with this model; `passed` of the report is the verdict.

        Raises:
            UserError: the graph belongs to a model of another shape, or the provider cannot open it.
        """
        return verify(self.checkpoint, graph, provider, steps, on_progress=on_progress, reference=reference)


@typed
def load(path: str | Path, base: str | Path | None = None) -> Model:
    """Load a model.pt, a Hugging Face folder, a .gguf, an .adapter, or `hf:OWNER/NAME` of the hub's local cache.

    Args:
        base: of an .adapter, the model that it was made of.

    Raises:
        UserError: no such file, or one that cannot be read; no base of an adapter, or another one.
    """
    return Model(checkpoint.load(path, base=base))


def _paths(files: Files) -> list[Path]:
    return [Path(file) for file in ([files] if isinstance(files, str | Path) else files)]


def _scheme(text: str) -> QuantizeConfig:
    name, values = read_kind(text)
    return _made(QuantizeConfig, {"scheme": name, **values})
