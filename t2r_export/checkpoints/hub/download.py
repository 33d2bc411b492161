"""Download a model of the hub into its local cache: only the files that an import reads."""

from __future__ import annotations

from pathlib import Path

from t2r_export.checkpoints.importers.contents import READ
from t2r_export.paths import hub_model
from t2r_runtime.errors import UserError, printable


def download(path: str | Path) -> Path:
    """Download a model `hf:OWNER/NAME` or `hf:OWNER/NAME@REVISION`, with progress on stderr; returns its folder.

    Files that are in the cache are not downloaded again.

    Raises:
        UserError: another spelling, a model that the hub does not show, or no connection and no copy in the cache.
    """
    name, revision = hub_model(path)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(READ)))
    except (OSError, ValueError) as error:  # bases of the package's errors
        do = "check the name and the connection; for a gated model, log in: hf auth login"
        raise UserError(f"to download {name}", printable(str(error).strip().partition("\n")[0]), do) from error
