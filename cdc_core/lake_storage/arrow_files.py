"""Opens files of the lake for Arrow. `place` does without Arrow, because the settings import it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from cdc_core.lake_storage.object_place import ObjectPlace, ObjectReader, ObjectWriter
from cdc_core.lake_storage.place import LakePlace

_FILES = LocalFileSystem()


def open_input(file: LakePlace) -> pa.NativeFile:
    """Open a file, so that Arrow can read any part of it. Raises: OSError."""
    if isinstance(file, ObjectPlace):
        return pa.PythonFile(ObjectReader(file), mode="r")
    return _FILES.open_input_file(file.uri)


@contextmanager
def open_output(file: LakePlace) -> Iterator[pa.NativeFile]:
    """Open a new file for Arrow to write; it is whole after the block. Raises: OSError.

    If the block raises an error, a part of the file may be left.
    """
    if not isinstance(file, ObjectPlace):
        with _FILES.open_output_stream(file.uri, compression=None) as stream:
            yield stream
        return
    new = file.create()
    try:
        with pa.PythonFile(ObjectWriter(new), mode="w") as stream:
            yield stream
        new.finish()
    finally:
        new.discard()


def read_footer(file: LakePlace) -> pq.FileMetaData:
    """Read the footer of a Parquet file. Raises: OSError, ArrowException."""
    with open_input(file) as source:
        return pq.read_metadata(source)
