"""Options of a finetuning run: frozen, validated on construction. Imports without torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t2r_export.config.needs import FINETUNE, check_needs
from t2r_export.config.options import between, changed, check_values, option, options, within
from t2r_export.config.quantize import QuantizeConfig, scheme
from t2r_export.config.stages import MAX_STEPS, StagePlan, parse_plan
from t2r_export.config.typed import check_fields
from t2r_export.config.validation import MAX_SIZE, choice
from t2r_export.paths import check_outputs, existing_model, text_files
from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file

SEPARATOR = "<|endoftext|>"  # line that ends a document in a text file
FIELD = "text"  # text field of JSON lines and Parquet
SPLITS = ("order", "hash")  # see t2r_export.data.documents.parted
MAX_START = 1 << 30  # positions are int32
LENGTH = 256  # default window length in tokens
LEAST_LENGTH = 4  # minimum length of windows whose last quarter is measured
EVAL_TOKENS = 500_000  # default number of predicted tokens per evaluation
LEAST_EVAL_TOKENS = 2048  # minimum for evaluations within a run
START_POSITIONS = 4096  # default range of start positions (t2r_export.batches.starts)
PRECISIONS = ("auto", "float32", "bf16")  # auto: bf16 autocast on CUDA, float32 elsewhere
OPTIMIZERS = ("adamw", "muon")  # muon: AdamW for weights that are not matrices of the blocks
DEVICES = ("auto", "cpu", "cuda")
FAR_SHARES = "far_shares"  # in a run's provenance: [layer, the sums' share of attention, the teacher's], if hybrid
PARTS = ("train", "valid", "test")  # test is used for reports only


@dataclass(frozen=True)
class Shares:
    """Fractions of the validation and test parts; the rest, the beginning of a text, is the training part."""

    valid: float = 0.05
    test: float = 0.05
    by: str = SPLITS[0]

    def __post_init__(self) -> None:
        for name in ("valid", "test"):
            between(f"{name}_share", getattr(self, name), 0, 1)
        choice("split_by", self.by, SPLITS)
        if self.valid + self.test >= 1:
            raise UserError("shares of valid and test below 1 together", f"{self.valid:g} + {self.test:g}", "lower one")


def usual_length(max_positions: int | None) -> int:
    """Default window length in tokens: LENGTH, or the model's context if shorter."""
    return min(LENGTH, max_positions or LENGTH)


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Options of a finetuning run. Files are checked by `check_files`.

    Metadata of options:

    - `result`: when the option affects the result and is part of the run's identity: "always" (the default), when
      "changed" from its default, when the option of that name is set, or never (None).
    - `within`: the command line groups the option: `loss.hidden` is `--loss hidden`.
    - `shared`: recipes set the option once for all runs.
    """

    model: Path
    output: Path
    data: tuple[Path, ...] = option(
        "Training data of a decoder: text, .jsonl, .parquet, .arrow, a folder, hf:OWNER/NAME/PATTERN, or token ids as "
        ".npy; repeatable.",
        (),
        result=None,
    )
    pairs: tuple[Path, ...] = option(
        "Training data of a translator: lines of source, tab and translation; repeatable.", (), result=None
    )
    valid: Path | None = option("Pairs for validation.", None, usual="a share of --pairs", result=None)
    test: Path | None = option("Pairs for test reports only.", None, usual="a share of --pairs", result=None)
    plan: tuple[StagePlan, ...] = field(default_factory=parse_plan)
    teacher: Path | None = option(
        "Teacher model for distillation.", None, usual="the model that MODEL was converted from", result=None
    )
    separator: str = option(
        "Line that ends a document in a text.", SEPARATOR, within="split.separator", shared=True, result=None
    )
    valid_share: float = option(
        "Fraction of the text before its test part, or of pair groups, for validation.",
        Shares.valid,
        within="split.valid",
        between=(0, 1),
        shared=True,
    )
    test_share: float = option(
        "Fraction of the text at its end, or of pair groups, for test reports only.",
        Shares.test,
        within="split.test",
        between=(0, 1),
        shared=True,
    )
    split_by: str = option(
        "Split documents by order, or by the hash of each.",
        SPLITS[0],
        SPLITS,
        within="split.by",
        result="changed",
        shared=True,
    )
    text_field: str = option(
        "Text field of .jsonl, .parquet and .arrow.", FIELD, within="split.field", shared=True, result=None
    )
    pack: bool = option(
        "Training windows cross the borders of documents, or have tokens of one document each.",
        True,
        within="split.pack",
        result="changed",
    )
    length: int | None = option(
        "Window length in tokens; of pairs, the maximum length of a side, longer pairs are skipped.",
        None,
        usual=f"{LENGTH}, the model's context if shorter, or the row length of a .npy",
        bounds=(1, MAX_STEPS),
    )
    batch: int = option("Windows per step, across all processes.", 16, bounds=(1, MAX_SIZE))
    pair_tokens: int = option(
        "Maximum tokens of pairs per step, both sides with padding.",
        4096,
        result="pairs",
        bounds=(1, MAX_STEPS),
    )
    hidden: float = option(
        "Weight of the hidden-state loss beside the KL loss in the distill stage.",
        5.0,
        within="loss.hidden",
        bounds=(0, math.inf),
    )
    cross_entropy: float = option(
        "Weight of the cross-entropy loss beside the KL loss in the distill stage.",
        0.0,
        within="loss.cross_entropy",
        bounds=(0, math.inf),
    )
    kl_top: int = option(
        "KL loss over this many of the teacher's top tokens, with the rest as one outcome; 0: all tokens.",
        0,
        within="loss.kl_top",
        bounds=(0, MAX_STEPS),
    )
    label_smoothing: float = option(
        "Label smoothing in the task stage.", 0.0, within="loss.label_smoothing", result="changed", between=(0, 1)
    )
    dropout: float = option(
        "Dropout probability on mixer and feed-forward outputs, in the distill and task stages.",
        0.0,
        within="loss.dropout",
        result="changed",
        between=(0, 1),
    )
    rounding: QuantizeConfig | None = None  # for the stage round: train through this scheme's quantization
    start_positions: int | None = option(
        "Start windows at random positions below N; 0: at position 0.",
        None,
        usual=f"{START_POSITIONS} for gated layers with rotary positions, else 0",
        bounds=(0, MAX_START),
    )
    lora: bool = False  # in distill and task, train only adapters and the mixers' new parameters
    lora_rank: int = option("Rank of the adapters.", 8, within="lora.rank", result="lora", bounds=(1, MAX_STEPS))
    lora_alpha: float = option(
        "LoRA alpha: adapters are scaled by alpha / rank.",
        16.0,
        within="lora.alpha",
        result="lora",
        between=(0, math.inf),
    )
    lora_targets: str = option(
        "Matrices with adapters: attention (q, k, v and o), or all, with those of dense feed-forwards.",
        "attention",
        ("attention", "all"),
        within="lora.targets",
        result="lora",
    )
    lora_mixers: bool = option("Also train the mixers' other weights.", True, within="lora.mixers", result="lora")
    optimizer: str = option("Optimizer: adamw, or muon for the block matrices.", "adamw", OPTIMIZERS)
    warmup: float = option(
        "Fraction of a stage's steps for learning-rate warmup.", 0.05, within="optimizer.warmup", bounds=(0, 1)
    )
    weight_decay: float = option(
        "Weight decay of trained weights.", 0.0, within="optimizer.weight_decay", bounds=(0, math.inf)
    )
    accumulate: int = option(
        "Parts of a batch whose gradients are accumulated: less memory, the same steps.",
        1,
        within="optimizer.accumulate",
        result="changed",
    )
    recompute: bool = option(
        "Compute intermediate values of blocks anew in the backward pass: less memory, the same results.",
        False,
        within="optimizer.recompute",
        result=None,
    )
    clip: float = option("Maximum gradient norm.", 1.0, within="optimizer.clip", between=(0, math.inf))
    seed: int = option("Random seed of data order, dropout and adapters.", 0, bounds=(0, MAX_STEPS))
    eval_tokens: int | None = option(
        "Test tokens for the evaluations of teacher and student; 0: all.",
        None,
        usual=f"the number of training tokens, at most {EVAL_TOKENS:,}",
        bounds=(0, MAX_STEPS),
    )
    precision: str = option("Training precision: auto is bf16 on CUDA, else float32.", "auto", PRECISIONS)
    device: str = option("Device to train on.", "auto", DEVICES, result=None)
    checkpoint_every: int = option(
        "Steps between training states.", 200, within="every.checkpoint", bounds=(1, MAX_STEPS), result=None
    )
    validate_every: int = option("Steps between validations.", 200, within="every.validate", bounds=(1, MAX_STEPS))
    resume: bool = option("Resume an interrupted run, with identical results.", False, shared=True, result=None)
    log: Path | None = None  # default: OUTPUT.jsonl
    force: bool = False  # overwrite a model at `output`

    def __post_init__(self) -> None:
        check_fields(self)
        if not sum(plan.steps for plan in self.plan):
            raise UserError("at least one step of one stage", "none", "pass the number of steps")
        check_values(self)
        assert self.shares
        self._check_rounding()
        optional = [each for each in dataclasses.fields(self) if each.default is not dataclasses.MISSING]
        given = [each.name for each in optional if changed(self, each)]
        check_needs(FINETUNE, vars(self), given, within(type(self)))
        if self.pairs and self.data:
            raise UserError("pairs, or a text", "both", "leave one out")

    def _check_rounding(self) -> None:
        stages = [plan.stage for plan in self.plan if plan.steps]
        if ("round" in stages) != (self.rounding is not None) or ("round" in stages and stages != ["round"]):
            received = f"the stages {', '.join(stages)} {'without' if self.rounding is None else 'with'} --for"
            do = "train the student first, then run --stages round --for w4"
            raise UserError("--for with --stages round and no other stage", received, do)
        if self.rounding is not None and not scheme(self.rounding.scheme).rounds:
            raise UserError("--for w8 or w4", self.rounding.scheme, "choose one of those")

    @property
    def shares(self) -> Shares:
        return Shares(self.valid_share, self.test_share, self.split_by)

    @property
    def state_path(self) -> Path:
        """The training state of an unfinished run."""
        return Path(f"{self.output}.training")  # not with_name, which fails for /

    @property
    def may_be_complete(self) -> bool:
        """Whether --resume finds a file that may be this run's result."""
        return self.resume and self.output.is_file()

    @property
    def log_path(self) -> Path:
        return self.log or Path(f"{self.output}.jsonl")

    def check_files(self) -> None:
        """Raise UserError for missing inputs, and for outputs that must not be overwritten.

        With `may_be_complete`, the output may be any model: `t2r_export.finetune` looks whether it is the result.
        """
        self.check_outputs(self.check_inputs(), self.force or self.may_be_complete)

    def check_inputs(self) -> list[Path | None]:
        """All inputs. Raises UserError for missing ones."""
        for path in (self.model, self.teacher):
            if path is not None:
                existing_model(path)
        if self.data:
            text_files(self.data)
        files = [path for path in (*self.pairs, self.valid, self.test) if path is not None]
        for path in files:
            existing_file(path, "a file of pairs")
        return [self.model, self.teacher, *self.data, *files]

    def check_outputs(self, inputs: Sequence[Path | None], force: bool) -> None:
        """Raise UserError for outputs that must not be overwritten."""
        self.check_places()
        check_outputs(self._outputs, inputs, force)

    def check_places(self) -> None:
        """Raise UserError for an output in a folder of texts: the log would become training text."""
        for folder in filter(Path.is_dir, self.data):
            for _, path in self._outputs:
                if path.resolve().is_relative_to(folder.resolve()):
                    raise UserError("an output outside of input folders", f"{path} in {folder}", "name another place")

    @property
    def _outputs(self) -> list[tuple[str, Path]]:
        return [("checkpoint", self.output), ("training state", self.state_path), ("log", self.log_path)]

    def for_model(self, width: int, max_positions: int | None, row: int | None = None) -> FinetuneConfig:
        """The config with all learning rates and the window length set.

        Args:
            width: the model's width.
            max_positions: the model's context; None: unlimited.
            row: window length of a corpus of fixed windows; None: a stream of tokens.
        """
        made = dataclasses.replace(self, length=self.length or row or usual_length(max_positions))
        return dataclasses.replace(made, plan=tuple(stage.for_model(width, made.step_tokens) for stage in self.plan))

    @property
    def window(self) -> int:
        """The window length, after `for_model`."""
        assert self.length is not None
        return self.length

    @property
    def step_tokens(self) -> int:
        """Maximum number of tokens per step, after `for_model`."""
        return self.pair_tokens if self.pairs else self.batch * self.window

    @property
    def trained_tokens(self) -> int:
        """Maximum number of training tokens of all stages, after `for_model`."""
        return sum(plan.steps for plan in self.plan) * self.step_tokens

    @property
    def report_tokens(self) -> int:
        """Test tokens per evaluation; 0: all. By default at most the number of training tokens."""
        if self.eval_tokens is not None:
            return self.eval_tokens
        return min(EVAL_TOKENS, max(LEAST_EVAL_TOKENS, self.trained_tokens))

    @property
    def validation_tokens(self) -> int:
        """Maximum tokens per validation, so that all validations read at most the number of training tokens."""
        count = sum(-(-plan.steps // self.validate_every) + 1 for plan in self.plan if plan.steps)
        return max(LEAST_EVAL_TOKENS, self.trained_tokens // count)

    def recipe(self) -> dict[str, Any]:
        """The options that determine the result, as plain data: the provenance and identity of the run."""
        plan = [
            {"stage": stage.stage, "steps": stage.steps, "learning_rate": stage.learning_rate}
            for stage in self.plan
            if stage.steps
        ]
        rounding = {} if self.rounding is None else {"for": self.rounding.described()}
        decisive = [name for name, each in options(type(self)).items() if self._decides(each)]
        return {"stages": plan, **{name: getattr(self, name) for name in decisive}, **rounding}

    def _decides(self, each: dataclasses.Field[Any]) -> bool:
        """Whether an option is part of the run's identity."""
        when = each.metadata.get("result", "always")
        return when == "always" or (changed(self, each) if when == "changed" else bool(when and getattr(self, when)))
