"""Optimizers: AdamW, or Muon for matrices in blocks with AdamW for other parameters; learning rates; divergence.

A stage has one learning rate, that of matrices. Rates of the weights inside a mixer are relative to it (`own_rate`), so
that a step changes what they compute by the same share in models of all sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from t2r_export.config.stages import WIDTH
from t2r_export.training.muon import Muon
from t2r_export.training.sharding import share, whole

BETAS = (0.9, 0.95)
BLOCKS = ("blocks.", "encoder.blocks.")  # name prefixes of a model's blocks
INSIDE = ".inner."  # in names of a mixer's weights: feature maps, gates, merges
HEAD = 8  # size of the heads for which the learning rates are
TABLES = ("up", "down", "keys", "values")  # names of matrices of experts and of product keys

Optimizer = torch.optim.Optimizer


class Rate(NamedTuple):
    """The learning rate of some parameters, `factor` times that of the stage."""

    group: str
    factor: float


def own_rate(name: str, p: Tensor, width: float) -> Rate:
    """The rate of a parameter.

    Args:
        width: of the model if the stage's rate is scaled by WIDTH / width, else WIDTH.

    Adam changes each weight by the rate, so the rate of a matrix of n inputs is proportional to 1 / n, and that of a
    vector does not depend on n (Yang et al. 2022, arXiv 2203.03466, table 3). Maps of heads start at any size, which
    a teacher's q and k determine, so their rate is also proportional to their size: in a stage of rate 0.01 a step
    changes weights by about 0.08 / √d of their root mean square.
    """
    if INSIDE not in name:
        return Rate("", 1.0)
    wide = width / WIDTH
    if p.ndim == 3 and _last(name) == "weight":  # (heads, d, features)
        size = float(whole(p.detach().float().square().mean()).sqrt())
        return Rate(name, wide * size * HEAD * p.shape[1] ** -0.5)
    if _is_projection(name, p):
        return Rate(f"of {p.shape[1]}", wide * WIDTH / p.shape[1])
    return Rate("vectors", wide)


def make_optimizer(
    parameters: Mapping[str, nn.Parameter],
    rate: float,
    weight_decay: float,
    kind: str = "adamw",
    width: float = WIDTH,
    factors: Mapping[str, float] | None = None,
) -> Optimizer | CombinedOptimizer:
    """The optimizer for named parameters. Each of its groups has a `factor` on the rate of `set_rate`.

    Args:
        width: as in `own_rate`.
        factors: of a stage (`Stage.rate_factors`), on the own rates of some parameters.
        kind: `adamw`, or `muon`: Muon (Jordan et al. 2024) for projections in blocks, with updates scaled to the RMS of
            AdamW (Liu et al. 2025, arXiv 2502.16982, section 2.2) so that both share a learning rate.
        weight_decay: for matrices only, not for biases, norms and other vectors, one per head or not.
    """
    if kind == "adamw":
        return _adamw(parameters, rate, weight_decay, width, factors or {})
    matrices = {name: p for name, p in parameters.items() if _is_projection(name, p)}
    others = {name: p for name, p in parameters.items() if name not in matrices}
    parts: list[Optimizer] = [_adamw(others, rate, weight_decay, width, factors or {})] if others else []
    if matrices:
        parts.append(Muon(_groups(matrices, weight_decay, width, factors or {}), rate, weight_decay))
    optimizer = CombinedOptimizer(parts)
    set_rate(optimizer, rate)
    return optimizer


def set_rate(optimizer: Any, rate: float) -> None:
    """Set the learning rate of a stage."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]


def restart(optimizer: Any) -> None:
    """Clear the moments."""
    for part in getattr(optimizer, "parts", [optimizer]):
        for values in part.state.values():
            for value in values.values():
                value.zero_()


