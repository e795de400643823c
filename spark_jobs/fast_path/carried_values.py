"""Gives arriving rows the values that the source did not send, from the rows of the table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.lake_storage.place import LakePlace
from spark_jobs.fast_path.arrow_fold import ArrowOutcome, CarriedValues
from spark_jobs.fast_path.key_search import KeySearch, Refusal, TableFile, read_groups

# The columns in which a row keeps texts and names beside its values, by column.
_RAW, _HOLES = "_raw", "_holes"


def fill_carried(
    outcome: ArrowOutcome,
    folder: LakePlace,
    files: Sequence[TableFile],
    key: Sequence[str],
    *,
    max_bytes: int,
    max_held: int,
) -> pa.Table:
    """Return the arriving rows of a fold with their carried values; `files` is the whole table.

    The files that have the values may have `max_bytes` together, and the values `max_held` bytes.
    Raises: Refusal, also if the table has no row with a carried value, or several.
    """
    rows = outcome.rows
    if not outcome.carried:
        return rows
    roots = pa.concat_tables([one.roots for one in outcome.carried])
    roots = roots.group_by([*key], use_threads=False).aggregate([]).select([*key])
    columns = [one.column for one in outcome.carried]
    names = [*key, *columns, _RAW, _HOLES]
    wanted = pa.schema([rows.schema.field(name) for name in dict.fromkeys(names)])
    search = KeySearch(roots)
    sources = _find_files(search, folder, files, max_bytes=max_bytes)
    held = _read_rows(search, sources, wanted, rows.schema, max_held=max_held)
    distinct = held.group_by([*key], use_threads=False).aggregate([]).num_rows
    if not held.num_rows == distinct == roots.num_rows:
        raise Refusal("a value was not sent, and the table has no row with its key, or several")
    if _has_beside(held, columns):
        raise Refusal("a value was not sent, and its row lacks values or keeps its text in `_raw`")
    found = KeySearch(held.select([*key]))
    for one in outcome.carried:
        rows = _fill_column(rows, one, held, found)
    return rows


def _has_beside(held: pa.Table, columns: Sequence[str]) -> bool:
    """Whether a row lacks a value, or keeps a text beside the value of one of some columns."""
    raw = held[_RAW].combine_chunks().drop_null()
    has_text = pc.is_in(raw.keys, pa.array(columns, pa.string()))
    return held[_HOLES].null_count < held.num_rows or bool(pc.any(has_text, min_count=0).as_py())


def _find_files(
    search: KeySearch, folder: LakePlace, files: Sequence[TableFile], *, max_bytes: int
) -> list[LakePlace]:
    """Find the files of a table that have one of the keys."""
    found: list[LakePlace] = []
    size = 0
    for file in files:
        path = folder / file.name
        if not (search.may_be_in(file) and search.is_in(path)):
            continue
        size += file.size
        if file.has_deletions:
            raise Refusal("a file with a changed key has deleted rows")
        if size > max_bytes:
            raise Refusal(f"values that were not sent are in files of more than {max_bytes} bytes")
        found.append(path)
    return found


def _read_rows(
    search: KeySearch,
    files: Sequence[LakePlace],
    wanted: pa.Schema,
    all_columns: pa.Schema,
    *,
    max_held: int,
) -> pa.Table:
    """Read some columns of the rows that have one of the keys."""
    held, size = [wanted.empty_table()], 0
    for file in files:
        for rows in read_groups(file, wanted, all_columns=all_columns):
            taken = rows.take(search.find(rows)["_row"])
            size += taken.nbytes
            if size > max_held:
                raise Refusal("the values that were not sent do not fit in memory")
            held.append(taken)
    return pa.concat_tables(held)


def _fill_column(
    rows: pa.Table, carried: CarriedValues, held: pa.Table, found: KeySearch
) -> pa.Table:
    pairs = found.find(carried.roots)
    places = np.empty(carried.roots.num_rows, dtype=np.int64)
    places[pairs["_row"].to_numpy()] = pairs["_place"].to_numpy()
    mask = np.zeros(rows.num_rows, dtype=bool)
    mask[carried.rows] = True
    index = rows.schema.get_field_index(carried.column)
    values = held[carried.column].combine_chunks().take(pa.array(places))
    filled = pc.replace_with_mask(rows.column(index).combine_chunks(), pa.array(mask), values)
    return rows.set_column(index, rows.schema.field(index), filled)
