"""The archive that a model.pt is: whole, by the checksum of each member, and with instructions that do no harm."""

from __future__ import annotations

import zipfile
from pathlib import Path

from t2r_export.checkpoints.pickles import Reference, Refused, check_pickle
from t2r_runtime.errors import UserError, printable

FORMAT = "t2r-checkpoint"
GRAPHS = (".onnx", ".ort")
OPEN = "give a model.pt made by t2r, or a Hugging Face folder"


def check_archive(path: Path) -> None:
    """Refuse what is not a whole, uncompressed zip archive before torch looks at it.

    torch stores without compression; a compressed member can only be there to unpack into more than the file's size.
    Every member is read against its checksum; what has none (padding, times) is nothing that anybody reads.
    """
    if not path.is_file():
        raise UserError(f"a checkpoint at {path}", "nothing" if not path.exists() else "no ordinary file", OPEN)
    if path.suffix in GRAPHS:
        raise UserError("a checkpoint", f"the exported graph {path}", "name the model that it was exported from")
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise UserError(f"an archive without compression in {path}", "a compressed one", OPEN)
            pickles = [member for member in members if member.filename.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise UserError(f"a checkpoint in {path}", "an archive of something else", OPEN)
            if sum(member.file_size for member in members) > path.stat().st_size:
                raise UserError(f"a whole checkpoint in {path}", "members that share their bytes", OPEN)
            damaged = archive.testzip()
            if damaged is not None:
                received = f"{printable(damaged, 100)}, which differs from its checksum"
                raise UserError(f"a whole checkpoint in {path}", received, "copy or download it again")
            check_pickle(archive.read(pickles[0]))
    except UserError:
        raise
    except Reference as error:
        expected = f"tensors and plain data, and nothing else, in {path}"
        raise UserError(expected, printable(error), f"do not trust this file; {OPEN}") from error
    except Refused as error:
        raise UserError(
            f"a checkpoint of the format {FORMAT} in {path}", f"something else: {printable(error)}", OPEN
        ) from error
    except Exception as error:  # zipfile and pickletools, on damaged bytes, raise any
        received = f"no archive, or a part of one ({printable(error, 200)})"
        raise UserError(f"a checkpoint in {path}", received, OPEN) from error
