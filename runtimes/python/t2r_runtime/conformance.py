"""Conformance tests: python -m t2r_runtime.conformance models/tiny

Prints one line per case, then `N passed, N failed`; the exit code is 1 if any failed. runtimes/contract/conformance.md
defines the cases. This program is the example for other languages.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.contract.options import DECODER
from t2r_runtime.contract.sampling import Sampling
from t2r_runtime.decode.decoder import Decoder
from t2r_runtime.decode.speculation import LOOKUP
from t2r_runtime.errors import UserError, printable
from t2r_runtime.text.tokenizer import Tokenizer
from t2r_runtime.translate.beam import Beam
from t2r_runtime.translate.translator import Translator

Case = Mapping[str, Any]  # content of a case's file
Array = NDArray[Any]
SCORE = 1e-4  # tolerance of translation scores
OPTIONS = (*DECODER, "seed", "stop_tokens")


class Wrong(Exception):
    """A result differs from the expected one."""


def main(folder: str) -> int:
    """Run all cases of a folder, print a line for each, and return the exit code.

    Raises:
        UserError: the index is missing or malformed.
    """
    passed, failed = 0, 0
    for name, kind, file in _cases(Path(folder)):
        try:
            if kind not in KINDS:
                raise Wrong(f"an unknown kind of case, {kind}")
            KINDS[kind](json.loads((Path(folder) / file).read_text(encoding="utf-8")), Path(folder))
        except (Wrong, UserError, OSError, ValueError, LookupError, TypeError) as error:
            print(f"FAILED {name}: {printable(error)}")
            failed += 1
        else:
            print(f"ok {name}")
            passed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _cases(folder: Path) -> list[tuple[str, str, str]]:
    try:
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        return [(case["case"], case["kind"], case["file"]) for case in index["cases"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"golden files in {folder}", printable(error), "name the folder models/tiny", "file") from error


def array(entry: Mapping[str, Any]) -> Array:
    """Convert an array of the golden files."""
    return np.array(entry["data"]).reshape(entry["shape"])


def _trace(case: Case, folder: Path) -> None:
    decoder = Decoder(folder / case["graph"], threads=1)
    ids, logits = array(case["ids"]), array(case["logits"])
    for length in ((1,) * ids.shape[1], case.get("cuts", ())):
        if length:
            _set(decoder, case["start"])
            end = 0
            for tokens in length:
                end += tokens
                _near(decoder.prefill(ids[:, end - tokens : end]), logits[:, end - 1], case, f"logits after {end}")
            _states(decoder, case)
    if "top" in case:
        _top(decoder, case, ids)
    if "greedy" in case:
        decoder.reset(batch=1)
        wanted = case["greedy"]["tokens"]
        written = decoder.generate(case["greedy"]["prompt"], len(wanted), Sampling(temperature=0, stop_tokens=()))
        _same(written, wanted, "greedy tokens")


def _top(decoder: Decoder, case: Case, ids: Array) -> None:
    _set(decoder, case["start"])
    for t, column in enumerate(ids.T):
        logits, tokens = decoder.top_k(column[:, np.newaxis])
        _near(logits, array(case["top"]["logits"])[:, t], case, f"top_logits after {t + 1}")
        _same(tokens.tolist(), array(case["top"]["tokens"])[:, t].tolist(), f"top_tokens after {t + 1}")


def _sampling(case: Case, folder: Path) -> None:
    decoder = Decoder(folder / case["graph"], threads=1)
    for n, text in enumerate(case["texts"]):
        sampling = _options(text["options"])
        ways: list[tuple[str, Callable[[int], object] | None, object]]
        ways = [("alone", None, None), ("with a callback", lambda token: None, None)]
        for way, callback, draft in [*ways, *([("with drafts", None, LOOKUP)] if case.get("draft") else [])]:
            decoder.reset(batch=1)
            written = decoder.generate(text["prompt"], text["max_tokens"], sampling, callback, draft)
            _same(written, text["tokens"], f"tokens of text {n} {way}")
            _same(decoder.position, len(text["prompt"]) + len(written) - 1, f"tokens read of text {n}")


def _calls(case: Case, folder: Path) -> None:
    decoder = Decoder(folder / case["graph"], threads=1)
    for n, call in enumerate(case["operations"]):
        received: object = None
        try:
            name = next(name for name in CALLS if name in call)
            result = CALLS[name](decoder, call, folder)
        except UserError as error:
            received = error.kind
        _same(received, call.get("error"), f"error of call {n}")
        if "logits" in call:
            _near(result, array(call["logits"]), case, f"logits of call {n}")
        if "tokens" in call:
            _same(result, call["tokens"], f"tokens of call {n}")
        if "position" in call:
            _same(decoder.position, call["position"], f"position after call {n}")
    _states(decoder, case)


def _generate(decoder: Decoder, call: Mapping[str, Any], _: Path) -> list[int]:
    sampling = _options(call["options"])
    written: list[int] = []

    def goes_on(token: int) -> bool:
        written.append(token)
        return len(written) < int(call["ends_at"])

    callback = goes_on if "ends_at" in call else None
    return decoder.generate(call["generate"], call["max_tokens"], sampling, callback)


def _options(given: Mapping[str, Any]) -> Sampling:
    return Sampling(**{key: given[key] for key in OPTIONS if key in given})


CALLS: dict[str, Callable[[Decoder, Mapping[str, Any], Path], Any]] = {
    "reset": lambda decoder, call, _: decoder.reset(call["reset"]),
    "adapt": lambda decoder, call, _: decoder.adapt(call["adapt"]),
    "reorder": lambda decoder, call, _: decoder.reorder(call["reorder"]),
    "step": lambda decoder, call, _: decoder.step(call["step"]),
    "prefill": lambda decoder, call, _: decoder.prefill(call["prefill"]),
    "top_k": lambda decoder, call, _: decoder.top_k(call["top_k"]),
    "load": lambda decoder, call, folder: decoder.load_state(folder / call["load"]),
    "generate": _generate,
}


def _snapshot(case: Case, folder: Path) -> None:
    decoder = Decoder(folder / case["graph"], threads=1)
    _same(decoder.load_state(folder / case["snapshot"]), case["token"], "the token")
    _same(decoder.position, case["position"], "the position")
    states = decoder.state()
    _same(sorted(states), sorted(case["states"]), "names of states")
    for name, value in states.items():
        _same(value.tolist(), array(case["states"][name]).astype(value.dtype).tolist(), f"numbers of {name}")
    with tempfile.TemporaryDirectory() as place:
        decoder.save_state(Path(place) / "again", case["token"])
        if (Path(place) / "again").read_bytes() != (folder / case["snapshot"]).read_bytes():
            raise Wrong("saved again it has other bytes")
    for t, column in enumerate(array(case["ids"]).T):
        _near(decoder.step(column), array(case["logits"])[:, t], case, f"logits after {t + 1}")


def _translator(case: Case, folder: Path) -> None:
    translator = Translator(folder / case["graph"], threads=1)
    encoded, bound = translator.encode(case["sources"]), case["tolerance"]["state_relative_to_its_largest"]
    for name, entry in case["states"].items():
        wanted = array(entry)
        _same(list(encoded[name].shape), list(wanted.shape), f"shape of {name}")
        if not np.abs(encoded[name] - wanted).max() <= bound * np.abs(wanted).max():
            raise Wrong(f"{name} is off")
    for n, search in enumerate(case["searches"]):
        beam = Beam(**search["beam"])
        (found,), wanted = translator.translate([search["source"]], beam), search["translations"]
        _same([f.tokens for f in found], [w["tokens"] for w in wanted], f"translations {n}")
        if max(abs(f.score - w["score"]) for f, w in zip(found, wanted, strict=True)) > SCORE:
            raise Wrong(f"scores of translations {n} are {[f.score for f in found]}")


def _bad(case: Case, folder: Path) -> None:
    for file in case["files"]:
        try:
            _do(file, folder)
        except UserError as error:
            _same(error.kind, file["kind"], f"kind of error of {file['file']}")
        else:
            raise Wrong(f"no error of {file['file']}")


def _do(file: Mapping[str, Any], folder: Path) -> None:
    call, path = file["call"], folder / file["file"]
    if call == "translate":
        list(Translator(path, threads=1).translate([file["source"]], Beam(**file["beam"])))
        return
    decoder = Decoder(folder / file["graph"] if call == "snapshot" else path, threads=1)
    if call == "tokenizer":
        Tokenizer.of(decoder.signature)
    elif call == "encode":
        Tokenizer.of(decoder.signature).encode(file["text"])
    elif call == "snapshot":
        decoder.load_state(path)
    elif call == "generate":
        decoder.generate([1], 3)
    elif call == "prefill":
        decoder.prefill(file["tokens"])


def _tokenizer(case: Case, folder: Path) -> None:
    tokenizer = Tokenizer.of(Decoder(folder / case["graph"], threads=1).signature)
    for text, tokens, decoded in case["texts"]:
        _same(tokenizer.encode(text), tokens, f"tokens of {text!r}")
        _same(tokenizer.decode(tokens), decoded, f"text of {tokens}")


def _stream(case: Case, folder: Path) -> None:
    tokenizer = Tokenizer.of(Decoder(folder / case["graph"], threads=1).signature)
    for n, text in enumerate(case["texts"]):
        stream = tokenizer.stream(text["prompt"])
        _same([stream.feed(token) for token in text["tokens"]], text["pieces"], f"pieces of text {n}")
        _same(stream.end(), text["end"], f"end of text {n}")


def _set(decoder: Decoder, states: Mapping[str, Any]) -> None:
    dtypes = {spec.name: spec.dtype for spec in decoder.signature.states}
    decoder.set_state({name: array(value).astype(dtypes.get(name, "float32")) for name, value in states.items()})


def _states(decoder: Decoder, case: Case) -> None:
    found, bound = decoder.state(), case["tolerance"]["state_relative_to_its_largest"]
    _same(sorted(found), sorted(case["end"]), "names of states")
    for name, value in found.items():
        wanted = array(case["end"][name])
        _same(list(value.shape), list(wanted.shape), f"shape of {name}")
        error = float(np.abs(value - wanted).max())
        if not error <= bound * float(np.abs(wanted).max()):
            raise Wrong(f"{name} is off by {error:.3g} at the end")


def _near(received: Array, wanted: Array, case: Case, what: str) -> None:
    error = float(np.abs(received - wanted).max())
    if not error <= case["tolerance"]["logits_absolute"]:
        raise Wrong(f"{what} are off by {error:.3g}")


def _same(received: object, wanted: object, what: str) -> None:
    if received != wanted:
        raise Wrong(f"{what}: {printable(received, 100)} instead of {printable(wanted, 100)}")


KINDS: dict[str, Callable[[Case, Path], None]] = {
    "trace": _trace,
    "sampling": _sampling,
    "calls": _calls,
    "snapshot": _snapshot,
    "tokenizer": _tokenizer,
    "stream": _stream,
    "translator": _translator,
    "bad": _bad,
}

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m t2r_runtime.conformance FOLDER")
    try:
        sys.exit(main(sys.argv[1]))
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
