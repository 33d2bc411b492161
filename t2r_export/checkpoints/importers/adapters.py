"""LoRA (Hu et al. 2021, arXiv 2106.09685) of the package peft beside a model: merged, as W + scale B A.

transformers loads such a folder with its adapter. The tensors of adapter_model.safetensors name the modules that are
adapted; other tensors in it replace those of the model (modules_to_save, and trained biases).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from t2r_export.checkpoints.importers.base import Fields, Importer
from t2r_export.checkpoints.importers.files import ADAPTER, ADAPTER_WEIGHTS, LIMITS, PICKLED_ADAPTER, Folder
from t2r_export.checkpoints.importers.keys import words
from t2r_export.checkpoints.importers.sources import TRANSPOSED
from t2r_export.checkpoints.importers.stored import Delta, Stored, full_name, header
from t2r_export.checkpoints.weights import compare, listed, weight_shapes
from t2r_export.config.model import ModelConfig
from t2r_export.config.validation import finite
from t2r_runtime.errors import UserError, printable

MERGE = "save the merged model: what merge_and_unload() of peft returns"
PREFIX = "base_model.model."
LINEAR, EMBEDDING = ("lora_A.weight", "lora_B.weight"), ("lora_embedding_A", "lora_embedding_B")
PART = re.compile(r"(.{1,200})\.(lora_A\.weight|lora_B\.weight|lora_embedding_A|lora_embedding_B)")
BASE = ".base_layer."
INITIAL = (None, True, False, "gaussian", "orthogonal")  # others of peft change the model's own weights
READ = words("peft_type r lora_alpha use_rslora rank_pattern alpha_pattern target_modules modules_to_save bias")
# of training, of the writer, or what the names of the tensors say too; another key must be NEUTRAL
HARMLESS = words(
    """
    auto_mapping base_model_name_or_path corda_config eva_config exclude_modules fan_in_fan_out inference_mode
    layers_pattern layers_to_transform loftq_config lora_dropout lora_ga_config megatron_core peft_version
    qalora_group_size revision runtime_config task_type
    """
)
NEUTRAL: tuple[object, ...] = (None, False, [], {})
PATTERN = re.compile(r"[^(){}|?*+]*(?:[*+][^(){}|?*+]*){0,2}")  # work of a match: a name's length cubed


def with_adapter(
    files: Folder, importer: Importer, config: ModelConfig, fields: Fields, tensors: dict[str, Stored]
) -> tuple[ModelConfig, dict[str, Stored], list[str]]:
    """The model with the folder's adapter, if it has one, and notes.

    A tied head whose embedding or which itself is adapted is no longer tied, as in peft.

    Args:
        tensors: every tensor of the model by its full name, before pieces are joined.

    Raises:
        UserError: another kind of adapter, one that is not merged, or one that does not fit the model.
    """
    if not files.has(ADAPTER):
        return config, tensors, []
    lora = _Lora(files, importer)
    if importer.repeated(fields):
        raise UserError("a model without shared layers, for an adapter", "layers that share weights", MERGE)
    tensors = {**tensors, **lora.bases}
    touched = {*lora.pairs, *lora.replaced}
    tied = importer.copies(config)
    if touched & {*tied, *tied.values()}:
        tensors |= {head: tensors[of] for head, of in tied.items()}
        config = dataclasses.replace(config, tied_head=False)
    unknown = sorted(touched - tensors.keys())
    if unknown:
        raise UserError(f"an adapter of weights of this model in {files.folder}", listed(unknown), MERGE)
    compare({name: tensors[name].shape for name in lora.replaced}, lora.shapes(), str(files.folder))
    tensors |= lora.replaced
    sources = importer.sources(config, weight_shapes(config))
    turned = {name for name, source in sources.items() if source.transform is TRANSPOSED}
    for name, delta in lora.pairs.items():
        delta = dataclasses.replace(delta, turned=delta.turned != (name in turned))
        compare({name: tensors[name].shape}, {name: delta.shape}, str(files.folder))
        tensors[name] = dataclasses.replace(tensors[name], delta=delta)
    counts = [f"{len(lora.pairs)} weights"] + ([f"{len(lora.replaced)} replaced"] if lora.replaced else [])
    return config, tensors, [f"{ADAPTER_WEIGHTS} is merged: {', '.join(counts)}"]


class _Lora:
    """A LoRA adapter's tensors.

    Attributes:
        pairs: full names of weights -> what is added. replaced: full names -> what replaces a tensor of the model.
        bases: full names -> the model's own weights, which peft stores beside adapters of embeddings.
    """

    def __init__(self, files: Folder, importer: Importer) -> None:
        self.fields = Fields(files.object(ADAPTER, LIMITS[ADAPTER]), ADAPTER)
        self._check()
        self._patterns = {key: self._compiled(key) for key in ("rank_pattern", "alpha_pattern")}
        if not files.has(ADAPTER_WEIGHTS) and files.has(PICKLED_ADAPTER):
            do = "load the adapter with peft and save it again, as safetensors"
            raise UserError(f"{ADAPTER_WEIGHTS} in {files.folder}", f"{PICKLED_ADAPTER}, a pickle", do)
        self.pairs: dict[str, Delta] = {}
        self.replaced: dict[str, Stored] = {}
        self.bases: dict[str, Stored] = {}
        parts: dict[str, dict[str, Stored]] = {}
        for name, tensor in header(files.path(ADAPTER_WEIGHTS)).items():
            bare = name.removeprefix(PREFIX)
            part = PART.fullmatch(bare)
            if part is not None:
                parts.setdefault(part[1], {})[part[2]] = tensor
            elif BASE in bare and not bare.endswith(".bias"):
                self.bases[full_name(importer, bare.replace(BASE, "."))] = tensor
            else:
                self._require_saved(bare)
                self.replaced[full_name(importer, bare.replace(BASE, "."))] = tensor
        for module, pair in parts.items():
            self.pairs[full_name(importer, f"{module}.weight")] = self._delta(module, pair)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self.replaced.items()}

    def _check(self) -> None:
        fields = self.fields
        if fields.get("peft_type") != "LORA":
            raise fields.wrong("peft_type", '"LORA"', fields.get("peft_type"), MERGE)
        if fields.get("init_lora_weights") not in INITIAL:
            expected = "an initial value that leaves the model's weights as they are"
            raise fields.wrong("init_lora_weights", expected, fields.get("init_lora_weights"), MERGE)
        for key in sorted(fields.data.keys() - READ - HARMLESS - {"init_lora_weights"}):
            if fields.data[key] not in NEUTRAL:
                expected = "absent, null or false, since nothing else is merged"
                raise fields.wrong(printable(key, 80), expected, fields.data[key], MERGE)

    def _names(self, key: str) -> list[str]:
        found = self.fields.get(key, [])
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise self.fields.wrong(key, "a list of names of modules", found)
        return found

    def _require_saved(self, name: str) -> None:
        """Raise UserError unless the tensor is in a module of modules_to_save, or a trained bias."""
        bias = self.fields.get("bias", "none") != "none" and name.endswith(".bias")
        if not bias and not any(f".{module}." in f".{name}" for module in self._names("modules_to_save")):
            expected = f"the tensors of LoRA and of modules_to_save in {ADAPTER_WEIGHTS}"
            raise UserError(expected, printable(name), MERGE)

    def _delta(self, module: str, pair: Mapping[str, Stored]) -> Delta:
        """What is added to a module's weight."""
        targets = self.fields.get("target_modules")
        named = not isinstance(targets, list) or any(f".{module}".endswith(f".{name}") for name in targets)
        rank, alpha = (self._of(module, *keys) for keys in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha")))
        embedding = pair.keys() == set(EMBEDDING)
        inner, outer = (pair.get(name) for name in (EMBEDDING if embedding else LINEAR))
        if inner is None or outer is None or len(pair) != 2 or ".experts." in module or not named:
            expected = f"A and B of LoRA for modules of target_modules, none of them experts, in {ADAPTER_WEIGHTS}"
            raise UserError(expected, printable(f"{', '.join(sorted(pair))} of {module}"), MERGE)
        if not (inner.shape[:1] == outer.shape[1:2] == (rank,) and len(inner.shape) == len(outer.shape) == 2):
            received = printable(f"{inner.shape} and {outer.shape} of {module}")
            raise UserError(f"A and B of the rank {rank:g} of {ADAPTER}", received, MERGE)
        root = self.fields.flag("use_rslora", null=False)
        return Delta(outer, inner, alpha / (math.sqrt(rank) if root else rank), turned=embedding)

    def _of(self, module: str, patterns: str, default: str) -> float:
        """A module's number: that of the first pattern that matches its name, else the default."""
        matching = (own for pattern, own in self._patterns[patterns] if pattern.match(module))
        value = next(matching, self.fields.get(default, 8))
        if not finite(value) or (default == "r" and (not isinstance(value, int) or value < 1)):
            raise self.fields.wrong(default, "a finite number, for a rank a positive integer", value)
        return float(value)

    def _compiled(self, key: str) -> list[tuple[re.Pattern[str], Any]]:
        """Patterns of the names of modules, and their values."""
        found = []
        for pattern, value in self.fields.object(key).items():
            try:
                if not PATTERN.fullmatch(pattern):
                    raise re.error("too slow")
                found.append((re.compile(rf"(.*\.)?({pattern})$"), value))
            except re.error:
                expected = "names of modules, or patterns without groups and with at most two * or +"
                raise self.fields.wrong(key, expected, pattern, MERGE) from None
        return found
