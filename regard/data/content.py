"""A digest of what data hold: the files, and the pictures they name."""

from __future__ import annotations

import hashlib
from pathlib import Path

from regard.artifacts import file_digest
from regard.data.corpora import Files, read_files
from regard.errors import DataError
from regard.fingerprint import content_of
from regard.settings import Data


def data_content(files: Files, data: Data) -> str:
    """Another file of the same content has the same digest; one edited picture changes it."""
    paths = [files] if isinstance(files, str) else list(files)
    for path in paths:
        if not Path(path).is_file():
            raise DataError(f"no file {path}; check the paths in [data] (they are relative to the config file)")
    whole = content_of(paths)
    if data.source != "picture":
        return whole
    found = hashlib.sha256(whole.encode())
    for example in read_files(files, data, lambda bad: None):
        picture = Path(example.source)
        found.update(file_digest(picture).encode() if picture.is_file() else b"missing")
    return found.hexdigest()
