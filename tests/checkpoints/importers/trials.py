"""Random configs of every family: a folder that is read means what it means to transformers, or a key is refused.

    python -m tests.checkpoints.importers.trials [--family NAME …] [--cases 25] [--seed S] [--case N]

A case draws a share of all keys that transformers' class of the family or its importer has, each a small random value,
makes transformers' model of them, and compares our eager model of its folder with its full forward; what transformers
has no class of, with a definition in NumPy.
Draws of which transformers makes no model, or one whose logits are not finite, are drawn again. `--case N` runs one
case and shows its keys. Exit 1 where a model was read and is another one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import math
import os
import random
import sys
import tempfile
import warnings
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2])]
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

import torch  # noqa: E402

from checkpoints.importers import fla_models, key_values  # noqa: E402
from checkpoints.importers.key_values import (  # noqa: E402
    LENGTH,
    NOT_CHANGED,
    classes,
    values,
    write,
)
from checkpoints.importers.peers import translation_error  # noqa: E402
from t2r_export.checkpoints import checkpoint  # noqa: E402
from t2r_export.checkpoints.importers import IMPORTERS as ALL  # noqa: E402
from t2r_runtime.errors import UserError  # noqa: E402

SHARE = 0.25  # of keys that are drawn
SHARE_OF_REFUSED = 0.02  # of keys that an importer never accepts; more would leave no case to compare
TOLERANCE = 1e-4  # relative to the largest logit; measured: 4e-6
TRIES = 200  # draws for one case
SAME, REFUSED, WRONG = "same", "refused", "wrong"
OUTCOMES = (SAME, REFUSED, WRONG)
# families of flash-linear-attention, which are compared with definitions in NumPy
DEFINED = {config["model_type"]: config for config in fla_models.CONFIGS.values()}
IMPORTERS = {**key_values.IMPORTERS, **{family: ALL[family] for family in DEFINED}}
SIZES = {**key_values.SIZES, **DEFINED}
OF_DEFINED = {
    "conv_size": [2, 3, 5],
    "expand_k": [0.5, 0.75, 1.0],
    "expand_v": [0.5, 1.25, 2.0],
    "head_dim": [4, 8, 12],
    "intermediate_size": [5, 30],
    "norm_eps": [0.1, 1e-6],
    "num_heads": [1, 2, 3, 6],
    "num_kv_heads": [None, 1, 3],
    "num_v_heads": [None, 3, 6, 12],
    "output_gate_activation": ["swish", "silu", "sigmoid"],
    # sizes that the definitions share
    **{key: [DEFINED["gla"][key]] for key in ("vocab_size", "hidden_size", "num_hidden_layers")},
}
TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional")


def drawn(family: str, draw: random.Random) -> dict[str, Any]:
    """The config.json of the family's small model with random changes."""
    keys, defaults = IMPORTERS[family].keys, {} if family in DEFINED else classes(family)
    known = keys.read.keys() | keys.aliases.keys() | defaults.keys()
    data = dict(SIZES[family])
    for key in sorted(known - NOT_CHANGED):
        if family in DEFINED and key in OF_DEFINED:
            data[key] = draw.choice([*OF_DEFINED[key], *([data[key]] if key in data else [])])
        elif draw.random() < (SHARE_OF_REFUSED if key in keys.refused else SHARE):
            data[key] = value(key, data.get(key, keys.read.get(key, defaults.get(key))), data, draw)
    return data


