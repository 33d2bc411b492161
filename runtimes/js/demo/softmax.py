"""A softmax model of the same size as another, to run beside it: softmax.py MODEL OUT.onnx. Its new weights are random.

What a token costs does not depend on the weights, so nobody has to train it, and nobody reads what it would say.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import torch

from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.export import export
from t2r_export.model.transformer import Transformer


def main() -> None:
    loaded = checkpoint.load(sys.argv[1])
    torch.manual_seed(0)
    config = loaded.config
    model = Transformer(dataclasses.replace(config, layers=(SoftmaxConfig(),) * len(config.layers))).eval()
    export(checkpoint.made(model, None, {}), Path(sys.argv[2]), ExportConfig(prefill=True))


if __name__ == "__main__":
    main()
