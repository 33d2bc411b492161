"""The options of a finetuning run as plain data: frozen, validated on construction, readable without torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t2r_export.config.needs import FINETUNE, check_needs
from t2r_export.config.options import between, changed, check_values, option, options, within
from t2r_export.config.quantize import QuantizeConfig, scheme
from t2r_export.config.stages import MAX_STEPS, StagePlan, parse_plan
from t2r_export.config.typed import check_fields
from t2r_export.config.validation import choice
from t2r_export.paths import check_outputs, existing_model, text_files
from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file

SEPARATOR = "<|endoftext|>"  # a line of a text file that ends a document
FIELD = "text"  # of JSON lines and Parquet
SPLITS = ("order", "hash")  # how documents are divided in parts: t2r_export.data.documents.parted
MAX_START = 1 << 30  # a position is an int32
LENGTH = 256  # tokens
EVAL_TOKENS = 500_000  # that an evaluation predicts where nobody says how many
LEAST_EVAL_TOKENS = 2048  # of a run's own evaluations, where it trains on fewer
START_POSITIONS = 4096  # of windows, where a student needs them (t2r_export.data.starts)
PRECISIONS = ("auto", "float32", "bf16")  # auto: bf16 autocast on CUDA, float32 elsewhere
OPTIMIZERS = ("adamw", "muon")  # muon: for the blocks' matrices, AdamW for the rest
DEVICES = ("auto", "cpu", "cuda")
PARTS = (
    "train",
    "valid",
    "test",
)  # of a text: what teaches, what chooses, and what reports and is read by nothing else


@dataclass(frozen=True)
class Shares:
    """How much of a text is its valid part and how much its test part; the rest, its beginning, is to train on."""

    valid: float = 0.05
    test: float = 0.05
    by: str = SPLITS[0]

    def __post_init__(self) -> None:
        for name in ("valid", "test"):
            between(f"{name}_share", getattr(self, name), 0, 1)
        choice("split_by", self.by, SPLITS)
        if self.valid + self.test >= 1:
            received = f"{self.valid:g} + {self.test:g}"
            raise UserError(
                "valid_share + test_share below 1, so that some text is left to train on", received, "lower one"
            )


def usual_length(max_positions: int | None) -> int:
    """Tokens in a window where nobody says how many: LENGTH, or a model's context if that is shorter."""
    return min(LENGTH, max_positions or LENGTH)


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """All options of a run. Values are checked here, files when they are read.

    `result` says when an option is a part of the run's identity, because it changes the result: always, where it is
    not at its default (changed), or where the option that it names is set. Without one, it changes nothing.
    `within` is where the command line has an option inside of another: `loss.hidden`. `shared`: recipes say it once,
    for all runs.
    """

    model: Path
    output: Path
    data: tuple[Path, ...] = option(
        "Text, .jsonl, .parquet, a folder of them, or token ids as .npy, to train a decoder on; repeat for more.", ()
    )
    pairs: tuple[Path, ...] = option(
        "Lines with a source, a tab and its translation, to train a translator on; repeat for more.", ()
    )
    valid: Path | None = option("Pairs that validations choose by.", None, usual="a share of --pairs")
    test: Path | None = option("Pairs that are measured before and after.", None, usual="a share of --pairs")
    plan: tuple[StagePlan, ...] = field(default_factory=parse_plan)
    teacher: Path | None = option(
        "Model to learn from.", None, usual="what MODEL was converted from, rebuilt from its weights"
    )
    separator: str = option("Line that ends a document in a text.", SEPARATOR, within="split.separator", shared=True)
    valid_share: float = option(
        "Share of the text, before its test part, or of groups of pairs, that validations choose by.",
        Shares.valid,
        within="split.valid",
        result="always",
        between=(0, 1),
        shared=True,
    )
    test_share: float = option(
        "Share of the text, at its end, or of groups of pairs, that is measured before and after and read by nothing "
        "else.",
        Shares.test,
        within="split.test",
        result="always",
        between=(0, 1),
        shared=True,
    )
    split_by: str = option(
        "Parts by the order of documents, or by the hash of each.",
        SPLITS[0],
        SPLITS,
        within="split.by",
        result="changed",
        shared=True,
    )
    text_field: str = option("Field of .jsonl and .parquet that is the text.", FIELD, within="split.field", shared=True)
    length: int | None = option(
        "Window length in tokens, or the longest side of a pair; longer pairs are left out.",
        None,
        usual=f"{LENGTH}, or the model's context if that is shorter, or the rows' of a .npy",
        result="always",
        bounds=(1, MAX_STEPS),
    )
    batch: int = option("Windows per step, over all processes.", 16, result="always", bounds=(1, MAX_STEPS))
    pair_tokens: int = option(
        "Tokens of pairs per step at most, both sides with their padding.", 4096, result="pairs", bounds=(1, MAX_STEPS)
    )
    hidden: float = option(
        "Weight of the hidden-state loss beside the KL loss in the distill stage.",
        5.0,
        within="loss.hidden",
        result="always",
        bounds=(0, math.inf),
    )
    cross_entropy: float = option(
        "Weight of the cross-entropy loss beside the KL loss in the distill stage.",
        0.0,
        within="loss.cross_entropy",
        result="always",
        bounds=(0, math.inf),
    )
    kl_top: int = option(
        "Tokens that KL compares one by one, the teacher's most likely; the others as one. 0 is all tokens.",
        0,
        within="loss.kl_top",
        result="always",
        bounds=(0, MAX_STEPS),
    )
    label_smoothing: float = option(
        "Share of each label that is spread over all tokens, in the task stage.",
        0.0,
        within="loss.label_smoothing",
        result="changed",
        between=(0, 1),
    )
    dropout: float = option(
        "Dropout probability on mixer and feed-forward outputs, in distill and task.",
        0.0,
        result="changed",
        between=(0, 1),
    )
    rounding: QuantizeConfig | None = None  # train a folded student through what this scheme rounds: the stage round
    start_positions: int | None = option(
        "Start windows at one of so many positions, drawn at random; 0: at 0.",
        None,
        usual=f"{START_POSITIONS} for gated layers behind a rotation, else 0",
        result="always",
        bounds=(0, MAX_START),
    )
    lora: bool = False  # distill and task train only adapters of the projections and the mixers' new parameters
    lora_rank: int = option("Rank of the adapters.", 8, within="lora.rank", result="lora", bounds=(1, MAX_STEPS))
    lora_alpha: float = option(
        "Scale of the adapters' output, before it is divided by the rank.",
        16.0,
        within="lora.alpha",
        result="lora",
        between=(0, math.inf),
    )
    optimizer: str = option(
        "Optimizer: adamw, or muon for the matrices of the blocks.", "adamw", OPTIMIZERS, result="always"
    )
    warmup: float = option(
        "Share of a stage's steps in which the learning rate rises.",
        0.05,
        within="optimizer.warmup",
        result="always",
        bounds=(0, 1),
    )
    weight_decay: float = option(
        "Weight decay of all trained weights.",
        0.0,
        within="optimizer.weight_decay",
        result="always",
        bounds=(0, math.inf),
    )
    clip: float = option(
        "Largest norm of the gradient.", 1.0, within="optimizer.clip", result="always", between=(0, math.inf)
    )
    seed: int = option("Seed of the order of the windows.", 0, result="always", bounds=(0, MAX_STEPS))
    eval_tokens: int | None = option(
        "Tokens of the test part that the teacher, and the student before and after, are measured on; 0 is all.",
        None,
        usual=f"as many as are trained on, at most {EVAL_TOKENS:,}",
        result="always",
        bounds=(0, MAX_STEPS),
    )
    precision: str = option(
        "Precision of the arithmetic: auto is bf16 on CUDA, else float32.", "auto", PRECISIONS, result="always"
    )
    device: str = option("Device to compute on.", "auto", DEVICES)
    checkpoint_every: int = option(
        "Steps between two saved states of the run.", 200, within="every.checkpoint", bounds=(1, MAX_STEPS)
    )
    validate_every: int = option(
        "Steps between two validations on the valid part.",
        200,
        within="every.validate",
        result="always",
        bounds=(1, MAX_STEPS),
    )
    resume: bool = option("Resume an interrupted run; the result is the same.", False, shared=True)
    log: Path | None = None  # default: beside the output
    force: bool = False  # replace a trained model at `output`

    def __post_init__(self) -> None:
        check_fields(self)
        if not sum(plan.steps for plan in self.plan):
            raise UserError("at least one step of one stage", "none", "give the number of steps")
        check_values(self)
        assert self.shares
        self._check_rounding()
        given = [each.name for each in dataclasses.fields(self) if self._changed(each)]
        check_needs(FINETUNE, vars(self), given, within(type(self)))
        if self.pairs and self.data:
            raise UserError("pairs, or a text", "both", "leave one out")

    def _changed(self, each: dataclasses.Field[Any]) -> bool:
        """Whether a field that has a default is not at it."""
        return each.default is not dataclasses.MISSING and changed(self, each)

    def _check_rounding(self) -> None:
        stages = [plan.stage for plan in self.plan if plan.steps]
        if ("round" in stages) != (self.rounding is not None) or ("round" in stages and stages != ["round"]):
            raise UserError(
                "the stage round, alone, with a scheme to round by, and no scheme without it",
                f"the stages {', '.join(stages)} {'without' if self.rounding is None else 'with'} a scheme",
                "train the student first, then give it --for w4 in a run of its own",
            )
        if self.rounding is not None and not scheme(self.rounding.scheme).block_wise:
            raise UserError("a scheme of blocks to train for: w8 or w4", self.rounding.scheme, "choose one of those")

    @property
    def shares(self) -> Shares:
        return Shares(self.valid_share, self.test_share, self.split_by)

    @property
    def state_path(self) -> Path:
        """Where the state of an unfinished run is kept."""
        return Path(f"{self.output}.training")  # of / too, which has no name, and is refused as an output

    @property
    def may_be_complete(self) -> bool:
        """Whether what is to be resumed has no state but a result: that of this run, or of another."""
        return self.resume and not self.force and self.output.is_file() and not self.state_path.exists()

    @property
    def log_path(self) -> Path:
        return self.log or Path(f"{self.output}.jsonl")

    def check_files(self) -> None:
        """Raise UserError for an input that is not there, or an output that may not be written."""
        for path in (self.model, self.teacher):
            if path is not None:
                existing_model(path)
        if self.data:
            text_files(self.data)
        files = [path for path in (*self.pairs, self.valid, self.test) if path is not None]
        for path in files:
            existing_file(path, "a file of pairs")
        outputs = [("checkpoint", self.output), ("training state", self.state_path), ("log", self.log_path)]
        check_outputs(outputs, [self.model, self.teacher, *self.data, *files], self.force or self.may_be_complete)

    def for_model(self, width: int, max_positions: int | None, row: int | None = None) -> FinetuneConfig:
        """The config with every learning rate and the length known, for a model of this width and context, and a corpus
        that is one stream, or windows of `row` tokens each."""
        length = self.length or row or usual_length(max_positions)
        return dataclasses.replace(self, plan=tuple(stage.for_width(width) for stage in self.plan), length=length)

    @property
    def window(self) -> int:
        """The length, of a config `for_model`."""
        assert self.length is not None
        return self.length

    @property
    def trained_tokens(self) -> int:
        """Tokens that all stages train on, at most; of a config `for_model`."""
        return sum(plan.steps for plan in self.plan) * (self.pair_tokens if self.pairs else self.batch * self.window)

    @property
    def report_tokens(self) -> int:
        """Tokens of the test part that the teacher, and the student before and after, are measured on; 0 is all.

        Where nobody says how many, at most those that are trained on: no report costs more than the training.
        """
        if self.eval_tokens is not None:
            return self.eval_tokens
        return min(EVAL_TOKENS, max(LEAST_EVAL_TOKENS, self.trained_tokens))

    @property
    def validation_tokens(self) -> int:
        """Tokens of a validation at most: all validations together read no more than is trained on."""
        count = sum(-(-plan.steps // self.validate_every) + 1 for plan in self.plan if plan.steps)
        return max(LEAST_EVAL_TOKENS, self.trained_tokens // count)

    def recipe(self) -> dict[str, Any]:
        """The options that determine the result, as plain data: for the provenance and the identity of a run."""
        plan = [
            {"stage": stage.stage, "steps": stage.steps, "learning_rate": stage.learning_rate}
            for stage in self.plan
            if stage.steps
        ]
        rounding = {} if self.rounding is None else {"for": self.rounding.described()}
        return {"stages": plan, **{name: getattr(self, name) for name in self._decisive()}, **rounding}

    def _decisive(self) -> Iterator[str]:
        """Names of the options that are a part of the run's identity."""
        for name, each in options(type(self)).items():
            when = each.metadata.get("result")
            if when == "always" or (when == "changed" and changed(self, each)) or (when and getattr(self, when, None)):
                yield name
