"""Files that lie or are damaged: JSON, tokenizers, archives of arrays, protobuf, companions. Each is one line."""

from __future__ import annotations

import io
import json
import random
import shutil
import struct
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from cpp_build import GOLDEN
from made_tokenizers import bpe
from t2r_library import Decoder, Failed, Library, Tokenizer

from t2r_runtime.text.tokenizer_parts import unsupported

# ---- JSON ----

BAD_JSON = {
    "true x": "no JSON|something|without its end",
    "tru": "no JSON",
    "nul": "no JSON",
    "01": "no JSON",
    "-": "no JSON",
    "1.": "a number without its end",
    "1.5e": "a number without its end",
    "1E+": "a number without its end",
    '"\\x"': "a bad escape",
    '"\\u12G4"': "a bad escape",
    '"\\u12/4"': "a bad escape",
    '"\\ud800"': "half a surrogate pair",
    '"\\udc00\\ud800"': "half a surrogate pair",
    '"\\ud800\\u0041"': "half a surrogate pair",
    '"\\ud800\\uffff"': "half a surrogate pair",
    '"\\ud800\\n"': "half a surrogate pair",
    '"\\ud800\\': "half a surrogate pair|a bad escape",
    '"a': "a string without its end",
    '"a\\': "a bad escape|without its end",
    '"a\nb"': "a control character in a string",
    "[1": "an array without its end",
    '{"a" 1}': "no colon",
    "{1: 2}": "no key",
    '{"a": 1': "an object without its end",
    "": "no JSON",
}


@pytest.mark.parametrize("text", BAD_JSON)
def test_json_that_is_none(library: Library, text: str) -> None:
    """As the last value of an otherwise good tokenizer."""
    whole = json.dumps(bpe())[:-1] + ', "new": ' + text
    with pytest.raises(Failed, match=f"^tokenizer: expected .*({BAD_JSON[text]})"):
        Tokenizer(library, whole)
    if not text.startswith('"a') and "\\ud800\\" != text[1:]:
        with pytest.raises(Failed, match="^tokenizer: expected "):
            Tokenizer(library, whole + "}")


@pytest.mark.parametrize(
    "text", ["-0", "1e5", "2.5E-3", "0.5e+2", '"\\u00e9\\uD83D\\uDE00\\/\\b"', " [ ]\r", "\t{ }\n"]
)
def test_json_that_is_some(library: Library, text: str) -> None:
    Tokenizer(library, json.dumps(bpe())[:-1] + f', "new": {text}}}').close()


def test_json_around_the_object(library: Library) -> None:
    whole = json.dumps(bpe())
    Tokenizer(library, f"\r\n\t {whole} \n").close()
    for other in (whole + "x", whole.encode() + b"\xff", whole.encode().replace(b'"BPE"', b'"BP\xff"')):
        with pytest.raises(Failed, match="^tokenizer: expected "):
            Tokenizer(library, other)


# ---- Tokenizers ----


def with_model(**changes: Any) -> dict[str, Any]:
    return {"model": bpe()["model"] | changes}


def unigram(vocab: list[Any], **more: Any) -> dict[str, Any]:
    return {"model": {"type": "Unigram", "vocab": vocab, **more}}


def charsmap(content: str) -> dict[str, Any]:
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": content}}


def metaspace(mark: str) -> dict[str, Any]:
    return {"pre_tokenizer": {"type": "Metaspace", "replacement": mark, "prepend_scheme": "always", "split": True}}


