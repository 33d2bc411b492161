"""The options of a finetuning run as plain data: frozen, validated on construction, readable without torch."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t2r_export.config.needs import FINETUNE, check_needs
from t2r_export.config.quantize import QuantizeConfig, scheme
from t2r_export.config.typed import check_fields
from t2r_export.config.validation import LARGEST, choice, size
from t2r_export.paths import check_outputs, existing_model
from t2r_runtime.errors import UserError, shown
from t2r_runtime.files import existing_file

SEPARATOR = "<|endoftext|>"  # a line of a text file that ends a document
MAX_STEPS = 1 << 40
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

    def __post_init__(self) -> None:
        for name in ("valid", "test"):
            _between(f"{name}_share", getattr(self, name), 0, 1)
        if self.valid + self.test >= 1:
            received = f"{self.valid:g} + {self.test:g}"
            raise UserError(
                "valid_share + test_share below 1, so that some text is left to train on", received, "lower one"
            )


@dataclass(frozen=True)
class StageKind:
    """A stage of finetuning: its class, its defaults, and what it needs."""

    stage: str  # "module:Class" of its t2r_export.training.stages.Stage
    steps: int
    learning_rate: float  # the peak, for a model of width 64
    scaled: bool = True  # by 64 / width, as Adam on a layer's matrices wants it (Yang et al. 2022, arXiv 2203.03466)
    needs_teacher: bool = True
    takes_lora: bool = False  # trains all weights, or adapters where the student has them
    drops: bool = False  # may drop numbers on the way
    carries: bool = False  # may begin windows with the state that text before them left


# All stages by name. The figures were found on stories260K, whose width is 64; a feature map's inputs are a head's, so
# the learning rate of transfer does not depend on the width.
STAGES = {
    "transfer": StageKind("t2r_export.training.layerwise:Transfer", 300, 1e-2, scaled=False),
    "align": StageKind("t2r_export.training.layerwise:Align", 300, 1e-2),
    "distill": StageKind("t2r_export.training.stages:Distill", 3000, 4e-3, takes_lora=True, drops=True, carries=True),
    "round": StageKind("t2r_export.training.stages:Round", 500, 1e-3),
    "task": StageKind("t2r_export.training.stages:Task", 1000, 1e-3, needs_teacher=False, takes_lora=True, drops=True),
}
USUAL_STAGES = "transfer,distill"  # where nobody says which; without those that have nothing to train in a student


@dataclass(frozen=True)
class StagePlan:
    """One stage of a run."""

    stage: str
    steps: int  # 0 leaves the stage out
    learning_rate: float | None  # the peak; None: the stage's default for the model's width
    optional: bool = False  # left out where it has nothing to train in the student, which is an error otherwise

    def __post_init__(self) -> None:
        choice("stage", self.stage, tuple(STAGES))
        size(f"steps of {self.stage}", self.steps, MAX_STEPS, least=0)
        if self.learning_rate is not None:
            _between(f"the learning rate of {self.stage}", self.learning_rate, 0, 10)

    @property
    def peak(self) -> float:
        """The learning rate, of a plan `for_width`."""
        assert self.learning_rate is not None
        return self.learning_rate

    def for_width(self, width: int) -> StagePlan:
        """The plan with a learning rate: its own, or the default for this width."""
        if self.learning_rate is not None:
            return self
        default = STAGES[self.stage]
        return dataclasses.replace(self, learning_rate=default.learning_rate * (64 / width if default.scaled else 1))


def usual_length(max_positions: int | None) -> int:
    """Tokens in a window where nobody says how many: LENGTH, or a model's context if that is shorter."""
    return min(LENGTH, max_positions or LENGTH)


