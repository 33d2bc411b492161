"""The base of the parts that a layer is made of. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.norm import NormConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.tagged import Kind
from t2r_export.config.validation import flag, number


@dataclass(frozen=True, kw_only=True)
class PartConfig(Kind):
    """One sublayer: x + norm_after(f(norm(x))) · multiplier, then norm_sum; without a residual the second term alone.

    A part that stands `beside` the one before it sees what that one sees, and both are added to it; without a norm of
    its own it sees that part's normed input.

    A kind is a config with its own sizes, a class in t2r_export.model.parts, and a line in `parts.PARTS`.
    """

    TABLE: ClassVar[str] = "t2r_export.config.parts:PARTS"
    mixes: ClassVar[bool] = True  # tokens see each other: the part has states, or reads a source
    reads_source: ClassVar[bool] = False  # of a translator: it has a `read`
    group: ClassVar[str] = "layers"  # by which reports list what became of the part

    norm: NormConfig | None = None  # in front of the part
    norm_after: NormConfig | None = None  # of what it gives
    norm_sum: NormConfig | None = None  # behind the sum
    multiplier: float = 1.0  # of what it gives
    residual: bool = True
    beside: bool = False  # the part before it

    def __post_init__(self) -> None:
        number("multiplier", self.multiplier)
        flag("residual", self.residual)
        flag("beside", self.beside)

    @property
    def label(self) -> str:
        """The kind that a person chooses: of attention that of its inside."""
        return self.kind

    @property
    def grows(self) -> bool:
        """Whether the part keeps more with every token."""
        return False

    @property
    def folded(self) -> bool:
        """Whether the exported form of the weights has taken the place of the trained one."""
        return False

    @property
    def borrows(self) -> bool:
        """Whether the part takes the attention weights of the layer below."""
        return False

    @property
    def lends(self) -> bool:
        """Whether the layer above can have this part's attention weights."""
        return False

    @property
    def cache_size(self) -> int:
        """Numbers a token that a key/value cache in the part's place would hold; 0 where nothing is cached."""
        return 0

    def rotations(self) -> list[tuple[RotaryConfig, int]]:
        """Rotations that the part asks the model for, each with the number of dimensions of a head that rotate."""
        return []

    def state_summary(self) -> str:
        """What the part carries from one token to the next, for a person."""
        return "nothing"