def _groups(
    parameters: Mapping[str, nn.Parameter], weight_decay: float, width: float, factors: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Groups of an optimizer: parameters of equal rates and weight decay."""
    found: dict[tuple[str, float, float], dict[str, Any]] = {}
    for name, p in parameters.items():
        rate, decay = own_rate(name, p, width), weight_decay if _is_matrix(name, p) else 0.0
        factor = factors.get(name, 1.0)
        new = {"params": [], "factor": rate.factor * factor, "weight_decay": decay}
        found.setdefault((rate.group, factor, decay), new)["params"].append(p)
    return list(found.values())


def _is_projection(name: str, p: Tensor) -> bool:
    """Whether a parameter is a matrix in a block that multiplies tokens; depthwise filters do not."""
    return p.ndim == 2 and name.startswith(BLOCKS) and "weight" in _last(name) and not name.endswith("conv.weight")


def _is_matrix(name: str, p: Tensor) -> bool:
    """Whether a parameter is a matrix, not vectors of several heads or directions."""
    return p.ndim >= 2 and ("weight" in _last(name) or _last(name) in TABLES)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _adamw(
    parameters: Mapping[str, nn.Parameter], rate: float, weight_decay: float, width: float, factors: Mapping[str, float]
) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019)."""
    groups = _groups(parameters, weight_decay, width, factors)
    # fused: the loop over tensors took as long as a small model's backward pass
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=BETAS, fused=True)
    set_rate(optimizer, rate)
    # allocated before the first step; later, moments would fragment the memory of freed activations
    for p in parameters.values():
        moments = {name: torch.zeros_like(p, requires_grad=False) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[p] = {"step": torch.zeros((), device=p.device), **moments}
    return optimizer


class CombinedOptimizer:
    """Several optimizers of disjoint parameters behind the interface of one."""

    found_inf: Tensor | None = None  # as torch's gradient scaler sets it: a true value skips the step

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = list(parts)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        if self.found_inf is None or not bool(self.found_inf):
            for part in self.parts:
                part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}


class DivergenceGuard:
    """Skips all steps from the first with a non-finite gradient, without waiting for the device.

    A fused optimizer skips steps while `found_inf` is set, as with torch's gradient scaler.
    """

    def __init__(self, optimizer: Any, device: torch.device) -> None:
        self.optimizer = optimizer
        self.broken = torch.zeros((), device=device)

    def __call__(self, norm: Tensor) -> None:
        """Check the gradient norm of the next optimizer step."""
        self.broken = torch.maximum(self.broken, (~norm.isfinite()).float())
        self.optimizer.found_inf = self.broken


def learning_rate(step: int, steps: int, peak: float, warmup: float) -> float:
    """Learning rate of a step, counted from 0: linear warm-up over the fraction `warmup`, then a half cosine to 0."""
    rising = max(1, round(steps * warmup))
    if step < rising:
        return peak * (step + 1) / rising
    return peak * 0.5 * (1 + math.cos(math.pi * (step + 1 - rising) / (steps + 1 - rising)))


class OtherGroups(Exception):
    """A saved state groups the same weights in another way."""


def restore(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Load a `state_dict` with unsharded tensors.

    Raises OtherGroups for the state of a version of t2r with other groups of learning rates, and exceptions of any kind
    for another model's state.
    """
    combined = isinstance(optimizer, CombinedOptimizer)
    parts, states = (optimizer.parts, state["parts"]) if combined else ([optimizer], [state])
    for part, saved in zip(parts, states, strict=True):
        sizes, before = ([len(group["params"]) for group in of] for of in (part.param_groups, saved["param_groups"]))
        if sizes != before and sum(sizes) == sum(before):
            raise OtherGroups
        parameters = [parameter for group in part.param_groups for parameter in group["params"]]
        values = {number: _of(parameters[number], of) for number, of in saved["state"].items()}
        part.load_state_dict({**saved, "state": values})


def _of(parameter: nn.Parameter, values: Mapping[str, Any]) -> dict[str, Any]:
    """Optimizer values of a parameter; this process's shards if the parameter is sharded."""
    for name, value in values.items():
        if isinstance(value, Tensor) and value.ndim and value.shape != parameter.shape:
            raise ValueError(f"{name} of the shape {tuple(value.shape)}, not {tuple(parameter.shape)}")
    sized = {name for name, value in values.items() if isinstance(value, Tensor) and value.ndim}
    return {name: share(value, parameter) if name in sized else value for name, value in values.items()}
