"""Parts: Parquet files of the log, durable on disk before a commit names them.

Only a Delta commit makes a part visible. A part that no commit names is an orphan, which readers
never see. Capture writes a transaction larger than memory to parts in the spool while it arrives.
Only its end LSN is not known then: the server sends it with the commit. Until then, the column
`end_lsn` holds a placeholder, once in the dictionary page of each row group. `seal_part` replaces
it with the end LSN, so the rows never pass through memory again.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.errors import Retry, StagingError
from cdc_core.lake_storage.local_files import NewLocalFile
from cdc_core.lake_storage.place import LakePlace
from cdc_core.layout import CHANGES_SCHEMA, END_LSN_NOT_KNOWN
from cdc_core.vocabulary import UNIX_START, Lsn, format_time

# Readers skip files by these columns only. Statistics of values would cost time and leak values.
STATISTICS_COLUMNS = ("epoch", "commit_lsn", "seq", "end_lsn", "log_time", "table")
_BOUNDED_IN_FOOTER = ["epoch", "commit_lsn", "seq", "table", "op"]
# These have few values in long runs. A dictionary of row values would be built in vain.
_DICTIONARY_COLUMNS = [
    "epoch",
    "commit_lsn",
    "end_lsn",
    "xid",
    "committed_at",
    "log_time",
    "table",
    "relation_version",
    "op",
]
# The greatest time that `datetime` can show.
_LAST_MILLISECOND = 253_402_300_799_999
# The writer keeps encoded rows in memory until their row group is complete.
_GROUP_ROWS = 20_000


class PartLost(StagingError):
    """Somebody removed a part before it was in the log. Capture must write it again."""


@dataclass(frozen=True, slots=True)
class Part:
    """A finished file, what Delta must know of it, and the bounds of its columns.

    The file is in the spool, or at its place in the log.
    """

    path: Path | LakePlace
    rows: int
    # The bounds of `log_time` are microseconds since 1970.
    bounds: dict[str, tuple[int | str | None, int | str | None]]
    sealed: bool = True
    marks: int = 0  # Rows without a table.

    def statistics(self) -> str:
        """The file's statistics as the Delta protocol writes them (section Per-file Statistics)."""
        known = {name: bound for name, bound in self.bounds.items() if bound[0] is not None}
        # Statistics have milliseconds: round the least time down and the greatest up.
        first, last = (int(time or 0) for time in known["log_time"])
        known["log_time"] = _format_time(first // 1000), _format_time((last + 999) // 1000)
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {name: low for name, (low, _) in known.items()},
                "maxValues": {name: high for name, (_, high) in known.items()},
                # A merge computes from this how much of the log is left.
                "nullCount": {"table": self.marks},
            }
        )

    def remove(self) -> None:
        """Remove the file, if it is there. No commit may name it."""
        if isinstance(self.path, LakePlace):
            self.path.remove()
        else:
            self.path.unlink(missing_ok=True)


class PartWriter:
    """Writes one part, some row groups at a time. The file is private."""

    def __init__(self, folder: Path | LakePlace) -> None:
        """Open a new file with a name that no other run uses, in the spool or in the log."""
        path = self._path = folder / f"part-{uuid.uuid4()}.parquet"
        self._file = path.create() if isinstance(path, LakePlace) else NewLocalFile(path)
        self._rows = 0
        self._marks = 0
        self._bounds: dict[str, tuple[int | str | None, int | str | None]] = {}
        self._writer = pq.ParquetWriter(
            self._file.stream,
            CHANGES_SCHEMA,
            compression={path: "NONE" if path == "end_lsn" else "SNAPPY" for path in _leaf_paths()},
            use_dictionary=_DICTIONARY_COLUMNS,
            write_statistics=_BOUNDED_IN_FOOTER,
            # Delta's log has the schema. Another copy would be a third of a small part.
            store_schema=False,
        )

    @property
    def bytes_written(self) -> int:
        """The size of the file so far."""
        return self._file.stream.tell()

    def write(self, changes: pa.Table) -> None:
        """Add row groups. Raises: OSError if the storage refuses them."""
        self._writer.write_table(changes, row_group_size=_GROUP_ROWS)
        self._rows += changes.num_rows
        self._marks += changes.column("table").null_count
        for name in STATISTICS_COLUMNS:
            column = changes.column(name)
            if name == "log_time":
                column = column.cast(pa.int64())
            bound = pc.min_max(column).as_py()
            self._bounds[name] = _widen(self._bounds.get(name), (bound["min"], bound["max"]))

    def finish(self) -> Part:
        """Close the file and make it durable."""
        self._writer.close()
        self._file.finish()
        sealed = self._bounds["end_lsn"][0] != END_LSN_NOT_KNOWN
        return Part(self._path, self._rows, self._bounds, sealed=sealed, marks=self._marks)

    def discard(self) -> None:
        """Remove the unfinished file, even on storage that takes no more bytes."""
        self._writer.is_open = False  # Otherwise it writes the footer on garbage collection.
        self._file.discard()


