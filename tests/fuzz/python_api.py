"""Calls of the public Python API with arbitrary arguments: t2r_runtime's classes and t2r_export.api.

The calls are read from the classes themselves, so new methods and parameters are included. Each argument matches its
name or is arbitrary: a call must return or raise a T2RError.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import t2r_export
import t2r_runtime
from fuzz.kinds import graph_folder, kind
from fuzz.mutations import VALUES
from fuzz.runner import SilentlyWrong
from fuzz.translators import GRAPH
from t2r_export.config.export import ExportConfig
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_runtime import Decoder, PrefixCache, Sampler, Sampling, StateSpec, Tokenizer, Translator
from t2r_runtime.errors import T2RError, shown

ITEMS = 20  # items read from an iterator
LONG = range(100, 1 << 62)  # valid numbers that make calls slow
ODD = [
    *VALUES,
    *(np.zeros(shape, dtype) for shape in ((), 0, 1, 3, (2, 2), (1, 1, 1)) for dtype in ("f4", "i8", "u1", "O", "?")),
    *(np.array(text) for text in ("x", b"x", "2020-01-01")),
    *(np.array(each) for each in (1j, [1, 1 << 63], [1.5], [-1], [np.nan], [np.inf], np.datetime64("2020"))),
    *(each(1) for each in (np.int64, np.uint8, np.float32, np.bool_)),
    *(torch.zeros(3), torch.tensor(1), torch.zeros(2, requires_grad=True)),
    *(object(), b"x", bytearray(b"x"), (1,), range(3), {1, 2}, 1j, 1 << 64, -(1 << 63), 10**5000, iter(())),
    *(Path("x"), Path()),
    *(print, int, Exception, Decoder, ..., NotImplemented, [[1], [1, 2]], ["x"], [1.5], [1 << 64], [True], [object()]),
    *({"S.0": 1}, {1: 2}, {"role": 3}, [{"role": "user"}], [{"role": "user", "content": 1}], "\u00e9", "a\x00b"),
]  # fmt: skip
KINDS_OF_RUNTIME = [each for name in t2r_runtime.__all__ if inspect.isclass(each := getattr(t2r_runtime, name))]
DATA = ("Stepper", "Signature", "T2RError", "UserError", "Translation")  # not constructed by callers
CONFIGS = (LinearConfig, ExportConfig, FinetuneConfig, QuantizeConfig)


class Calls:
    """Random calls in a folder of intact files."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.decoder = Decoder("graph.onnx", threads=1)
        self.translator = Translator(GRAPH, threads=1)
        self.tokenizer = Tokenizer.of(self.decoder.signature)
        self.wholes: dict[type, Callable[[], Any]] = {
            t2r_runtime.Batch: lambda: t2r_runtime.Batch(self.decoder),
            t2r_runtime.Beam: t2r_runtime.Beam,
            Decoder: self.decoder.fork,
            PrefixCache: lambda: PrefixCache(self.decoder.fork(), block=2, folder="states"),
            Sampler: lambda: Sampler(Sampling(seed=1)),
            Sampling: Sampling,
            t2r_runtime.Signature: lambda: self.chance.choice((self.decoder, self.translator)).signature,
            StateSpec: lambda: self.chance.choice(self.decoder.signature.states),
            t2r_runtime.StreamingDetokenizer: lambda: self.tokenizer.stream([1, 2]),
            Tokenizer: lambda: self.tokenizer,
            t2r_runtime.Translation: lambda: t2r_runtime.Translation([1], 0.5),
            Translator: lambda: self.translator,
        }

    def fit(self) -> dict[str, list[Any]]:
        """Suitable values of each parameter, by name."""
        states, choose = self.decoder.state(), self.chance.choice
        return {
            "path": ["graph.onnx", GRAPH, "saved.state", "new.state"],
            "graph": ["graph.onnx", "translator.onnx"],
            "output": ["new.pt"],
            "data": ["text.txt", ["text.txt", "ids.npy"]],
            "check": ["text.txt"],
            "teacher": ["model.pt"],
            "folder": ["states"],
            "provider": ["cpu"],
            "quantize": ["w8", QuantizeConfig(scheme="w4", block_size=16)],
            "mixer": ["linear", "window", "hybrid", "lstm"],
            "layers": ["all", "0", "every:2"],
            "stages": ["transfer", "transfer,distill"],
            "ids": [[1, 2, 3], [1], [[1], [2]], 5],
            "sources": [[[1, 2], [3]]],
            "source": [[1, 2]],
            "rows": [[0], [0, 0]],
            "parts": [[(self.decoder, [0])]],
            "states": [states, {**states, choose(sorted(states)): choose(ODD)}],
            "sampling": [Sampling(0), Sampling(seed=1, stop_tokens=choose(ODD), no_repeat_ngram=2)],
            "beam": [t2r_runtime.Beam(2, max_tokens=3)],
            "draft": ["lookup", self.decoder.fork()],
            "decoder": [self.decoder],
            "signature": [self.decoder.signature, self.translator.signature],
            "tokenizer": [self.tokenizer, self.decoder.signature.tokenizer],
            "logits": [np.ones(7, np.float32), np.ones(7)],
            "text": ["once upon", [1, 2]],
            "messages": [[{"role": "user", "content": "x"}]],
            "config": [LinearConfig(3)],
            "callback": [lambda _: None],
            "on_progress": [lambda _: None],
        }  # fmt: skip

    def any_of(self) -> Any:
        value = self.chance.choice(ODD)
        match self.chance.randrange(12):
            case 0:
                return [value, self.chance.choice(ODD)]
            case 1:
                return {"S.0": value}
        return value

    def argument(self, parameter: inspect.Parameter) -> Any:
        suited = self.fit().get(parameter.name)
        if suited is not None and self.chance.randrange(3):
            return self.chance.choice(suited)
        if suited is None and self.chance.randrange(3) == 0:
            return self.chance.choice((1, 2, True, None))
        value = self.any_of()
        return 3 if type(value) is int and value in LONG else value

    def call(self, function: Callable[..., Any], config: type | None = None) -> None:
        """One call with all required and some optional arguments.

        Args:
            config: class whose fields are further options.
        """
        named = {}
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD and config is not None:
                fields = [inspect.Parameter(f.name, parameter.kind) for f in dataclasses.fields(config)]
                chosen = self.chance.sample(fields, self.chance.randrange(3))
                named |= {each.name: self.argument(each) for each in chosen if each.name not in named}
            elif parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue  # `*args` and `**kwargs` are not options
            elif parameter.default is parameter.empty or self.chance.randrange(3) == 0:
                named[parameter.name] = self.argument(parameter)
        if config is FinetuneConfig:
            named.setdefault("steps", "1,1")  # the default takes hours
        print(getattr(function, "__qualname__", function), {name: shown(value) for name, value in named.items()})
        found = function(**named)
        if isinstance(found, Iterator):
            list(itertools.islice(found, ITEMS))


