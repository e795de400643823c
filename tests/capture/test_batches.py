"""A batch's rows are sorted by table and position, however long those are that are in order."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdc_core.capture.batches import Batch, Block, Entry, Runs, Transactions
from cdc_core.layout import CHANGES_SCHEMA, DECODED_SCHEMA
from cdc_core.vocabulary import Operation


def block(table: str, transaction: int, *, first_seq: int, rows: int) -> Block:
    runs = Runs()
    runs.add(transaction, first_seq, rows)
    decoded = [
        {"table": table, "op": "read", "values": [f"{transaction} {first_seq + n}", None]}
        for n in range(rows)
    ]
    return Block(pa.RecordBatch.from_pylist(decoded, schema=DECODED_SCHEMA), runs)


@pytest.mark.parametrize("rows", [1, 2000])
def test_rows_stand_by_table_and_position(rows: int) -> None:
    transactions = Transactions()
    for number in range(3):
        transactions.add(commit_lsn=10 * number, end_lsn=10 * number + 8, xid=7, committed_at_us=5)
    batch = Batch(
        blocks=(
            block("b", 0, first_seq=1, rows=rows),
            block("a", 1, first_seq=0, rows=1),
            block("b", 1, first_seq=1, rows=rows),
            block("a", 1, first_seq=1 + rows, rows=rows),
            block("b", 2, first_seq=1, rows=rows),
        ),
        entries=(
            Entry(transaction=0, seq=0, operation=Operation.MARK, detail="{}"),
            Entry(transaction=2, seq=0, operation=Operation.TRUNCATE, table="b"),
        ),
        transactions=transactions,
        relations=(),
        size=0,
    )
    table = batch.to_table(1)
    table.validate(full=True)
    assert table.schema == CHANGES_SCHEMA
    found = table.select(["table", "commit_lsn", "seq", "op", "values"]).to_pylist()
    assert len(found) == 4 * rows + 3
    # Tables by their first row, marks before them all.
    tables = [None, "b", "a"]
    assert found == sorted(
        found, key=lambda row: (tables.index(row["table"]), row["commit_lsn"], row["seq"])
    )
    for row in found:
        if row["op"] == "read":
            assert row["values"] == [f"{row['commit_lsn'] // 10} {row['seq']}", None]
