"""How fast a backlog is drained: pg_recvlogical, capture with a null sink, capture to staging.

`python -m tests.bench.receiver [--rows N] [--per-transaction N] [--rounds N]` prints rows a second,
the ratio to pg_recvlogical of the same round, CPU time of the client a row with its start, and its
peak memory. Each run drains a fresh copy of one slot over TCP, in turn.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from cdc_core.capture.loop import Bound
from cdc_core.capture.run import run_capture
from cdc_core.settings import load_settings
from cdc_core.staging.log import Epoch
from cdc_core.staging.parts import Part, PartWriter
from cdc_core.vocabulary import Lsn, Relation, TransactionId
from tests.postgres_server import PostgresServer, find_binaries

TABLE = """
create table bench (id bigint primary key, a int, b smallint, c text, d numeric(18,4), e boolean,
                    f timestamptz, g date, h double precision, i jsonb)
"""
ROW = """
select n, (n * 7919::bigint) % 1000000, n % 30000, 'customer ' || md5(n::text), (n % 1000000) / 7.0,
       n % 2 = 0, '2026-01-01'::timestamptz + n * interval '1 second',
       '2026-01-01'::date + n % 3000,
       case when n % 20 = 0 then null else n / 3.0 end,
       jsonb_build_object('k', n, 's', md5((n + 1)::text))
"""


class NullLog:
    """A log that drops every finished batch."""

    def __init__(self, spool: Path) -> None:
        """Hold nothing."""
        self._spool = spool
        self._epoch: Epoch | None = None
        self.rows = 0

    def read_epoch(self) -> Epoch | None:
        """The epoch that was begun."""
        return self._epoch

    def begin_epoch(self, epoch: Epoch) -> None:
        """Keep it."""
        self._epoch = epoch

    def latest_relation(self, oid: int) -> Relation | None:
        """None is stored."""
        del oid
        return None

    def empty_spool(self) -> None:
        """There is none."""

    def read_staged(self, epoch: Epoch) -> Lsn:
        """Nothing is staged."""
        return epoch.first_lsn

    def read_transactions(self, epoch: Epoch, *, since: Lsn) -> Iterator[TransactionId]:
        """None."""
        del epoch, since
        return iter(())

    def store_relations(self, relations: Iterable[tuple[Relation, Lsn]], *, epoch: int) -> None:
        """Drop them."""

    def write_part(self, changes: pa.Table) -> Part:
        """Count the rows and drop them."""
        self.rows += changes.num_rows
        return Part(Path("dropped"), changes.num_rows, {})

    def open_spool(self) -> PartWriter:
        """A part that is never appended."""
        return PartWriter(self._spool)

    def append(self, parts: Sequence[Part], *, epoch: Epoch, end_lsn: Lsn) -> None:
        """Nothing lands."""

    def has_landed(self, parts: Sequence[Part]) -> bool:
        """Never."""
        del parts
        return False


def _fill(server: PostgresServer, rows: int, per_transaction: int) -> None:
    """Write 70 % inserts, 20 % updates and 10 % deletes in transactions of one size."""
    server.execute(
        "bench",
        f"""
        create procedure fill(total int, size int) language plpgsql as $$
        declare done int := 0; first int := 0; n_ins int; n_upd int; n_del int;
        begin
          while done < total loop
            if size >= 10 then
              n_ins := size * 7 / 10; n_upd := size * 2 / 10; n_del := size - n_ins - n_upd;
            else
              n_ins := (done % 10 < 7)::int; n_upd := (done % 10 in (7, 8))::int;
              n_del := (done % 10 = 9)::int;
            end if;
            insert into bench {ROW}
              from generate_series(first + 1, first + n_ins) n;
            update bench set a = a + 1, c = c || '!' where id in
              (select first + n_ins - k from generate_series(1, n_upd) k);
            delete from bench where id in
              (select first + n_ins - n_upd - k from generate_series(1, n_del) k);
            first := first + n_ins; done := done + size;
            commit;
          end loop;
        end $$""",
    )
    server.execute("bench", f"call fill({rows}, {per_transaction})")


def _capture(config: Path, sink: str, answer: multiprocessing.SimpleQueue[float]) -> None:
    settings = load_settings(config, {})
    log = NullLog(config.parent)
    bound = Bound(threading.Event(), until_current=True)
    started = time.perf_counter()
    if sink == "null":
        run_capture(settings, bound, open_log=lambda _: log)
    else:
        run_capture(settings, bound)
    answer.put(time.perf_counter() - started)
    answer.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _drain_by_program(server: PostgresServer, slot: str) -> tuple[float, float]:
    """Seconds and peak MB of pg_recvlogical."""
    end = server.query("bench", "select pg_current_wal_lsn()::text")[0][0]
    options = ("proto_version=1", "publication_names=walgate", "messages=true")
    command = [str(server.bin("pg_recvlogical")), "-d", server.tcp_dsn("bench"), "-S", slot]
    command += ["--start", "-f", "/dev/null", "-n", "-E", end]
    for option in options:
        command += ["-o", option]
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started, 0.0


def _drain_by_capture(server: PostgresServer, slot: str, sink: str) -> tuple[float, float]:
    """Seconds and peak MB of a capture in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "walgate.toml"
        config.write_text(
            f'[source]\ndsn = "{server.tcp_dsn("bench")}"\nslot = "{slot}"\n'
            '[lake]\nroot = "lake"\n[redis]\nurl = "redis://127.0.0.1:1/0"\n'
        )
        answer = context.SimpleQueue()
        child = context.Process(target=_capture, args=(config, sink, answer))
        child.start()
        child.join()
        assert child.exitcode == 0
        return answer.get(), answer.get()


