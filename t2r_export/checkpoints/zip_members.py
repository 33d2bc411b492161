"""Members of a torch archive, a zip file in which all readers find the same members.

Two readers of one zip file may disagree: on which directory counts, on duplicate names, on the case of names, on extra
fields. Python's `zipfile` checks what torch's own reader (miniz, which ignores case) then loads. Only the layout that
`torch.save` and `zipfile` write is accepted: one directory at the end, names that differ in more than their case.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

END = struct.Struct("<4s4H2LH")  # disks, entries, length and offset of the directory, length of a comment
LOCATOR = struct.Struct("<4sLQL")  # of END64
END64 = struct.Struct("<4sQ2H2L4Q")
MOST = (0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)  # in END, of larger numbers in END64
ZIP64 = 1  # kind of extra field that holds sizes above 32 bits


class OtherLayout(Exception):
    """A zip file that readers may understand differently; the message describes its contents."""


def check_members(path: Path) -> list[zipfile.ZipInfo]:
    """The members of a zip file, in the order of its directory.

    Raises:
        OtherLayout: readers may disagree on the members, a member is compressed, or members overlap.
        Exception: of any type, for bytes that are no zip file.
    """
    entries = _entries(path)
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if len(members) != entries:
        raise OtherLayout("a directory of another number of members")
    names = [member.orig_filename for member in members]
    if not all(name.isascii() and name.isprintable() for name in names) or names != [m.filename for m in members]:
        raise OtherLayout("names that are not plain ASCII")
    if len({name.lower() for name in names}) < len(names):
        raise OtherLayout("names that are equal, or differ in case only")
    if len({name.partition("/")[0] for name in names}) != 1:
        raise OtherLayout("members in several folders, or in none")
    if any(member.extra and not _is_zip64(member.extra) for member in members):
        raise OtherLayout("extra fields")
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise OtherLayout("compressed members")
    if sum(member.file_size for member in members) > path.stat().st_size:
        raise OtherLayout("overlapping members")
    return members


def _entries(path: Path) -> int:
    """The number of members in the one directory, which must end where the records that locate it begin."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - END.size - LOCATOR.size - END64.size))
        ending = file.read()
    end = ending[-END.size :]
    mark, disk, first, here, entries, length, offset, comment = END.unpack(end)
    if mark != b"PK\5\6":
        raise zipfile.BadZipFile("no directory at its end")
    start = size - END.size
    if ending[-END.size - LOCATOR.size :].startswith(b"PK\6\7"):
        start -= LOCATOR.size + END64.size
        short = (here, entries, length, offset)
        mark64, rest, _, _, disk64, first64, *long = END64.unpack(ending[: END64.size])
        located = LOCATOR.unpack(ending[END64.size : -END.size])
        here, entries, length, offset = long
        if (
            (mark64, rest, disk64, first64) != (b"PK\6\6", END64.size - 12, 0, 0)
            or located != (b"PK\6\7", 0, start, 1)
            or any(value != min(of64, most) for value, of64, most in zip(short, long, MOST, strict=True))
        ):
            raise OtherLayout("a second directory")
    if (disk, first, comment) != (0, 0, 0) or here != entries or offset + length != start:
        raise OtherLayout("a directory in another place")
    return int(entries)


def _is_zip64(extra: bytes) -> bool:
    """Whether the extra fields of a directory's entry are a single one, of large sizes."""
    return len(extra) >= 4 and struct.unpack("<2H", extra[:4]) == (ZIP64, len(extra) - 4)
