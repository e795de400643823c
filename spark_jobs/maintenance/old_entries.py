"""Removes the files of a target of entries whose entries are all older than `append_retention`.

The commit keeps the bound of the target, and extends the version that it names, so it is refused if
a merge came between. The files themselves go after the grace, as those of every table do.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cdc_core.lake_storage.arrow_files import read_footer
from cdc_core.lake_storage.place import LakePlace
from cdc_core.targets import Target
from spark_jobs.delta.abandoned_attempts import clear_attempts
from spark_jobs.delta.committer import FileChange, commit_files
from spark_jobs.delta.direct_parquet import is_plain
from spark_jobs.fold.plan import has_table_schema
from spark_jobs.lake.durability import require_durable
from spark_jobs.lake.lake import Epoch, Lake, find_bound, open_table

_TIME = "_committed_at"


def remove_old_entries(lake: Lake, target: Target, epochs: list[Epoch], *, now: datetime) -> int:
    """Remove the files of a target that have only old entries; return how many.

    A table to which another program gave features stays as it is.
    Raises: MergeError if somebody else keeps the target's lock, or if the storage refuses;
    DeltaError if another commit came between.
    """
    life_s = lake.find_append_retention(target.table)
    if life_s is None:
        return 0
    folder, oldest_kept = lake.locate_target(target), now - timedelta(seconds=life_s)
    table = open_table(folder)
    if table is None or not _list_old(folder, table, oldest_kept):
        return 0
    with lake.lock_table(str(target), jvm=None):
        clear_attempts(folder, epochs)
        table = open_table(folder)
        bound = None if table is None else find_bound(table, epochs)
        old = [] if table is None else _list_old(folder, table, oldest_kept)
        if table is None or bound is None or not old:
            return 0
        # A merge that died may have left the newest commit, and the disk may have refused it.
        newest = table.version()
        require_durable(folder, above=newest - 1, through=newest, left=newest)
        epoch = next(epoch for epoch in epochs if epoch.number == bound.epoch)
        change = FileChange(removed=old)
        # The lost values that are left are not counted; the next merge counts them.
        commit_files(folder, table, change, epoch=epoch, reached=bound, lossy=None)
    return len(old)


def _list_old(folder: LakePlace, table: DeltaTable, time: datetime) -> list[str]:
    """The files of a table whose entries were all committed before a time, by name."""
    if not has_table_schema(table) or not is_plain(table):
        return []
    names: list[str] = pa.table(table.get_add_actions())["path"].to_pylist()
    newest = {name: _find_newest(read_footer(folder / unquote(name))) for name in names}
    return [name for name, at in newest.items() if at is not None and at < time]


def _find_newest(footer: pq.FileMetaData) -> datetime | None:
    """The newest time at which an entry of a file was committed; None if it is not known."""
    found: list[datetime] = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        columns = (group.column(i) for i in range(group.num_columns))
        column = next((one for one in columns if one.path_in_schema == _TIME), None)
        if column is None or column.statistics is None or not column.statistics.has_min_max:
            return None
        found.append(column.statistics.max)
    return max(found, default=None)
