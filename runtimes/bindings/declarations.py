"""Write what Rust and Java declare of t2r.h: python runtimes/bindings/declarations.py

Go declares nothing, since cgo reads the header. Whatever this does not know in the header is a ValueError, so that
nothing is left out of the bindings. Sizes and offsets are those of systems with pointers of 64 bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

RUNTIMES = Path(__file__).parents[1]
HEADER = RUNTIMES / "cpp" / "include" / "t2r.h"
# C type -> its bytes, its name in Rust, its layout in Java
SCALARS = {
    "int": (4, "c_int", "JAVA_INT"),
    "int32_t": (4, "i32", "JAVA_INT"),
    "int64_t": (8, "i64", "JAVA_LONG"),
    "size_t": (8, "usize", "JAVA_LONG"),
    "float": (4, "f32", "JAVA_FLOAT"),
    "double": (8, "f64", "JAVA_DOUBLE"),
}
POINTED = {"char": "c_char", "void": "c_void"}  # only behind a pointer, and their names in Rust


@dataclass(frozen=True)
class Type:
    """`const`: for each pointer, the innermost first, whether what it points to is constant; empty for a value."""

    base: str
    const: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Function:
    returns: Type | None  # None: void
    takes: Mapping[str, Type]


@dataclass
class Header:
    """What t2r.h declares, in its order."""

    minor: int  # T2R_VERSION_NUMBER without the patch
    enums: dict[str, list[str]] = field(default_factory=dict)  # constants, numbered from 0
    opaque: list[str] = field(default_factory=list)  # structures without fields
    structures: dict[str, dict[str, Type]] = field(default_factory=dict)
    callbacks: dict[str, Function] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)

    def offsets(self, name: str) -> tuple[dict[str, int], int]:
        """The offset of each of a structure's fields, and the structure's size, in bytes."""
        offsets, end, widest = {}, 0, 1
        for member, kind in self.structures[name].items():
            size = self.size(kind)
            offsets[member] = -(-end // size) * size
            end, widest = offsets[member] + size, max(widest, size)
        return offsets, -(-end // widest) * widest

    def size(self, kind: Type) -> int:
        if kind.const or kind.base in self.callbacks:
            return 8
        return SCALARS["int" if kind.base in self.enums else kind.base][0]


# ---- The header ----

STATEMENT = re.compile(
    r"typedef enum (?P<enum>\w+) \{ (?P<constants>[^{}]*?),? \} (?P=enum); ?"
    r"|typedef struct (?P<opaque>\w+) (?P=opaque); ?"
    r"|typedef struct (?P<structure>\w+) \{ (?P<fields>[^{}]*); \} (?P=structure); ?"
    r"|typedef (?P<answer>[\w *]+)\(\*(?P<callback>\w+)\)\((?P<given>[^()]*)\); ?"
    r"|T2R_API (?P<function>[\w *]+)\((?P<takes>[^()]*)\); ?"
)
DECLARATOR = re.compile(r"(const )?(\w+) ((?:\*(?:const )?)*)(\w+)")


def parse(text: str) -> Header:
    """The declarations in the text of t2r.h.

    Raises:
        ValueError: a declaration of a form or a type that this does not know.
    """
    major, minor = (int(re.findall(rf"#define T2R_VERSION_{part} (\d+)\n", text)[0]) for part in ("MAJOR", "MINOR"))
    body = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    body = body.split('extern "C" {\n#endif\n')[1].split("#ifdef __cplusplus")[0]
    rest, found = " ".join(body.split()), Header(major * 1000 + minor)
    while rest:
        statement = STATEMENT.match(rest)
        if statement is None:
            raise ValueError(f"expected a declaration; received {rest[:80]}; teach it to {Path(__file__).name}")
        _add(found, statement)
        rest = rest[statement.end() :]
    return found


def _add(found: Header, statement: re.Match[str]) -> None:
    if name := statement["enum"]:
        constants = statement["constants"].split(", ")
        constants[0] = constants[0].removesuffix(" = 0")
        if not all(re.fullmatch(r"T2R_\w+", constant) for constant in constants):
            raise ValueError(f"expected constants numbered from 0; received {statement['constants']}; change t2r.h")
        found.enums[name] = constants
    elif name := statement["opaque"]:
        found.opaque.append(name)
    elif name := statement["structure"]:
        found.structures[name] = dict(_declared(found, member) for member in statement["fields"].split("; "))
    elif name := statement["callback"]:
        found.callbacks[name] = _function(found, statement["answer"] + name, statement["given"])[1]
    else:
        name, function = _function(found, statement["function"], statement["takes"])
        found.functions[name] = function


def _function(found: Header, head: str, takes: str) -> tuple[str, Function]:
    given = {} if takes == "void" else dict(_declared(found, one) for one in takes.split(", "))
    if head.startswith("void "):
        return head.removeprefix("void "), Function(None, given)
    name, returns = _declared(found, head)
    return name, Function(returns, given)


def _declared(found: Header, text: str) -> tuple[str, Type]:
    """The name and the type of a field, an argument or a function."""
    parts = DECLARATOR.fullmatch(text)
    if parts is None:
        raise ValueError(f"expected a type and a name; received {text}; teach it to {Path(__file__).name}")
    pointers = parts[3].split("*")[1:]
    const = (bool(parts[1]), *(bool(pointer) for pointer in pointers))[: len(pointers)]
    values, pointed = {*SCALARS, *found.enums, *found.callbacks}, {*POINTED, *found.opaque, *found.structures}
    if parts[2] not in values and not (const and parts[2] in pointed):
        raise ValueError(f"expected a type of {Path(__file__).name}; received {text}; teach it that one")
    if (pointers and pointers[-1]) or (parts[1] and not pointers):
        raise ValueError(f"expected no constant value; received {text}; leave const out")
    return parts[4], Type(parts[2], const)


# ---- Rust ----


def rust(header: Header) -> str:
    """sys.rs."""
    parts = [RUST.format(name=Path(__file__).name)]
    for enum, constants in header.enums.items():
        lines = [f"pub const {constant}: {enum} = {number};" for number, constant in enumerate(constants)]
        parts.append("\n".join([f"pub type {enum} = c_uint;", *lines]))
    parts.append("\n".join(f"pub enum {name} {{}}" for name in header.opaque))
    for name, fields in header.structures.items():
        lines = [f"    pub {member}: {_rust(kind)}," for member, kind in fields.items()]
        parts.append("\n".join(["#[repr(C)]", f"pub struct {name} {{", *lines, "}"]))
    for name, function in header.callbacks.items():
        parts.append(f'pub type {name} = Option<extern "C" fn({", ".join(_takes(function))}){_returns(function)}>;')
    functions = "\n".join(_rust_function(name, function) for name, function in header.functions.items())
    parts.append(f'#[link(name = "t2r")]\nextern "C" {{\n{functions}\n}}')
    sizes = "\n".join(f"    {line}" for name in header.structures for line in _rust_sizes(header, name))
    uses = "    use std::mem::{offset_of, size_of};"
    parts.append(f'#[cfg(target_pointer_width = "64")]\nconst _: () = {{\n{uses}\n{sizes}\n}};')
    return "\n\n".join(parts) + "\n"


RUST = """\
//! The declarations of t2r.h, which runtimes/bindings/{name} writes. The rest of the crate is safe.
#![allow(non_camel_case_types)]

