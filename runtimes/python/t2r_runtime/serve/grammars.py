"""Answers of a given form: masks of the tokens that a JSON schema, a regular expression or a grammar allows.

The package llguidance compiles forms and computes masks; it is imported on first use.
"""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.errors import UserError, printable
from t2r_runtime.serve.errors import ApiError, wrong
from t2r_runtime.serve.fields import Fields, is_text, shown
from t2r_runtime.serve.schemas import JSON_OPTIONS
from t2r_runtime.text.tokenizer import Tokenizer

MAX_FORM = 1 << 16  # characters
STATES, FUEL = 20_000, 50_000  # of llguidance: at most 40 MB of memory, and some 4 ms for a mask
PACKAGE = "llguidance"
# llguidance's advice, an option that this server does not have: alternatives that may hold together would be accepted
ONE_OF = (
    "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf",
    "oneOf with alternatives that may hold together, which anyOf allows",
)
KINDS = {
    "json": "a JSON schema",
    "regex": "a regular expression",
    "choice": "a list of texts",
    "grammar": "a grammar in Lark or GBNF",
}
CALLS = "calls"  # kind of a form of t2r_runtime.serve.tools.grammar
OUTPUTS = {kind: kind for kind in KINDS}  # fields of vLLM's structured_outputs
# earlier fields of vLLM, and llama.cpp's
FIELDS = {f"guided_{kind}": kind for kind in KINDS} | {"json_schema": "json", "grammar": "grammar"}


class Form(NamedTuple):
    """What an answer has to be: its kind, of `KINDS` or `CALLS`, and its text; that of choices is a JSON list."""

    kind: str
    text: str
    param: str  # the field of the request


class Mask:
    """The tokens that may follow in one choice.

    Args:
        stop: tokens that end an answer.
        vocabulary: number of tokens.
    """

    def __init__(self, matcher: Any, stop: Sequence[int], vocabulary: int) -> None:
        self._matcher, self._stop, self._vocabulary = matcher, list(stop), vocabulary
        self._next: NDArray[np.bool_] | None = None  # once computed, until a token is added

    def copy(self) -> Mask:
        """The same mask for another choice."""
        made = Mask(self._matcher.deep_copy(), self._stop, self._vocabulary)
        made._next = self._next
        return made

    def allowed(self) -> NDArray[np.bool_]:
        """Whether each token may follow (vocabulary,); a stop token may if the answer is complete. Not to be changed.

        Raises:
            UserError: no token may, since the tokenizer cannot write what has to follow, or the form is too complex.
        """
        if self._next is None:
            self._next = self._computed()
        return self._next

    def _computed(self) -> NDArray[np.bool_]:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        found = np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(bool)
        found[self._stop] = self._matcher.is_accepting()
        if self._matcher.is_error() or not found.any():
            error = self._matcher.get_error()
            why = "none that may follow" if error.startswith("NoExtension") or not error else error
            raise UserError("tokens of this form", printable(why, 200), "request a simpler form", "sampling")
        return found

    def __call__(self, logits: NDArray[np.float32], tokens: Sequence[int]) -> NDArray[np.float32]:
        """The logits (vocabulary,), -inf for tokens that may not follow."""
        return np.where(self.allowed(), logits, np.float32(-np.inf))

    def take(self, token: int) -> bool:
        """Add a token to the answer; returns whether it is complete and nothing may follow."""
        self._matcher.consume_token(token)
        self._next = None
        return bool(self._matcher.is_stopped() and self._matcher.is_accepting())