def value(key: str, base: Any, data: dict[str, Any], draw: random.Random) -> Any:
    """A random value of a key: one of those that single keys are tried with, or one near its usual value."""
    if key in ("rope_parameters", "rope_scaling"):
        kinds = ("full_attention", "sliding_attention")
        return {kind: rotary(draw) for kind in kinds} if draw.random() < 0.2 else rotary(draw)
    if key.endswith("layer_types") or key == "layers_block_type":
        names = sorted({name for one in [*values(key, base), base or []] for name in one if isinstance(name, str)})
        return [draw.choice(names) for _ in range(data.get("num_hidden_layers", 3))]
    near: list[Any] = []
    if isinstance(base, bool):
        near = [not base, base]
    elif isinstance(base, int):
        near = [draw.randint(1, 3), draw.randint(1, 12), base * draw.randint(1, 3), max(1, base // 2), base]
    elif isinstance(base, float) and math.isfinite(base):
        near = [base * draw.uniform(0.3, 2.0) or draw.random(), base]
    return draw.choice([*values(key, base), *near, *near])


def rotary(draw: random.Random) -> dict[str, Any]:
    """Random rotary parameters, some of which belong to another type."""
    factors = [draw.uniform(1.0, 4.0) for _ in range(draw.choice((2, 3, 4, 5)))]
    every = {
        "rope_theta": draw.uniform(3.0, 900.0),
        "factor": draw.uniform(1.0, 4.0),
        "partial_rotary_factor": draw.choice((0.25, 0.5, 1.0)),
        "original_max_position_embeddings": draw.randint(4, 30),
        "low_freq_factor": 1.0,
        "high_freq_factor": draw.uniform(2.0, 5.0),
        "beta_fast": draw.uniform(4.0, 32.0),
        "beta_slow": draw.uniform(0.2, 2.0),
        "attention_factor": draw.uniform(0.5, 1.5),
        "mscale": draw.uniform(0.5, 1.5),
        "mscale_all_dim": draw.uniform(0.5, 1.5),
        "truncate": draw.choice((True, False)),
        "short_factor": factors,
        "long_factor": draw.choice((factors, [2 * one for one in factors])),
    }
    wanted = draw.choice(TYPES)
    needed = {
        "linear": ("factor",),
        "dynamic": ("factor",),
        "yarn": ("factor", "original_max_position_embeddings"),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
    }.get(wanted, ())
    others = [key for key in every if draw.random() < 0.15]
    return {"rope_type": wanted, **{key: every[key] for key in (*needed, "rope_theta", *others)}}


def tried(family: str, seed: int, number: int) -> tuple[str, dict[str, Any], str]:
    """The outcome of a case, the config.json that it drew, and the error or its message."""
    draw = random.Random(zlib.crc32(f"{family} {seed} {number}".encode()))
    for _ in range(TRIES):
        data = drawn(family, draw)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                theirs = defined(folder, data) if family in DEFINED else write(folder, family, **data)
                expected = logits(theirs)
            except Exception:  # any error of transformers
                continue
            if not bool(torch.isfinite(expected).all()) or float(expected.std()) < 1e-3:
                continue
            try:
                error = difference(checkpoint.load(folder).model, theirs, expected)
            except UserError as refusal:
                return REFUSED, data, str(refusal)
            return (SAME if error < TOLERANCE else WRONG), data, f"{error:.1e}"
    raise AssertionError(f"transformers makes no model of {TRIES} draws of {family}")


def defined(folder: Path, data: dict[str, Any]) -> fla_models.Model:
    """Writes a folder with exactly this config.json and returns the definition's model."""
    model = fla_models.Model(data)
    model.save(folder)
    return model


def text() -> torch.Tensor:
    return torch.randint(0, 17, (2, LENGTH), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(theirs: Any) -> torch.Tensor:
    """Logits of transformers' full forward pass; a translator reads the same tokens as source and target."""
    given = {"decoder_input_ids": text()} if getattr(theirs.config, "is_encoder_decoder", False) else {}
    found: torch.Tensor = theirs(text(), use_cache=False, return_dict=True, **given).logits
    return found


@torch.no_grad()
def difference(ours: Any, theirs: Any, expected: torch.Tensor) -> float:
    """The largest difference of a logit, relative to the largest logit; of a translator the absolute error."""
    if ours.encoder is not None:
        return translation_error(ours, theirs, text(), torch.Generator().manual_seed(2))
    return float((ours(text()) - expected).abs().max() / expected.abs().max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=tuple(IMPORTERS), nargs="+", default=tuple(IMPORTERS))
    parser.add_argument("--cases", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    total: Counter[str] = Counter()
    print(f"{'family':20}" + "".join(f"{outcome:>9}" for outcome in OUTCOMES))
    for family in options.family:
        counted: Counter[str] = Counter()
        for number in range(options.cases) if options.case is None else [options.case]:
            with contextlib.redirect_stderr(io.StringIO()):
                outcome, data, said = tried(family, options.seed, number)
            counted[outcome] += 1
            if outcome == WRONG or options.case is not None:
                changed = {key: one for key, one in data.items() if SIZES[family].get(key, data) != one}
                print(f"{family} case {number} is {outcome}: {said}\n  {json.dumps(changed)}")
        print(f"{family:20}" + "".join(f"{counted[outcome]:9}" for outcome in OUTCOMES), flush=True)
        total += counted
    print(f"{'all':20}" + "".join(f"{total[outcome]:9}" for outcome in OUTCOMES))
    return int(total[WRONG] > 0)


if __name__ == "__main__":
    sys.exit(main())