def parse_plan(
    stages: str | None = None, steps: str | None = None, learning_rates: str | None = None
) -> tuple[StagePlan, ...]:
    """`transfer,distill`, `300,1500`, `1e-2,2e-3` -> a plan; one number is for all stages, none is their defaults.

    Without stages, the usual ones, which are optional.
    """
    names = [name.strip() for name in (USUAL_STAGES if stages is None else stages).split(",")]
    for name in names:
        choice("stage", name, tuple(STAGES))
    counts = _numbers("steps", steps, int, names) or [STAGES[name].steps for name in names]
    rates = _numbers("learning rates", learning_rates, float, names) or [None] * len(names)
    return tuple(StagePlan(*row, stages is None) for row in zip(names, counts, rates, strict=True))


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """All options of a run. Sizes are checked here, files when they are read."""

    model: Path
    output: Path
    data: tuple[Path, ...] = ()  # texts or token ids, of a decoder
    pairs: tuple[Path, ...] = ()  # sources and translations, of a translator
    valid: Path | None = None  # pairs that validations choose by; None: cut from `pairs`
    test: Path | None = None  # pairs that are measured before and after; None: cut from `pairs`
    plan: tuple[StagePlan, ...] = field(default_factory=parse_plan)
    teacher: Path | None = None  # default: the model that `model` was converted from, rebuilt from its weights
    separator: str = SEPARATOR  # a line of the text that ends a document
    valid_share: float = Shares.valid  # of the text, see `Shares`, or of the groups of pairs
    test_share: float = Shares.test
    length: int | None = None  # tokens that a window predicts; None: the rows' of a .npy, or `usual_length`
    batch: int = 16  # windows per step, over all processes
    pair_tokens: int = 4096  # per step at most: tokens of pairs, both sides with their padding
    hidden: float = 5.0  # weight of the blocks' outputs relative to KL in the distill stage
    cross_entropy: float = 0.0  # its weight relative to KL in the distill stage
    kl_top: int = 0  # KL over so many of the teacher's most likely tokens and a bucket of the rest; 0: over all tokens
    dropout: float = 0.0  # chance of each number of a part's output to be left out in distill and task
    label_smoothing: float = 0.0  # of the task stage's cross-entropy
    rounding: QuantizeConfig | None = None  # train a folded student through what this scheme rounds: the stage round
    start_positions: int | None = None  # windows start at one of so many, drawn at random; 0: at 0; None: as it suits
    carried_states: float = 0.0  # share of distill's steps, the last ones, whose windows begin with the state of text
    window_dropout: float = 0.0  # share of rows that a stage begins without a hybrid layer's window; it ends with none
    lora: bool = False  # distill and task train only adapters of the projections and the mixers' new parameters
    lora_rank: int = 8
    lora_alpha: float = 16.0  # alpha / rank scales an adapter's output
    warmup: float = 0.05  # share of a stage's steps
    optimizer: str = "adamw"
    weight_decay: float = 0.0
    clip: float = 1.0  # of the gradient's norm
    seed: int = 0
    eval_tokens: int | None = None  # of the test part, for each report; 0: all; None: see `report_tokens`
    precision: str = "auto"
    device: str = "auto"
    checkpoint_every: int = 200  # steps between two saved states
    validate_every: int = 200
    resume: bool = False
    log: Path | None = None  # default: beside the output
    force: bool = False  # replace a trained model at `output`

    def __post_init__(self) -> None:
        check_fields(self)
        if not sum(plan.steps for plan in self.plan):
            raise UserError("at least one step of one stage", "none", "give the number of steps")
        if self.length is not None:
            size("length", self.length, MAX_STEPS)
        for name in ("batch", "pair_tokens", "checkpoint_every", "validate_every", "lora_rank"):
            size(name, getattr(self, name), MAX_STEPS)
        if self.start_positions is not None:
            size("start_positions", self.start_positions, MAX_START, least=0)
        if self.eval_tokens is not None:
            size("eval_tokens", self.eval_tokens, MAX_STEPS, least=0)
        size("kl_top", self.kl_top, MAX_STEPS, least=0)
        size("seed", self.seed, MAX_STEPS, least=0)
        assert self.shares
        _between("clip", self.clip, 0, math.inf)
        _between("lora_alpha", self.lora_alpha, 0, math.inf)
        for name, high in (
            ("warmup", 1.0),
            ("carried_states", 1.0),
            ("window_dropout", 1.0),
            ("hidden", math.inf),
            ("cross_entropy", math.inf),
            ("weight_decay", math.inf),
        ):
            _between(name, getattr(self, name), 0, high, closed=True)
        if self.dropout:
            _between("dropout", self.dropout, 0, 1)
        if self.label_smoothing:
            _between("label_smoothing", self.label_smoothing, 0, 1)
        for name, known in (("precision", PRECISIONS), ("device", DEVICES), ("optimizer", OPTIMIZERS)):
            choice(name, getattr(self, name), known)
        self._check_rounding()
        check_needs(FINETUNE, vars(self), [each.name for each in dataclasses.fields(self) if self._changed(each)])
        if self.pairs and self.data:
            raise UserError("pairs, or a text", "both", "leave one out")

    def _changed(self, each: dataclasses.Field[Any]) -> bool:
        """Whether a field is not at its default."""
        return each.default is not dataclasses.MISSING and getattr(self, each.name) != each.default

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
        return Shares(self.valid_share, self.test_share)

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
        for path in self.data:
            existing_file(path, "a text or a .npy to train on")
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

    @property
    def reach(self) -> int:
        """The largest number of tokens that a window has, with what is read before it."""
        return 2 * self.window if self.carried_states else self.window

    def carries(self, plan: StagePlan, step: int) -> bool:
        """Whether the windows of this step of a stage begin with the state of text before them."""
        return STAGES[plan.stage].carries and step >= plan.steps - round(plan.steps * self.carried_states)

    def recipe(self) -> dict[str, Any]:
        """The options that determine the result, as plain data: for the provenance and the identity of a run."""
        names = (
            "length",
            "batch",
            "hidden",
            "cross_entropy",
            "kl_top",
            "start_positions",
            "carried_states",
            "window_dropout",
            "warmup",
            "optimizer",
            "weight_decay",
            "clip",
            "seed",
            "precision",
            "valid_share",
            "test_share",
            "validate_every",
            "eval_tokens",
        )
        plan = [
            {"stage": stage.stage, "steps": stage.steps, "learning_rate": stage.learning_rate}
            for stage in self.plan
            if stage.steps
        ]
        adapters = {"lora_rank": self.lora_rank, "lora_alpha": self.lora_alpha} if self.lora else {}
        pairs = {"pair_tokens": self.pair_tokens} if self.pairs else {}
        smoothing = {name: value for name in ("label_smoothing", "dropout") if (value := getattr(self, name))}
        rounding = {} if self.rounding is None else {"for": self.rounding.described()}
        return {
            "stages": plan,
            **{name: getattr(self, name) for name in names},
            **pairs,
            **smoothing,
            **adapters,
            **rounding,
        }


def _numbers(what: str, text: str | None, kind: type, names: list[str]) -> list[Any]:
    if text is None:
        return []
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{what} as numbers separated by commas", repr(text), f"correct the {what}") from None
    if len(numbers) == 1:
        numbers *= len(names)
    if len(numbers) != len(names):
        raise UserError(
            f"{len(names)} {what}, one for each of {', '.join(names)}, or one for all",
            repr(text),
            f"correct the {what}",
        )
    return numbers


def _between(name: str, value: Any, low: float, high: float, closed: bool = False) -> None:
    fine = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
    if not fine or not (low <= value <= high if closed else low < value < high):
        above = f"from {low:g}" if closed else f"above {low:g}"
        to = "" if high == math.inf else f" {'to' if closed else 'and below'} {high:g}"
        raise UserError(f"{name} to be a number {above}{to}", shown(value), f"correct {name}")