use std::ffi::{{c_char, c_int, c_uint, c_void}};"""


def _rust(kind: Type) -> str:
    made = SCALARS[kind.base][1] if kind.base in SCALARS else POINTED.get(kind.base, kind.base)
    for const in kind.const:
        made = f"*{'const' if const else 'mut'} {made}"
    return made


def _takes(function: Function) -> list[str]:
    return [f"{name}: {_rust(kind)}" for name, kind in function.takes.items()]


def _returns(function: Function) -> str:
    return f" -> {_rust(function.returns)}" if function.returns else ""


def _rust_function(name: str, function: Function) -> str:
    """As rustfmt writes it."""
    line = f"    pub fn {name}({', '.join(_takes(function))}){_returns(function)};"
    if len(line) <= 120:
        return line
    takes = "\n".join(f"        {one}," for one in _takes(function))
    return f"    pub fn {name}(\n{takes}\n    ){_returns(function)};"


def _rust_sizes(header: Header, name: str) -> Iterator[str]:
    offsets, size = header.offsets(name)
    yield f"assert!(size_of::<{name}>() == {size});"
    for member, offset in offsets.items():
        yield f"assert!(offset_of!({name}, {member}) == {offset});"


# ---- Java ----


def java(header: Header) -> str:
    """Declarations.java: a layout for each structure, and a handle for each function, named without t2r_."""
    names = [_constant(name) for name in (*header.structures, *header.callbacks, *header.functions)]
    if len({*names, "MINOR"}) != len(names) + 1:
        raise ValueError(f"expected different names; received {', '.join(sorted(names))}; rename one in t2r.h")
    parts = [JAVA.format(name=Path(__file__).name, minor=header.minor)]
    for name in header.structures:
        parts.append(_java_structure(header, name))
    for name, function in header.callbacks.items():
        of = "of" if function.returns else "ofVoid"
        made = f"FunctionDescriptor.{of}({', '.join(_layouts(header, function))})"
        parts.append(f"    static final FunctionDescriptor {_constant(name)} = {made};\n\n")
    for name, function in header.functions.items():
        parts.append(_java_function(name, _layouts(header, function)))
    return "".join(parts) + "}\n"


JAVA = """\
package t2r;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_DOUBLE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.StructLayout;
import java.lang.invoke.MethodHandle;

