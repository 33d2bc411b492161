"""Assemble a model from named tensors, after comparing names, shapes and values.

The model is built on torch's `meta` device, compared with the given tensors, and takes them without a copy: no memory
is allocated for sizes that a config merely claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from t2r_export.config.model import ModelConfig
from t2r_export.model.draft_head import model_of
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError, printable

Shapes = Mapping[str, Sequence[int]]

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
HEAD, EMBEDDING = "head.weight", "embedding.weight"
LISTED = 5  # maximum names in a message


def outline(config: ModelConfig) -> Transformer:
    """The model on the meta device; only position frequencies, which are not weights, have values."""
    try:
        with torch.device("meta"), _NoInitialValues():
            return model_of(config)
    except RuntimeError as error:  # sizes beyond 64 bits
        raise UserError("sizes that fit into memory", str(error)[:200], "correct the sizes in the config") from error


class _NoInitialValues(TorchFunctionMode):
    """Skips torch.nn.init for meta tensors, for which torch would load its compiler: a second or two per start."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == torch.nn.init.__name__:
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a model with this config; a tied head is not listed."""
    shapes = {name: tuple(tensor.shape) for name, tensor in outline(config).state_dict().items()}
    if config.tied_head:
        del shapes[HEAD]
    return shapes


def compare(expected: Shapes, found: Shapes, where: str) -> None:
    """Check that `found` has the names and shapes of `expected`.

    Raises:
        UserError: lists missing and unexpected names, or, if the names agree, wrong shapes.
    """
    missing, unexpected = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or unexpected:
        raise UserError(
            f"in {where} the {len(expected)} tensors that its config describes",
            f"missing {listed(missing)}, unexpected {listed(unexpected)}",
            "check that config and weights belong together",
        )
    wrong = [name for name in expected if tuple(expected[name]) != tuple(found[name])]
    if wrong:
        raise UserError(
            f"in {where} the shapes that its config describes",
            listed([f"{name} {_shape(found[name])} instead of {_shape(expected[name])}" for name in sorted(wrong)]),
            "correct the sizes in the config, or find the weights that belong to it",
        )


def as_float32(name: str, tensor: Tensor) -> Tensor:
    """The tensor as dense float32, without a copy if possible.

    Raises:
        UserError: a dtype that is not floating-point, NaN, infinity, or a value beyond the range of float32.
    """
    if tensor.dtype not in FLOATS or tensor.layout != torch.strided:
        raise UserError(
            f"dense floating-point numbers in {name!r}",
            f"{tensor.layout} of {tensor.dtype}".replace("torch.", ""),
            "use the checkpoint from before it was quantized",
        )
    tensor = tensor.detach().to(torch.float32).contiguous()
    low, high = tensor.aminmax() if tensor.numel() else (torch.zeros(()), torch.zeros(()))
    if not torch.isfinite(low + high):  # aminmax propagates NaN
        kind = "NaN" if torch.isnan(tensor).any() else "an infinity"
        raise UserError(f"finite numbers in {name!r}", kind, "use a checkpoint from before its training diverged")
    return tensor


def assemble(config: ModelConfig, weights: Mapping[str, Tensor]) -> Transformer:
    """A model in eval mode that uses `weights` without a copy.

    Args:
        weights: tensors with the names and shapes of `weight_shapes(config)`; check those of a file with `compare`.

    Raises:
        UserError: states larger than a graph allows.
    """
    model = outline(config)
    weights = dict(weights)
    if config.tied_head:
        weights[HEAD] = weights[EMBEDDING]
    model.load_state_dict(weights, strict=True, assign=True)
    if config.tied_head:  # assign=True made two parameters of one tensor
        model.head.weight = model.embedding.weight
    model.state_spec()  # raises for states that are too large
    return model.eval()


def listed(names: Iterable[str], most: int = LISTED) -> str:
    """At most `most` names as printable text on one line, and the number of others."""
    names = list(names)
    shown = ", ".join(printable(name) for name in names[:most])
    more = len(names) - most
    return (shown or "none") + (f" and {more} more" if more > 0 else "")


def _shape(shape: Sequence[int]) -> str:
    return "×".join(str(n) for n in shape) or "a scalar"
