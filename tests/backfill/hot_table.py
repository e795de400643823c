"""A table under eight writers at full speed, read by a backfill, and by the stream alone.

The stream alone began before the table had a row, so its log is the table at every LSN. The other
began when the rows were there. At each of its watermarks, what was read must be what the stream
alone has at that LSN.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable

from tests.child_process import ChildProcess
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.walgate_command import run_walgate

TABLE = "public.hot"
_TABLE = "create table hot (id bigint primary key, n int, note text)"
_MOVE = """
create function move(a bigint, b bigint) returns void language plpgsql as $$
begin
  update hot set id = b, n = n + 1 where id = a;
exception when unique_violation then null;
end $$;
"""
_SCRIPTS = {
    "updated": (4, "update hot set n = n + 1 where id = :k;"),
    "deleted": (2, "delete from hot where id = :k;"),
    "inserted": (
        3,
        "insert into hot values (:k, 0, 'again') on conflict (id) do update set n = hot.n + 1;",
    ),
    "moved": (1, "select move(:k, :m);"),
}
_COLUMNS = ["epoch", "commit_lsn", "seq", "op", "table", "values", "old_values", "detail"]


class Entry(NamedTuple):
    """An entry of the log that concerns the table, or a mark."""

    epoch: int
    commit_lsn: int
    seq: int
    op: str
    table: str | None
    values: list[str | None] | None
    old_values: list[str | None] | None
    detail: str | None


@dataclass
class Difference:
    """A key that differs after a watermark, and what either log has of it."""

    commit_lsn: int
    key: int
    read: list[str | None] | None
    streamed: list[str | None] | None


def lay(pipeline: Pipeline, rows: int) -> Path:
    """Make the table and its rows; return the folder of the pipeline without a backfill.

    The lake of that pipeline is in this folder, wherever the lakes of the run are.
    """
    database, streamed = pipeline.database, pipeline.folder / "streamed"
    streamed.mkdir()
    file = pipeline.folder / "walgate.toml"
    text = file.read_text()
    lines = (line for line in text.splitlines() if not line.startswith("storage_options"))
    local = ('root = "lake"' if line.startswith("root =") else line for line in lines)
    (streamed / "walgate.toml").write_text("\n".join(local))
    database.execute(_TABLE)
    database.execute(_MOVE)
    database.execute(f"insert into hot select i, 0, 'old' from generate_series(1, {rows}) i")
    database.execute("vacuum analyze hot")
    slot = f"{pipeline.slot}_after"
    database.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
    file.write_text(text.replace(f'slot = "{pipeline.slot}"', f'slot = "{slot}"'))
    return streamed


@contextmanager
def writing(
    database: Database, folder: Path, *, keys: int, seed: int, rate: int | None = None
) -> Iterator[ChildProcess]:
    """Have eight writers change the table while a block runs: `rate` times a second, or at will."""
    server = database.server
    files = []
    for name, (weight, statement) in _SCRIPTS.items():
        file = folder / f"{name}.sql"
        file.write_text(f"\\set k random(1, {keys})\n\\set m random(1, {keys})\n{statement}\n")
        file.chmod(0o644)
        files.append(f"--file={file}@{weight}")
    child = ChildProcess(
        [
            server.bin("pgbench"),
            *("-h", str(server.socket_folder), "-p", str(server.port), "-U", "postgres"),
            *("-n", "-c", "8", "-T", "3600", f"--random-seed={seed}", *files),
            *(() if rate is None else (f"--rate={rate}",)),
            database.name,
        ],
        log=folder / "pgbench.log",
    )
    try:
        yield child
        assert child.is_running, f"the writers ended by themselves:\n{child.output()}"
    finally:
        if child.is_running:
            child.stop(signal.SIGTERM)


@contextmanager
def pausing(writers: ChildProcess) -> Iterator[None]:
    """Have the writers stand still while a block runs, which has the machine to itself."""
    writers.send(signal.SIGSTOP)
    try:
        yield
    finally:
        writers.send(signal.SIGCONT)


def stage_stream(streamed: Path) -> None:
    """Stage all that the stream alone has."""
    answer = run_walgate("replicate", "--until-current", folder=streamed)
    assert answer.exit_code == 0, answer


def compare(read: Path, streamed: Path) -> tuple[int, list[Difference]]:
    """Follow both logs; give how many watermarks there were, and what differs after any of them."""
    theirs = FoldedLog(streamed)
    ours = FoldedLog(read)
    found: list[Difference] = []
    chunks = 0
    while (said := ours.go_to_chunk()) is not None:
        chunks += 1
        theirs.go_to(ours.commit_lsn)
        low, high = (None if said[end] is None else int(said[end][0]) for end in ("low", "high"))
        found += _compare(ours, theirs, low, high)
    theirs.go_to(ours.commit_lsn)
    return chunks, found + _compare(ours, theirs, None, None)


def _compare(
    ours: FoldedLog, theirs: FoldedLog, low: int | None, high: int | None
) -> list[Difference]:
    most = max((*ours.rows, *theirs.rows)) if high is None else high
    return [
        Difference(ours.commit_lsn, key, read, streamed)
        for key in range(0 if low is None else low + 1, most + 1)
        if (read := ours.values(key)) != (streamed := theirs.values(key))
    ]


class FoldedLog:
    """What a log leaves of the table, up to some LSN."""

    def __init__(self, root: Path) -> None:
        self.rows: dict[int, tuple[tuple[int, int, int], list[str | None]]] = {}
        self.commit_lsn = 0
        self._entries = _read_entries(root)
        self._next: Entry | None = next(self._entries, None)

    def values(self, key: int) -> list[str | None] | None:
        row = self.rows.get(key)
        return None if row is None else row[1]

    def go_to(self, commit_lsn: int) -> None:
        """Fold every transaction up to the one that commits there."""
        while self._next is not None and self._next.commit_lsn <= commit_lsn:
            self._fold(self._next)
            self._next = next(self._entries, None)

    def go_to_chunk(self) -> dict[str, Any] | None:
        """Fold to the end of the next transaction that brought a chunk; None at the log's end."""
        while self._next is not None:
            self.commit_lsn = self._next.commit_lsn
            said: dict[str, Any] | None = None
            while self._next is not None and self._next.commit_lsn == self.commit_lsn:
                if self._next.op == "mark":
                    told = json.loads(self._next.detail or "null")
                    is_chunk = isinstance(told, dict) and told.get("step") == "watermark"
                    said = told if is_chunk and told["state"] == "staged" else said
                self._fold(self._next)
                self._next = next(self._entries, None)
            if said is not None:
                return said
        return None

    def _fold(self, entry: Entry) -> None:
        position = (entry.epoch, entry.commit_lsn, entry.seq)
        if entry.op == "mark":
            return
        if entry.op == "sweep":
            start = tuple(json.loads(entry.detail or "{}")["start"])
            for key in [key for key, (at, _) in self.rows.items() if at < start]:
                del self.rows[key]
            return
        if entry.old_values is not None:
            self.rows.pop(_read_key(entry.old_values), None)
        if entry.values is not None:
            self.rows[_read_key(entry.values)] = (position, entry.values)


def _read_key(values: list[str | None]) -> int:
    assert values[0] is not None
    return int(values[0])


def _read_entries(root: Path) -> Iterator[Entry]:
    """The table's entries and the marks, in order of position."""
    log = DeltaTable(root / "staging" / "changes").to_pyarrow_table(columns=_COLUMNS)
    order = [("epoch", "ascending"), ("commit_lsn", "ascending"), ("seq", "ascending")]
    for batch in log.sort_by(order).to_batches(max_chunksize=50_000):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            entry = Entry(*row)
            if entry.table == TABLE or entry.op == "mark":
                yield entry