BAD_PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "merges of one text": (with_model(merges=["ab"]), "merges of two texts"),
    "merges of three texts": (with_model(merges=["a b c"]), "merges of two texts"),
    "merges of three members": (with_model(merges=[["a", "b", "c"]]), "merges of two texts"),
    "merges of unknown texts": (with_model(merges=[["\ue000", "a"]]), ""),
    "an unknown text to merge with": (with_model(merges=[["a", "\ue000"]]), ""),
    "a prefix of words": (with_model(continuing_subword_prefix="##"), "continuing_subword_prefix"),
    "an end of words": (with_model(end_of_word_suffix="</w>"), "end_of_word_suffix"),
    "an unknown unk_token": (with_model(unk_token="\ue000"), "unk_token"),
    "ids past all": (with_model(vocab=bpe()["model"]["vocab"] | {"\ue000": 1 << 24}), "16,777,215"),
    "one id for two": (with_model(vocab=bpe()["model"]["vocab"] | {"\ue000": 5}), "different"),
    "no type": ({"model": {"vocab": {"a": 0}}}, "without a type"),
    "pieces of three members": (unigram([["a", -1, 2]]), "pieces"),
    "pieces without a score": (unigram([["a"]]), ""),
    "no pieces": (unigram([]), "vocabulary"),
    "an unk_id below": (unigram([["a", -1]], unk_id=-1), "unk_id"),
    "an unk_id above": (unigram([["a", -1]], unk_id=1), "unk_id"),
    "a charsmap that is no base64": (charsmap("????"), "base64"),
    "a short charsmap": (charsmap("AAA="), "precompiled_charsmap"),
    "a charsmap of half a unit": (charsmap("AgAAAAAAAAA="), "precompiled_charsmap"),
    "a charsmap of more units than it has": (charsmap("CAAAAAAAAAA="), "precompiled_charsmap"),
    "a charsmap of other bytes than UTF-8": (charsmap("AAAAAP8A"), "UTF-8"),
    "no mark": (metaspace(""), ""),
    "two marks": (metaspace("ab"), ""),
}


@pytest.mark.parametrize("name", BAD_PARTS)
def test_bad_parts(library: Library, name: str) -> None:
    change, named = BAD_PARTS[name]
    with pytest.raises(Failed, match="^tokenizer: expected ") as failed:
        Tokenizer(library, json.dumps(bpe() | {"added_tokens": []} | change))
    assert named in failed.value.line


def test_null_is_no_part(library: Library) -> None:
    """Optional fields that are null or empty are those that are missing."""
    nothing = {"dropout": None, "continuing_subword_prefix": "", "end_of_word_suffix": None, "surfaces": None}
    Tokenizer(library, json.dumps(bpe() | with_model(**nothing))).close()
    Tokenizer(library, json.dumps(unigram([["a", -1], ["", -2], ["a", -3]], unk_id=None))).close()
    untyped = {key: value for key, value in bpe()["model"].items() if key != "type"}
    Tokenizer(library, json.dumps(bpe() | {"model": untyped})).close()


def test_a_text_that_a_model_without_an_unknown_token_lacks(library: Library) -> None:
    made = Tokenizer(library, json.dumps(unigram([["a", -1], ["ab", -1]])))
    assert made.encode("aa") == [0, 0]
    for text in ("ac", "c", "aab" * 2000):
        with pytest.raises(Failed, match="no unk_id"):
            made.encode(text)


PIECES = r"""
    ( ) [ ] { } ^ $ . * + ? | \ - & : = ! , a b s t k Z 1 _ é \s \S \d \D \p{L} \P{Lu} \p{^Nd} \pL \p{Han} \p{ \w \_
    \t \n \- \] \é [ab] [^a] [a-c] [b-a] [a-\d] [\d-a] [-a] [a-] [[ab]c] [^[^a]] [a&&b] [[:a:]] [a--b]
    (?: (?i: (?= (?! {2} {2,} {1,3} {65} {3,2} {a} {,2} ++ *+ ?+ (?:ab|c) (?:a|b)? (?i:st) (?i:kelvin) (?i:é)
    ^\s+ \s+$ \s+(?!\S) \s+(?!\s) \p{L}+(?!\P{L}) [^b]+(?![b]) [b]+(?![^b])
"""


def supported(library: Library, pattern: str) -> bool:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    try:
        Tokenizer(
            library, json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "pre_tokenizer": split})
        ).close()
    except Failed:
        return False
    return True


def test_the_same_patterns_as_in_python(library: Library) -> None:
    """Both runtimes support the same expressions, of those that are joined from pieces at random."""
    chance, counts = random.Random(11), Counter[bool]()
    pieces = PIECES.split()
    drawn = ["".join(chance.choices(pieces, k=chance.randrange(1, 7))) for _ in range(4000)]
    several = ["|".join(chance.choices(drawn, k=chance.randrange(1, 40))) for _ in range(60)]
    for pattern in [*drawn, *several, *(f"{a}|{a}?" for a in drawn[:300]), "a" * 4097, "(?:" + "a|" * 33 + "b)"]:
        theirs = not unsupported(pattern)
        assert supported(library, pattern) == theirs, pattern
        counts[theirs] += 1
    assert min(counts.values()) > 400, counts


