"""Opens files of the lake for Arrow. `place` does without Arrow, because the settings import it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from cdc_core.lake_storage.place import LakePlace

_FILES = LocalFileSystem()


def open_input(file: LakePlace) -> pa.NativeFile:
    """Open a file, so that Arrow can read any part of it. Raises: OSError."""
    return _FILES.open_input_file(file.uri)


def open_output(file: LakePlace) -> pa.NativeFile:
    """Open a new file for Arrow to write; it is whole once it is closed. Raises: OSError."""
    return _FILES.open_output_stream(file.uri, compression=None)


def read_footer(file: LakePlace) -> pq.FileMetaData:
    """Read the footer of a Parquet file. Raises: OSError, ArrowException."""
    with open_input(file) as source:
        return pq.read_metadata(source)
