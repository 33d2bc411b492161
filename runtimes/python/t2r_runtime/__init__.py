"""Runs T2R step graphs with ONNX Runtime; requires numpy, onnxruntime and tokenizers.

    decoder = Decoder("model.onnx")
    tokenizer = Tokenizer.of(decoder.signature)
    ids = decoder.generate(tokenizer.encode("Once upon a time"), max_tokens=100, sampling=Sampling(temperature=0))
    print(tokenizer.decode(ids))

Names are imported on first use, and onnxruntime and tokenizers when the first graph or tokenizer is opened.
"""

from __future__ import annotations

import importlib
import os

TYPE_CHECKING = False  # importing typing is slow, and Ctrl-C during it would print a traceback
if TYPE_CHECKING:
    from typing import Any

    from t2r_runtime.contract.sampling import Sampler, Sampling
    from t2r_runtime.contract.signature import CONTRACT_VERSION, Signature
    from t2r_runtime.contract.state_spec import StateSpec
    from t2r_runtime.decode.batch import Batch
    from t2r_runtime.decode.decoder import Decoder
    from t2r_runtime.decode.neighbors import Datastore, Retrieving
    from t2r_runtime.decode.prefix import PrefixCache
    from t2r_runtime.errors import T2RError, UserError
    from t2r_runtime.session.providers import PROVIDERS
    from t2r_runtime.session.stepper import Stepper
    from t2r_runtime.text.tokenizer import StreamingDetokenizer, Tokenizer
    from t2r_runtime.translate.beam import Beam, Translation
    from t2r_runtime.translate.translator import Translator

# ONNX Runtime's own packages of 1.29 and later send events to Microsoft unless this is set before they are imported
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"

__all__ = [
    "CONTRACT_VERSION",
    "PROVIDERS",
    "Batch",
    "Beam",
    "Datastore",
    "Decoder",
    "PrefixCache",
    "Retrieving",
    "Sampler",
    "Sampling",
    "Signature",
    "StateSpec",
    "Stepper",
    "StreamingDetokenizer",
    "T2RError",
    "Tokenizer",
    "Translation",
    "Translator",
    "UserError",
]
_HOMES = {
    "contract.sampling": ("Sampler", "Sampling"),
    "contract.signature": ("CONTRACT_VERSION", "Signature"),
    "contract.state_spec": ("StateSpec",),
    "decode.batch": ("Batch",),
    "decode.decoder": ("Decoder",),
    "decode.neighbors": ("Datastore", "Retrieving"),
    "decode.prefix": ("PrefixCache",),
    "errors": ("T2RError", "UserError"),
    "session.providers": ("PROVIDERS",),
    "session.stepper": ("Stepper",),
    "text.tokenizer": ("StreamingDetokenizer", "Tokenizer"),
    "translate.beam": ("Beam", "Translation"),
    "translate.translator": ("Translator",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