def write_part(folder: LakePlace, changes: pa.Table) -> Part:
    """Write changes to one durable file of the log. Raises: OSError; then no file is left."""
    writer = PartWriter(folder)
    try:
        writer.write(changes)
        return writer.finish()
    except BaseException:
        writer.discard()
        raise


def seal_part(part: Part, end_lsn: Lsn) -> Part:
    """Replace the placeholder in a file of the spool with the end LSN. Raises: StagingError."""
    assert isinstance(part.path, Path)
    placeholder, value = struct.pack("<q", END_LSN_NOT_KNOWN), struct.pack("<q", end_lsn)
    index = CHANGES_SCHEMA.get_field_index("end_lsn")
    metadata = pq.read_metadata(part.path)
    with part.path.open("r+b") as file:
        for group in range(metadata.num_row_groups):
            column = metadata.row_group(group).column(index)
            start = column.dictionary_page_offset
            file.seek(start)
            page = file.read(column.data_page_offset - start)
            if page.count(placeholder) != 1:
                raise StagingError(
                    f"spooled part {part.path.name}: expected one end LSN to fill in, found"
                    f" {page.count(placeholder)}",
                    fix="restart capture: it writes the spool again from the slot",
                    retry=Retry.LATER,
                )
            file.seek(start + page.index(placeholder))
            file.write(value)
        file.flush()
        os.fsync(file.fileno())
    bounds = {**part.bounds, "end_lsn": (int(end_lsn), int(end_lsn))}
    return replace(part, bounds=bounds, sealed=True)


def move_part(part: Part, folder: LakePlace) -> Part:
    """Move a sealed part into the log's folder, even to another file system.

    A second call does nothing.

    Raises: PartLost, OSError.
    """
    assert part.sealed
    target = folder / part.path.name
    if target.exists():
        return replace(part, path=target)
    lost = PartLost(
        f"spool file {part.path.name} was removed before capture staged it",
        fix="remove no files from [lake] spool; the server sends their changes again",
        retry=Retry.LATER,
    )
    if isinstance(part.path, LakePlace):
        raise lost
    try:
        target.receive(part.path)
    except OSError as exc:
        if part.path.exists():
            raise
        raise lost from exc
    return replace(part, path=target)


def _leaf_paths() -> list[str]:
    return [
        f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
        for field in CHANGES_SCHEMA
    ]


def _format_time(milliseconds: int) -> str:
    """A time as the Delta protocol writes it in statistics; at most the end of the year 9999."""
    time = UNIX_START + timedelta(milliseconds=min(milliseconds, _LAST_MILLISECOND))
    return format_time(time, "milliseconds")


def _widen(
    known: tuple[int | str | None, int | str | None] | None,
    added: tuple[int | str | None, int | str | None],
) -> tuple[int | str | None, int | str | None]:
    values = [value for value in (*(known or ()), *added) if value is not None]
    return (min(values), max(values)) if values else (None, None)
