"""Run a T2R step graph with ONNX Runtime: numpy and onnxruntime, and tokenizers for text; never torch.

    decoder = Decoder("model.onnx")
    tokenizer = Tokenizer.of(decoder.signature)
    ids = decoder.generate(tokenizer.encode("Once upon a time"), max_tokens=100, sampling=Sampling(temperature=0))
    print(tokenizer.decode(ids))

onnxruntime and tokenizers are imported when the first graph or tokenizer is opened, so that a program that needs only
the contract's names (the exporter, `--help`) does not pay for them.
"""

from t2r_runtime.contract.sampling import Sampler, Sampling
from t2r_runtime.contract.signature import CONTRACT_VERSION, Signature, StateSpec
from t2r_runtime.decode.batch import Batch
from t2r_runtime.decode.decoder import Decoder
from t2r_runtime.decode.prefix import PrefixCache
from t2r_runtime.errors import T2RError, UserError
from t2r_runtime.session.providers import PROVIDERS
from t2r_runtime.session.stepper import Stepper
from t2r_runtime.text.tokenizer import StreamingDetokenizer, Tokenizer
from t2r_runtime.translate.beam import Beam, Translation
from t2r_runtime.translate.translator import Translator

__version__ = "0.1.0"

__all__ = [
    "CONTRACT_VERSION",
    "PROVIDERS",
    "Batch",
    "Beam",
    "Decoder",
    "PrefixCache",
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
