"""What Rust and Java declare of t2r.h is written from it, and is what a C compiler and Java's virtual machine see."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bindings.declarations import HEADER, WRITTEN, Function, Header, Type, parse
from cpp_build import Run

TEXT = HEADER.read_text("utf-8")


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_files_are_those_of_the_header(path: Path) -> None:
    assert path.read_bytes() == WRITTEN[path](parse(TEXT)).encode(), "run python runtimes/bindings/declarations.py"


def test_every_exported_function_is_declared(prefix: Path) -> None:
    command = ["nm", "--dynamic", "--defined-only", str(prefix / "lib" / "libt2r.so")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    functions = list(parse(TEXT).functions)
    assert sorted(functions) == sorted(line.split()[-1] for line in said.splitlines())
    sys, declarations = (path.read_text("utf-8") for path in WRITTEN)
    assert re.findall(r"pub fn (\w+)\(", sys) == re.findall(r'Native\.function\(\s*"(\w+)"', declarations) == functions


def test_a_function_that_is_dropped_is_seen() -> None:
    for name in parse(TEXT).functions:
        without = parse(re.sub(rf"T2R_API [^;(]*?\b{name}\([^;]*;", "", TEXT))
        assert name not in without.functions
        for path, write in WRITTEN.items():
            assert write(without).encode() != path.read_bytes()


def c(kind: Type | None) -> str:
    """A type in C."""
    if kind is None:
        return "void"
    constant = [*("const " if const else "" for const in kind.const), ""]
    return constant[0] + kind.base + "".join(f" *{after}" for after in constant[1:])


def pointer(function: Function, name: str) -> str:
    return f"{c(function.returns)} (*{name})({', '.join(map(c, function.takes.values())) or 'void'})"


def claims(header: Header) -> Iterator[str]:
    """A C program that compiles if the header declares this, and no more."""
    yield "#include <stddef.h>\n#include <t2r.h>"
    for name, constants in header.enums.items():
        for number, constant in enumerate(constants):
            yield f'_Static_assert({constant} == {number} && sizeof({name}) == 4, "");'
        yield f"int all_{name}({name} given);\nint all_{name}({name} given) {{\n    switch (given) {{"
        yield "\n".join(f"        case {constant}:" for constant in constants) + " return 1;\n    }\n    return 0;\n}"
    for name, fields in header.structures.items():
        offsets, size = header.offsets(name)
        yield f'_Static_assert(sizeof({name}) == {size}, "");'
        for member, kind in fields.items():
            yield f'_Static_assert(offsetof({name}, {member}) == {offsets[member]}, "");'
            yield f'_Static_assert(_Generic(&(({name} *)0)->{member}, {c(kind)} *: 1, default: 0), "");'
        yield f"{name} made_{name} = {{{', '.join('0' for _ in fields)}}};"  # -Wextra: not a field less
    for name, function in header.callbacks.items():
        yield f"extern {name} a_{name};\nextern {pointer(function, f'a_{name}')};"
    for name, function in header.functions.items():
        yield f"{pointer(function, f'a_{name}')} = {name};"


def compiles(header: Header) -> str:
    """What the compiler says of the header's claims: nothing if they are true."""
    command = [os.environ.get("CC", "cc"), "-x", "c", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-"]
    lines, folder = "\n".join(claims(header)) + "\n", f"-I{HEADER.parent}"
    done = subprocess.run([*command, folder], input=lines, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) == (not done.stderr)
    return done.stderr


def test_types_and_offsets_are_the_compilers() -> None:
    assert compiles(parse(TEXT)) == ""


@pytest.mark.parametrize(
    "before, after",
    [
        ("int32_t companions; ", ""),  # where the structure's other offsets do not change
        ("int64_t input_size; ", ""),
        ("int64_t batch; ", "int64_t batch2; "),
        ("double top_p; ", "int64_t top_p; "),
        ("const int64_t *shape; ", "int64_t *shape; "),
        ("const char *const *config; ", "const char **config; "),
        ("int32_t threads", "int64_t threads"),
        ("T2R_GRAPH, ", ""),
        (", T2R_CANCELLED", ""),
        ("t2r_step(t2r_decoder *decoder, const int64_t *tokens", "t2r_step(t2r_decoder *decoder, int64_t *tokens"),
        ("(*t2r_callback)(int64_t token,", "(*t2r_callback)(int32_t token,"),
    ],
)
def test_another_declaration_does_not_compile(before: str, after: str) -> None:
    body = " ".join(re.sub(r"/\*.*?\*/", " ", TEXT.partition('extern "C" {')[2], flags=re.DOTALL).split())
    assert before in body
    changed = body.replace(before, after, 1).replace("#ifdef", "\n#ifdef").removeprefix("#endif ")
    assert compiles(parse(TEXT.partition('extern "C" {')[0] + 'extern "C" {\n#endif\n' + changed))


@pytest.mark.parametrize(
    "line",
    [
        "typedef union t2r_new { int64_t a; } t2r_new;",
        "typedef struct t2r_new { int64_t a[3]; } t2r_new;",
        "typedef struct t2r_new { int64_t a, b; } t2r_new;",
        "typedef struct t2r_new { int32_t a : 3; } t2r_new;",
        "typedef struct t2r_new { t2r_info a; } t2r_new;",
        "typedef struct t2r_new { const int64_t a; } t2r_new;",
        "typedef enum t2r_new { T2R_NEW = 3 } t2r_new;",
        "typedef enum t2r_new { T2R_A = 0, T2R_B = 7 } t2r_new;",
        "T2R_API t2r_kind t2r_new(unsigned a);",
        "T2R_API t2r_kind t2r_new(t2r_decoder decoder);",
        "T2R_API t2r_kind t2r_new(const char *text, ...);",
        "t2r_kind t2r_new(void);",
        "#define t2r_new t2r_open",
    ],
)
def test_what_is_not_known_is_refused(line: str) -> None:
    place = "\nT2R_API t2r_kind t2r_fork("
    assert place in TEXT
    with pytest.raises(ValueError, match="^expected "):
        parse(TEXT.replace(place, f"\n{line}{place}"))


def java(header: Header, kind: Type) -> str:
    """The type in Java that carries one of C."""
    if kind.const or kind.base in header.callbacks:
        return "MemorySegment"
    return {"int64_t": "long", "size_t": "long", "double": "double"}.get(kind.base, "int")


def test_java_sees_the_same(run: Run, language: str) -> None:
    if language != "java":
        return  # what Rust sees, sys.rs asserts when it is compiled
    header, lines = parse(TEXT), []
    for name in header.structures:
        offsets, size = header.offsets(name)
        layout = name.removeprefix("t2r_").upper()
        lines.append(f"{layout} {size}")
        for member, kind in header.structures[name].items():
            carrier = "interface java.lang.foreign.MemorySegment" if kind.const else java(header, kind)
            lines.append(f"{layout}.{member} {offsets[member]} {carrier}")
    for name, function in header.functions.items():
        takes = ",".join(java(header, kind) for kind in function.takes.values())
        assert function.returns
        lines.append(f"{name.removeprefix('t2r_').upper()} ({takes}){java(header, function.returns)}")
    assert run("layouts").stdout.decode().splitlines() == lines