# ---- Archives ----


@pytest.fixture(scope="module")
def decoder(library: Library) -> Decoder:
    decoder = Decoder(library, GOLDEN / "tiny.onnx")
    decoder.prefill([[1, 2, 3]])
    return decoder


@pytest.fixture(scope="module")
def members(decoder: Decoder) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(decoder.save_memory())) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def refuse(decoder: Decoder, content: bytes) -> None:
    before = decoder.save_memory()
    with pytest.raises(Failed, match="^snapshot: expected"):
        decoder.load_memory(content)
    assert decoder.save_memory() == before


def packed(members: dict[str, bytes], comment: bytes = b"") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.comment = comment
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 5, 4), }"
BAD_HEADERS = [
    "",
    "[",
    "{",
    HEADER.replace("'descr'", "'other'"),
    HEADER.replace("'descr': '<f4'", "'descr': '<f4', 'descr': '<f4'"),
    HEADER.replace("'fortran_order': False", "'fortran_order': False, 'fortran_order': False"),
    HEADER.replace("}", "'shape': (1, 3, 5, 4)}"),
    HEADER.replace("'descr': '<f4',", ""),
    HEADER.replace("'fortran_order': False,", ""),
    HEADER.replace("'shape': (1, 3, 5, 4), ", ""),
    HEADER.replace("(1, 3, 5, 4)", "1"),
    HEADER.replace("(1, 3, 5, 4)", "(1 3)"),
    HEADER.replace("(1, 3, 5, 4)", "(x)"),
    HEADER.replace("(1, 3, 5, 4)", "(-1, 3)"),
    HEADER.replace("(1, 3, 5, 4)", "(1"),
    HEADER.replace("(1, 3, 5, 4)", f"({'1, ' * 17})"),
    HEADER.replace("False,", "False"),
    HEADER.replace("'<f4',", "'<f4'"),
    HEADER + " 1",
]


def array(header: str, size: int | None = None) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) if size is None else size) + text + bytes(4 * 60)


@pytest.mark.parametrize("header", BAD_HEADERS)
def test_headers_of_arrays(decoder: Decoder, members: dict[str, bytes], header: str) -> None:
    refuse(decoder, packed(members | {"S.0.npy": array(header)}))


def test_a_header_in_any_order(library: Library, decoder: Decoder, members: dict[str, bytes]) -> None:
    other = decoder.fork()
    for header in (HEADER, "{'shape': (1,3,5,4), 'fortran_order': False,'descr': '<f4'}"):
        other.load_memory(packed(members | {"S.0.npy": array(header)}))
        assert not other.states()["S.0"].any()


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01", array(HEADER, size=60_000), array(HEADER)[:-1] + b"ab"])
def test_arrays_that_are_none(decoder: Decoder, members: dict[str, bytes], content: bytes) -> None:
    refuse(decoder, packed(members | {"S.0.npy": content}))


def changed(at: int, form: str, value: int) -> Callable[[bytearray, int, int], None]:
    """A change of a number in the first entry of the directory."""
    return lambda content, entry, _: struct.pack_into(form, content, entry + at, value)


def at_the_end(at: int, form: str, value: int) -> Callable[[bytearray, int, int], None]:
    return lambda content, _, end: struct.pack_into(form, content, end + at, value)


def in_the_header(at: int, form: str, value: int) -> Callable[[bytearray, int, int], None]:
    """A change in the first member's own header."""
    return lambda content, *_: struct.pack_into(form, content, at, value)


LIES: dict[str, Callable[[bytearray, int, int], None]] = {
    "an entry's mark": changed(0, "<I", 0),
    "a method": changed(10, "<H", 8),
    "another stored size": changed(20, "<I", 7),
    "a name past the directory": changed(28, "<H", 60_000),
    "a comment past the directory": changed(32, "<H", 60_000),
    "zip64 without its field": changed(24, "<I", 0xFFFFFFFF),
    "an offset outside": changed(42, "<I", 1 << 30),
    "an offset in zip64 without its field": changed(42, "<I", 0xFFFFFFFF),
    "an offset of no member": changed(42, "<I", 5),
    "fewer members": at_the_end(10, "<H", 1),
    "a directory outside": at_the_end(16, "<I", 1 << 30),
    "a directory that is too long": at_the_end(12, "<I", 1 << 30),
    "a comment that is not there": at_the_end(20, "<H", 9),
    "a member's mark": in_the_header(0, "<I", 0),
    "a member's method": in_the_header(8, "<H", 8),
    "a member's name": in_the_header(30, "<B", 65),
    "a name of another length": in_the_header(26, "<H", 3),
    "extra fields past the end": in_the_header(28, "<H", 65_535),
}


