"""Torch archives that two readers of zip files may understand differently."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable

END64 = 56 + 20 + 22  # bytes of the records behind a directory, of torch's archives


def appended(name: str, data: bytes, extra: bytes = b"") -> Callable[[bytes], bytes]:
    """A change that adds a member to an archive."""

    def change(content: bytes) -> bytes:
        file, member = io.BytesIO(content), zipfile.ZipInfo(name)
        member.extra = extra
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr(member, data)
        return file.getvalue()

    return change


def second_directory(content: bytes) -> bytes:
    """A record of a directory that only the locator points to, before the one in its usual place."""
    record, rest = content[-END64:-42], content[-42:]
    return content[:-42] + record + rest


def commented(content: bytes) -> bytes:
    """The archive with itself as a comment: the end of a directory occurs twice."""
    return content[:-2] + struct.pack("<H", 22) + content[-22:]


def unicode_name(name: bytes, other: bytes) -> bytes:
    """An extra field with another name for a member (0x7075), which some readers use."""
    return struct.pack("<HHBL", 0x7075, 5 + len(other), 1, zipfile.crc32(name)) + other  # type: ignore[attr-defined]


PICKLE = b"\x80\x02}q\x00."
# change of an archive → message of the error
CHANGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "case": (appended("archive/DATA.PKL", PICKLE), "differ in case only"),
    "case of the folder": (appended("ARCHIVE/data.pkl", PICKLE), "differ in case only"),
    "another folder": (appended("other/data.pkl", PICKLE), "several folders"),
    "no folder": (appended("data.pkl", PICKLE), "several folders"),
    "long s": (appended("archive/verſion", b"3"), "plain ASCII"),
    "name in an extra field": (
        appended("archive/x", PICKLE, unicode_name(b"archive/x", b"archive/data.pkl")),
        "extra fields|plain ASCII",
    ),
    "two sizes": (appended("archive/x", PICKLE, struct.pack("<HHQHHQ", 1, 8, 5, 1, 8, 9)), "extra fields"),
    "two directories": (second_directory, "a second directory"),
    "two ends": (commented, "a directory in another place"),
    "bytes after it": (lambda content: content + b"\0", "no archive, or a part of one"),
    "bytes before it": (lambda content: b"\0" + content, "a second directory"),
}