def _answered(case: Callable[[], None]) -> str:
    try:
        case()
    except T2RError as error:
        print(error)
        if not str(error).isprintable() or len(str(error)) > 2000:
            raise SilentlyWrong("an error of more than a line") from error
        return "refused"
    return "accepted"


def _folder(base: Path, here: Path) -> None:
    """Copy all inputs of calls into a nested folder, so that ../.. stays inside."""
    inside = here / "one" / "two"
    inside.mkdir(parents=True)
    graph_folder(base, inside)
    for file in (*base.glob("translator.*"), *(base / name for name in ("saved.state", "text.txt", "ids.npy"))):
        shutil.copy(file, inside)
    os.chdir(inside)


@kind
def runtime_api(base: Path, here: Path, chance: random.Random) -> str:
    """Construct a class from arbitrary arguments, or make one to four calls on an instance."""
    _folder(base, here)
    calls = Calls(chance)

    def case() -> None:
        cls = chance.choice(KINDS_OF_RUNTIME)
        if cls.__name__ not in DATA and chance.randrange(4) == 0:
            calls.call(cls)
        if cls not in calls.wholes:
            return
        whole = calls.wholes[cls]()
        names = [name for name in dir(whole) if not name.startswith("_")]
        for name in chance.choices(names, k=chance.randint(1, 4)):
            print(cls.__name__, name)
            if callable(method := getattr(whole, name)) and name not in ("in_use", "count", "index"):
                calls.call(method)

    return _answered(case)


@kind
def toolchain_api(base: Path, here: Path, chance: random.Random) -> str:
    """A call of a model's method, with options of its config."""
    _folder(base, here)
    calls = Calls(chance)
    options = {"convert": LinearConfig, "finetune": FinetuneConfig, "export": ExportConfig}

    def case() -> None:
        if chance.randrange(6) == 0:
            calls.call(chance.choice((t2r_export.load, t2r_export.Model.new, *CONFIGS)))
        model = t2r_export.load("model.pt")
        names = ["config", "save", "convert", "finetune", "export", "verify"]
        name = chance.choice(names)
        if callable(method := getattr(model, name)):
            calls.call(method, options.get(name))

    return _answered(case)