@pytest.mark.parametrize("lie", LIES)
def test_archives_that_lie(decoder: Decoder, members: dict[str, bytes], lie: str) -> None:
    content = bytearray(packed(members))
    LIES[lie](content, content.index(b"PK\1\2"), content.rindex(b"PK\5\6"))
    refuse(decoder, bytes(content))


def test_members_that_overlap(decoder: Decoder, members: dict[str, bytes]) -> None:
    """The second entry is another one of the first member."""
    content = bytearray(packed({"a.npy": members["S.0.npy"], "b.npy": members["S.0.npy"], **members}))
    second = content.index(b"PK\1\2", content.index(b"PK\1\2") + 4)
    struct.pack_into("<I", content, second + 42, 0)
    refuse(decoder, bytes(content))
    content[second + 46] = ord("a")
    refuse(decoder, bytes(content))
    long = bytearray(packed(members))
    entry = long.index(b"PK\1\2")
    for at in (20, 24):
        struct.pack_into("<I", long, entry + at, long.rindex(b"PK\1\2") - 40)
    refuse(decoder, bytes(long))


@pytest.mark.parametrize(
    "place, mark", [(1 << 40, 0x06064B50), (-20, 0x06064B50), (0, 0x06064B50), (None, 7), (None, None)]
)
def test_zip64_archives(decoder: Decoder, members: dict[str, bytes], place: int | None, mark: int | None) -> None:
    """A record of zip64 at a place that there is not, or with another mark; with the right ones it is read."""
    content = packed(members)
    end = content.rindex(b"PK\5\6")
    count, size, offset = struct.unpack_from("<HII", content, end + 10)
    record = struct.pack("<IQHHIIQQQQ", mark or 0x06064B50, 44, 45, 45, 0, 0, count, count, size, offset)
    where = end if place is None else end + 56 + place if place < 0 else place
    locator = struct.pack("<IIQI", 0x07064B50, 0, where, 1)
    made = content[:end] + record + locator + content[end:]
    if mark is None:
        decoder.fork().load_memory(made)
    else:
        refuse(decoder, made)


def test_a_comment_and_other_names(decoder: Decoder, members: dict[str, bytes]) -> None:
    decoder.fork().load_memory(packed(members, comment=b"PK\5\6" + bytes(30)))
    refuse(decoder, packed(members | {"é.npy": members["S.0.npy"]}))
    refuse(decoder, packed(members | {f"{number}.npy": b"" for number in range(100)}))


# ---- Protobuf ----


def message(number: int, content: bytes) -> bytes:
    size, written = len(content), b""
    while size > 127:
        written, size = written + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + written + bytes([size]) + content


def nested(levels: int) -> bytes:
    """Graphs in attributes of nodes of graphs."""
    content = b""
    for _ in range(levels):
        content = message(1, message(5, message(6, content)))
    return message(7, content)


def outside(*fields: tuple[str, str]) -> bytes:
    """A graph with a tensor whose content is in another file."""
    entries = [message(13, message(1, key.encode()) + message(2, value.encode())) for key, value in fields]
    return message(7, message(5, b"".join(entries)))


