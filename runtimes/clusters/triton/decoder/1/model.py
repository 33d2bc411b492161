"""A graph of t2r-export in Triton's Python backend: a Decoder for each sequence, of any kind of states.

A request carries tokens of one sequence that have not been read, (1, T), and gets the logits behind them, of shape
(1, vocabulary).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from t2r_runtime import Decoder, UserError


class TritonPythonModel:
    """What Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open `graph.onnx` beside this file."""
        config = json.loads(args["model_config"])
        threads = int(config["parameters"]["threads"]["string_value"])
        self._most = int(config["sequence_batching"]["oldest"]["max_candidate_sequences"])
        self._decoder = Decoder(Path(__file__).with_name("graph.onnx"), threads=threads)
        self._texts: OrderedDict[int, Decoder] = OrderedDict()  # by sequence, the newest last

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        sequence, flags = request.correlation_id(), request.flags()
        # by DLPack: the stub of 24.10 reads arrays of NumPy 2 as empty
        ids = np.from_dlpack(triton.get_input_tensor_by_name(request, "input_ids"))
        if flags & triton.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self._texts[sequence] = self._decoder.fork()
            while len(self._texts) > self._most:  # Triton does not say when it ended a silent one
                self._texts.popitem(last=False)
        try:
            logits = self._text(sequence).prefill(ids)
        except UserError as error:
            return triton.InferenceResponse(error=triton.TritonError(str(error)))
        if flags & triton.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
            del self._texts[sequence]
        return triton.InferenceResponse([triton.Tensor.from_dlpack("logits", logits)])

    def _text(self, sequence: int) -> Decoder:
        if sequence not in self._texts:
            raise UserError("a sequence that began here", f"{sequence}, another", "begin it with sequence_start")
        self._texts.move_to_end(sequence)
        return self._texts[sequence]
