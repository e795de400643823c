"""A log of random histories with the truth at each of its LSNs, and the lake's tables as texts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame

from cdc_core.vocabulary import Column, Lsn, Relation, ReplicaIdentity, TableName
from spark_jobs.lake.lake import Bound
from tests.spark.log_writer import LogWriter
from tests.spark.oracle import HOLE
from tests.spark.source_model import SourceTable, run_transaction

Truth = dict[tuple[str, ...], list[str | None]]
TYPE_OIDS = {"k": 23, "n": 23, "added": 23}
TEXT_OID, NUMERIC_OID = 25, 1700


@dataclass
class RecordedLog:
    """A log under construction, and each table as it truly was at each end LSN."""

    writer: LogWriter
    rng: random.Random
    tables: list[SourceTable]
    truths: dict[str, dict[int, Truth]] = field(default_factory=dict)
    logged: dict[str, list[list[dict[str, Any]]]] = field(default_factory=dict)
    missing: dict[str, str | None] = field(default_factory=dict)

    def record(self, transactions: int, *, keys: int = 30, truncates: float = 0.004) -> None:
        """Add random transactions, each on some of the tables."""
        for _ in range(transactions):
            chosen = [t for t in self.tables if self.rng.random() < 0.7] or self.tables[:1]
            entries: list[tuple[Relation, dict[str, Any]]] = []
            for table in chosen:
                made = run_transaction(self.rng, table, keys=keys, truncates=truncates)
                relation = self.announce(table)
                rows = [
                    {
                        "op": entry.op,
                        "values": entry.values,
                        "unchanged": entry.unchanged,
                        "old_values": entry.old_values,
                    }
                    for entry in made
                ]
                self.logged.setdefault(table.name, []).append(rows)
                entries += [(relation, row) for row in rows]
            end = self.writer.add(entries)
            for table in self.tables:
                self.truths.setdefault(table.name, {})[end] = table.truth()

    def announce(self, table: SourceTable) -> Relation:
        """The relation of a table as it is now."""
        columns = []
        for i, name in enumerate(table.columns):
            oid = TYPE_OIDS.get(name, TEXT_OID)
            if name == table.keys[-1] and table.key_form != "{}":
                oid = NUMERIC_OID if table.key_form == "{}.50" else TEXT_OID
            is_key = name in table.keys
            columns.append(
                Column(
                    name,
                    i + 1,
                    oid,
                    -1,
                    "type",
                    is_key,
                    table.keys.index(name) + 1 if is_key else None,
                    is_key or table.identity == "f",
                    self.missing.get(name),
                    self.missing.get(name) is not None,
                )
            )
        return Relation(
            16384 + sum(table.name.encode()),
            TableName("public", table.name),
            ReplicaIdentity(table.identity),
            tuple(columns),
        )

    def bound(self, lsn: int) -> Bound:
        """An LSN in the log's epoch."""
        return Bound(self.writer.epoch, Lsn(lsn))


def read_texts(rows: DataFrame, table: SourceTable) -> Truth:
    """A table's rows by key, as texts in the order of the source's columns; holes are marked."""
    found: Truth = {}
    for row in rows.collect():
        raw = row["_raw"] or {}
        texts = [raw.get(name, _text(row[name])) for name in table.columns]
        key = tuple(str(texts[table.columns.index(name)]) for name in table.keys)
        assert key not in found, "one row a key"
        for hole in row["_holes"] or ():
            assert texts[table.columns.index(hole)] is None
            texts[table.columns.index(hole)] = HOLE
        found[key] = texts
    return found


def _text(value: object) -> str | None:
    if isinstance(value, Decimal):
        return format(value.quantize(Decimal("0.01")), "f")
    return None if value is None else str(value)