def _run(server: PostgresServer, mode: str, number: int) -> tuple[float, float, float]:
    """Drain a copy of the slot; seconds, CPU seconds of the client, peak MB."""
    slot = f"copy_{mode}_{number}"
    server.execute("bench", f"select pg_copy_logical_replication_slot('origin', '{slot}')")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    if mode == "recvlogical":
        seconds, peak = _drain_by_program(server, slot)
    else:
        seconds, peak = _drain_by_capture(server, slot, mode)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    server.execute("bench", f"select pg_drop_replication_slot('{slot}')")
    return seconds, cpu, peak


def main() -> None:
    """Run the rounds and print a line for each mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--per-transaction", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    binaries = find_binaries(18)
    assert binaries is not None
    server = PostgresServer(18, binaries, shared_buffers="512MB")
    server.start()
    try:
        server.create_database("bench")
        server.execute("bench", TABLE)
        server.execute("bench", "create publication walgate for table bench")
        server.execute("bench", "select pg_create_logical_replication_slot('origin', 'pgoutput')")
        _fill(server, chosen.rows, chosen.per_transaction)
        modes = ("recvlogical", "null", "staged")
        for mode in modes:
            _run(server, mode, 0)
        found: dict[str, list[tuple[float, float, float]]] = {mode: [] for mode in modes}
        for number in range(1, chosen.rounds + 1):
            for mode in modes:
                found[mode].append(_run(server, mode, number))
        for mode in modes:
            speed = [chosen.rows / seconds for seconds, _, _ in found[mode]]
            ratio = [
                theirs[0] / ours[0]
                for theirs, ours in zip(found["recvlogical"], found[mode], strict=True)
            ]
            cpu = [1e6 * cpu / chosen.rows for _, cpu, _ in found[mode]]
            print(
                f"{mode:12} {min(speed):9.0f} {statistics.median(speed):9.0f} {max(speed):9.0f}"
                f" rows/s  ratio {min(ratio):.2f} {statistics.median(ratio):.2f} {max(ratio):.2f}"
                f"  client {statistics.median(cpu):.2f} us/row  peak {found[mode][-1][2]:.0f} MB"
            )
    finally:
        server.remove()


if __name__ == "__main__":
    main()