BROKEN = {
    "nothing": b"",
    "a cut tag": b"\x80",
    "a cut size": b"\x3a",
    "a size past the end": b"\x3a\x7f",
    "a number without an end": b"\xff" * 11,
    "the field 0": b"\x00\x00",
    "a field above all": b"\x80\x80\x80\x80\x80\x01\x00",
    "a group": b"\x0b",
    "eight bytes that are cut": b"\x09\1\2\3",
    "four bytes that are cut": b"\x0d\1\2\3",
    "a key twice": message(14, message(1, b"a")) * 2 + message(7, b""),
    "two graphs": message(7, b"") * 2,
    "no graph": message(14, message(1, b"a")),
    "graphs in graphs": nested(70),
    "too much metadata": message(14, message(1, b"a") + message(2, bytes(65 << 20))) + message(7, b""),
    "many files": message(
        7, b"".join(message(5, message(13, message(1, b"location") + message(2, b"%d" % i))) for i in range(5000))
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_graphs_that_are_none(library: Library, tmp_path: Path, name: str) -> None:
    """In a file, and in memory."""
    (tmp_path / "bad.onnx").write_bytes(BROKEN[name])
    with pytest.raises(Failed, match="^(graph|metadata): expected ") as failed:
        Decoder(library, tmp_path / "bad.onnx")
    with pytest.raises(Failed, match="^(graph|metadata): expected ") as again:
        Decoder.in_memory(library, ("bad.onnx", BROKEN[name]))
    assert failed.value.line == again.value.line


def test_fields_that_nothing_reads_are_skipped(library: Library) -> None:
    """Those of all wire types, in the file and in its metadata."""
    graph = (GOLDEN / "tiny.onnx").read_bytes()
    other = b"\xf8\x01\x05" + b"\xf9\x01" + bytes(8) + b"\xfd\x01" + bytes(4)
    entry = message(14, message(1, b"other") + other + message(3, b"what") + message(2, b"value"))
    decoder = Decoder.in_memory(library, ("tiny.onnx", graph + other + entry))
    assert decoder.metadata("other") == "value"


def test_weights_that_are_further_than_any_file(library: Library, tmp_path: Path) -> None:
    fields = ("location", "w"), ("offset", "18446744073709551615"), ("length", "2"), ("checksum", "x")
    graph = (GOLDEN / "tiny.onnx").read_bytes()
    model = onnx.ModelProto.FromString(graph)
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    for key, value in fields:
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "g.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "w").write_bytes(bytes(8))
    with pytest.raises(Failed, match="^weights: "):
        Decoder(library, tmp_path / "g.onnx")
    with pytest.raises(Failed, match="^weights: "):
        Decoder.in_memory(library, ("g.onnx", model.SerializeToString()), ("w", bytes(8)))


# ---- Companions ----

OTHERS: dict[str, Any] = {
    "vocab_size": 16,
    "batch": 3,
    "max_positions": 77,
    "bos_token": 3,
    "eos_tokens": [1, 5],
    "past_end": "clamp",
    "checkpoint_sha256": "0" * 64,
    "quantization": "w8",
    "layers": [{"kind": "other"}],
    "target": "npu",
    "state_layout": "packed",
    "producer": "other",
    "graphs": {"prefill": "x.onnx"},
    "tokenizer": "{}",
    "top_k": 2,
    "input_size": 4,
    "hidden_size": 4,
}
STATES = {"name": "S.9", "dtype": "float16", "shape": ["B", 3], "initial": 1.0, "constant": True}


def altered(graph: Path, path: Path, key: str, change: Callable[[Any], Any]) -> None:
    model = onnx.load(graph, load_external_data=False)
    entries = {entry.key: entry.value for entry in model.metadata_props}
    entries[f"t2r.{key}"] = json.dumps(change(json.loads(entries.get(f"t2r.{key}", "null"))))
    onnx.helper.set_model_props(model, entries)
    path.write_bytes(model.SerializeToString())


@pytest.fixture
def copied(tmp_path: Path) -> tuple[Path, Path]:
    """A step graph and its prefill graph."""
    for file in GOLDEN.glob("prefill.onnx*"):
        shutil.copy(file, tmp_path)
    (companion,) = tmp_path.glob("prefill.onnx.*.prefill.onnx")
    return tmp_path / "prefill.onnx", companion


@pytest.mark.parametrize("key", OTHERS)
def test_a_companion_of_another_model(library: Library, copied: tuple[Path, Path], key: str) -> None:
    """One value that is not the step graph's: the companion is refused."""
    graph, companion = copied
    altered(companion, companion, key, lambda old: None if old == OTHERS[key] else OTHERS[key])
    decoder = Decoder(library, graph)
    with pytest.raises(Failed, match="^(graph|metadata|interface): expected "):
        decoder.prefill([[1, 2]])


@pytest.mark.parametrize("key", STATES)
def test_a_companion_of_other_states(library: Library, copied: tuple[Path, Path], key: str) -> None:
    graph, companion = copied
    altered(companion, companion, "states", lambda states: [{**states[0], key: STATES[key]}, *states[1:]])
    decoder = Decoder(library, graph)
    with pytest.raises(Failed, match="^(graph|metadata|interface): expected "):
        decoder.prefill([[1, 2]])


BAD_VALUES: list[tuple[str, Callable[[Any], Any]]] = [
    ("vocab_size", lambda _: 0),
    ("vocab_size", lambda _: 1 << 30),
    ("contract", lambda _: "1"),
    ("contract", lambda _: 2),
    ("contract", lambda _: 1 << 70),
    ("bos_token", lambda _: -2),
    ("bos_token", lambda _: 1 << 20),
    ("eos_tokens", lambda _: [-1]),
    ("eos_tokens", lambda _: [1 << 20]),
    ("past_end", lambda _: "wrap"),
    ("past_end", lambda _: "wrap:"),
    ("past_end", lambda _: "wrap:0"),
    ("past_end", lambda _: "wrap:1/"),
    ("past_end", lambda _: "wrap:1:"),
    ("past_end", lambda _: "wrap:1234567890"),
    ("graphs", lambda _: {"prefill": "../x.onnx"}),
    ("graphs", lambda _: {"prefill": ""}),
    ("graphs", lambda _: {"prefill": ".."}),
    ("graphs", lambda _: {"prefill": "a\\b"}),
    ("graphs", lambda _: {"prefill": "c:x"}),
    ("graphs", lambda _: {"prefill": "a\x7f"}),
    ("graphs", lambda _: {"prefill": "a\n"}),
    ("role", lambda _: "prefill"),
    ("states", lambda states: [*states, states[0]]),
    ("states", lambda states: [{**states[0], "name": ""}, *states[1:]]),
    ("states", lambda states: [{**states[0], "dtype": "float64"}, *states[1:]]),
    ("states", lambda states: [{**states[0], "constant": True}, *states[1:]]),
    ("states", lambda states: [{**states[0], "more": 1}, *states[1:]]),
    ("states", lambda states: [{**states[0], "shape": []}, *states[1:]]),
    ("states", lambda states: [{**states[0], "shape": ["X", 3, 5, 4]}, *states[1:]]),
    ("states", lambda states: [{**states[0], "shape": [2, 3, 5, 4]}, *states[1:]]),
    ("states", lambda states: [{**states[0], "shape": ["B", 0, 5, 4]}, *states[1:]]),
    ("states", lambda states: [{**states[0], "shape": ["B", "T", "T", 4]}, *states[1:]]),
    ("states", lambda states: [{**states[0], "shape": ["B", "M", 5, 4]}, *states[1:]]),
    ("states", lambda states: [{**states[0], "shape": ["B", *[1] * 16]}, *states[1:]]),
    ("states", lambda states: [{**states[0], "initial": 1e300}, *states[1:]]),
    ("adapters", lambda _: []),
    ("adapters", lambda _: ["a"]),
    ("adapters", lambda _: ["a", "a"]),
    ("adapters", lambda _: ["a b"]),
    ("adapters", lambda _: [f"a{number}" for number in range(2000)]),
    ("top_k", lambda _: 0),
    ("top_k", lambda _: 1 << 20),
    ("max_positions", lambda _: -1),
    ("batch", lambda _: 0),
]


@pytest.mark.parametrize("number", range(len(BAD_VALUES)))
def test_bad_values_of_metadata(library: Library, tmp_path: Path, number: int) -> None:
    key, change = BAD_VALUES[number]
    altered(GOLDEN / "tiny.onnx", tmp_path / "bad.onnx", key, change)
    with pytest.raises(Failed, match="^(metadata|version|graph): expected "):
        Decoder(library, tmp_path / "bad.onnx")


ADAPTER = {"name": "adapter", "dtype": "int32", "shape": ["B"], "initial": 0, "constant": False}


@pytest.mark.parametrize(
    "change",
    [{"dtype": "int64"}, {"shape": ["B", 1]}, {"initial": 1}, {"name": "adapters"}],
    ids=lambda change: str(change),
)
def test_the_state_of_adapters(library: Library, tmp_path: Path, change: dict[str, Any]) -> None:
    """Names of adapters need the state that chooses one, in the contract's form."""
    altered(GOLDEN / "tiny.onnx", tmp_path / "a.onnx", "states", lambda states: [*states, ADAPTER | change])
    altered(tmp_path / "a.onnx", tmp_path / "a.onnx", "adapters", lambda _: ["legal"])
    with pytest.raises(Failed, match="^metadata: expected .*adapters"):
        Decoder(library, tmp_path / "a.onnx")