/** The declarations of t2r.h, which runtimes/bindings/{name} writes. The public classes are safe. */
final class Declarations {{
    private Declarations() {{}}

    /** T2R_VERSION_NUMBER without the patch. */
    static final int MINOR = {minor};

"""


def _constant(name: str) -> str:
    return name.removeprefix("t2r_").upper()


def _layout(header: Header, kind: Type) -> str:
    if kind.const or kind.base in header.callbacks:
        return "ADDRESS"
    return SCALARS["int" if kind.base in header.enums else kind.base][2]


def _java_structure(header: Header, name: str) -> str:
    offsets, size = header.offsets(name)
    parts, end = [], 0
    for member, kind in header.structures[name].items():
        if gap := offsets[member] - end:
            parts.append(f"MemoryLayout.paddingLayout({gap})")
        parts.append(f'{_layout(header, kind)}.withName("{member}")')
        end = offsets[member] + header.size(kind)
    if size - end:
        parts.append(f"MemoryLayout.paddingLayout({size - end})")
    fields = ",\n            ".join(parts)
    return f"    static final StructLayout {_constant(name)} = MemoryLayout.structLayout(\n            {fields});\n\n"


def _layouts(header: Header, function: Function) -> list[str]:
    """Of what it returns, unless that is void, and takes."""
    returns = [function.returns] if function.returns else []
    return [_layout(header, kind) for kind in (*returns, *function.takes.values())]


def _java_function(name: str, layouts: Sequence[str]) -> str:
    head, call = (
        f"    static final MethodHandle {_constant(name)} =",
        f'Native.function("{name}", {", ".join(layouts)});',
    )
    for between in (" ", "\n            "):
        if len(call) + len((head + between).rpartition("\n")[2]) <= 120:
            return f"{head}{between}{call}\n"
    first, last = call.split(", ", 1)
    return f"{head} {first},\n            {last}\n"


WRITTEN = {RUNTIMES / "rust" / "src" / "sys.rs": rust, RUNTIMES / "java" / "src" / "t2r" / "Declarations.java": java}


def main() -> None:
    header = parse(HEADER.read_text(encoding="utf-8"))
    for path, write in WRITTEN.items():
        path.write_text(write(header), encoding="utf-8")


if __name__ == "__main__":
    main()