class Grammars:
    """Compiles forms for the tokens of a model. Thread-safe.

    Args:
        vocabulary: number of tokens of the model.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._lock = threading.Lock()
        self._tokens: Any = None  # llguidance's, once prepared

    def mask(self, form: Form, stop: Sequence[int]) -> Mask:
        """Compile a form.

        Args:
            stop: tokens that end an answer.

        Raises:
            ApiError: the package is missing; the form is invalid, too complex, has an unsupported keyword, which is
                named, or cannot be written with the tokens of the model.
        """
        require_package(form.param)
        import llguidance

        self.prepare()
        limits = llguidance.LLParserLimits(max_lexer_states=STATES, step_lexer_fuel=FUEL, verbose_errors=False)
        try:
            grammar = _compiled(form)
        except ValueError as error:
            raise _invalid(form, error) from error
        mask = Mask(llguidance.LLMatcher(self._tokens, grammar, log_level=0, limits=limits), stop, self._vocabulary)
        try:
            mask.allowed()
        except UserError as error:
            raise _invalid(form, error.received) from error
        return mask

    def prepare(self) -> None:
        """Let llguidance look at every token, which takes a fraction of a second, if the package is installed."""
        with self._lock:
            if self._tokens is None and is_installed():
                self._tokens = self._prepared()

    def _prepared(self) -> Any:
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(_Tokens(self._tokenizer, self._vocabulary)))


class _Tokens:
    """A vocabulary in llguidance's form; one more token ends an answer, for all stop tokens."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        special = {*tokenizer.special_tokens, vocabulary}
        self._tokenizer, self.eos_token_id, self.special_token_ids = tokenizer, vocabulary, [*special]
        # llguidance never reads those of special tokens as text, but allows all that have the same
        self.tokens = [
            b"%d" % token if token in special else tokenizer.token_bytes(token) for token in range(vocabulary + 1)
        ]
        self._token = {text: token for token, text in enumerate(self.tokens) if token not in special}
        self._longest = max(map(len, self.tokens))

    def __call__(self, text: str | bytes) -> list[int]:
        """The tokens of a part of a text; to its first character without a token."""
        raw = text.encode() if isinstance(text, str) else text
        [ids] = self._tokenizer.encode_documents([str(raw, "utf-8")])
        for found in (ids, ids[1:]):  # some tokenizers add a space at the start of a text
            if b"".join(self.tokens[token] for token in found) == raw:
                return found
        found = []
        while raw:
            sizes = range(min(self._longest, len(raw)), 0, -1)
            size = next((size for size in sizes if raw[:size] in self._token), 0)
            if not size:
                break
            found.append(self._token[raw[:size]])
            raw = raw[size:]
        return found


def read_form(fields: Fields) -> Form | None:
    """Take the fields of OpenAI's API, of vLLM and of llama.cpp that request a form; None if none does.

    Raises:
        ApiError: an invalid field, or several.
    """
    outputs = fields.inner("structured_outputs")
    found = [_response_format(fields.inner("response_format"))]
    for table, names in ((fields, FIELDS), (outputs, OUTPUTS)):
        found += [_form(kind, table.take(name), table.name(name)) for name, kind in names.items()]
    outputs.end()
    forms = [form for form in found if form is not None]
    if len(forms) > 1:
        received = " and ".join(form.param for form in forms)
        raise wrong("one form of the answer", received, "leave the others out", forms[1].param)
    return forms[0] if forms else None


def is_installed() -> bool:
    """Whether the package llguidance is."""
    return importlib.util.find_spec(PACKAGE) is not None


def require_package(param: str) -> None:
    """Raise ApiError unless llguidance is installed."""
    if not is_installed():
        expected = f"the package {PACKAGE} on the server, for {param}"
        raise ApiError(400, f"expected {expected}; received none; pip install {PACKAGE} there", param, "not_installed")


def _response_format(fields: Fields) -> Form | None:
    kind = fields.text("type")
    if kind == "json_schema":
        inner = fields.inner("json_schema")
        form = _form("json", inner.take("schema"), inner.name("schema"))
        for name in ("name", "description", "strict"):
            inner.take(name)
        inner.end()
        if form is None:
            raise wrong("a schema in json_schema", "none", "pass one", inner.name("schema"))
    elif kind == "json_object":
        form = _form("json", fields.take("schema") or {"type": "object"}, fields.name("schema"))
    elif kind in (None, "text"):
        form = None
    else:
        param = fields.name("type")
        raise wrong(f"text, json_object or json_schema as {param}", shown(kind), "correct it", param)
    fields.end()
    return form


def _form(kind: str, value: object, param: str) -> Form | None:
    """Check the value of a field."""
    if value is None:
        return None
    try:
        text = value if isinstance(value, str) and kind != "choice" else json.dumps(value, ensure_ascii=False)
    except RecursionError:
        text = ""
    listed = isinstance(value, list) and value and all(map(is_text, value))
    good = {"json": isinstance(value, dict | str), "choice": listed}.get(kind, isinstance(value, str))
    if not good or not is_text(text, MAX_FORM):
        raise wrong(f"{KINDS[kind]}, of at most {MAX_FORM:,} characters, as {param}", shown(value), "correct it", param)
    return Form(kind, text, param)


def _compiled(form: Form) -> str:
    """The form in llguidance's own language. Raises ValueError for some of those that are invalid."""
    import llguidance

    package: Any = llguidance
    if form.kind == "json":
        return str(package.LLMatcher.grammar_from_json_schema(form.text, overrides=JSON_OPTIONS))
    if form.kind == CALLS:
        return str(package.LLMatcher.grammar_from_lark(form.text))
    return str(package.grammar_from(form.kind, form.text))


def _invalid(form: Form, why: object) -> ApiError:
    message = " ".join(str(why).split()).replace(*ONE_OF)
    expected = KINDS.get(form.kind, "functions with JSON schemas")
    return wrong(f"{expected} that this server supports", message, "change it", form.param)
