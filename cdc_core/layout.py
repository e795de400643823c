"""The columns of the log and its ledgers, as Arrow schemas.

`table` is the quoted name (`str(TableName)`); it is null for marks. LSNs are 64-bit integers.
`values` are Postgres' text forms, in the order of the relation's columns. `unchanged` has the
indexes of unchanged TOAST values, which are null in `values`. `old_values` is the old tuple as
Postgres sent it: the key columns, or the whole row under replica identity full. `detail` is JSON.
"""

from __future__ import annotations

import pyarrow as pa

# The `end_lsn` of a transaction that still arrives in the spool. No LSN is negative.
END_LSN_NOT_KNOWN = -0x5741_4C47_4154_4521

_TEXTS = pa.list_(pa.field("element", pa.string()))

# The columns that decoding gives. The other columns of a change come from its transaction.
DECODED_FIELDS = (
    pa.field("table", pa.string()),
    pa.field("relation_version", pa.int64()),
    pa.field("op", pa.string(), nullable=False),
    pa.field("values", _TEXTS),
    pa.field("unchanged", pa.list_(pa.field("element", pa.int32()))),
    pa.field("old_values", _TEXTS),
    pa.field("detail", pa.string()),
)
DECODED_SCHEMA = pa.schema(DECODED_FIELDS)

CHANGES_SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int32(), nullable=False),
        pa.field("commit_lsn", pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("end_lsn", pa.int64(), nullable=False),
        pa.field("xid", pa.int64(), nullable=False),
        pa.field("committed_at", pa.timestamp("us", tz="UTC"), nullable=False),
        # The greatest `committed_at` up to this transaction, over all epochs. It never decreases.
        pa.field("log_time", pa.timestamp("us", tz="UTC"), nullable=False),
        *DECODED_FIELDS,
    ]
)

RELATIONS_SCHEMA = pa.schema(
    [
        pa.field("relation_version", pa.int64(), nullable=False),
        pa.field("epoch", pa.int32(), nullable=False),
        # The commit LSN of the announcement, and its order within the transaction.
        pa.field("first_lsn", pa.int64(), nullable=False),
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("oid", pa.int64(), nullable=False),
        pa.field("schema", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("identity", pa.string(), nullable=False),
        pa.field(
            "columns",
            pa.list_(
                pa.field(
                    "element",
                    pa.struct(
                        [
                            pa.field("name", pa.string()),
                            pa.field("attnum", pa.int32()),
                            pa.field("type_oid", pa.int64()),
                            pa.field("type_modifier", pa.int32()),
                            pa.field("type_name", pa.string()),
                            pa.field("not_null", pa.bool_()),
                            pa.field("key_ordinal", pa.int32()),
                            pa.field("in_identity", pa.bool_()),
                            pa.field("missing_value", pa.string()),
                            pa.field("has_default", pa.bool_()),
                            pa.field("base_oid", pa.int64()),
                            pa.field("base_modifier", pa.int32()),
                            pa.field("catalog_xid", pa.int64()),
                            pa.field("hashed_by", pa.string()),
                        ]
                    ),
                )
            ),
        ),
        pa.field("published", pa.string()),
        pa.field("storage", pa.int64()),
        pa.field("rewritten", pa.int64(), nullable=False),
        pa.field("left_out", pa.list_(pa.field("element", pa.int32())), nullable=False),
    ]
)

EPOCHS_SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int32(), nullable=False),
        pa.field("system_id", pa.string(), nullable=False),
        pa.field("timeline", pa.int32(), nullable=False),
        pa.field("slot", pa.string(), nullable=False),
        pa.field("publication", pa.string(), nullable=False),
        pa.field("first_lsn", pa.int64(), nullable=False),
        pa.field("started_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)

# Each chunk that the log has taken has a row. Each change of a backfill's state has a row without a
# chunk. Every row has the start position of the backfill. The first row of a backfill also has its
# bounds, both inclusive, and its condition.
BACKFILLS_SCHEMA = pa.schema(
    [
        pa.field("backfill_id", pa.string(), nullable=False),
        pa.field("table", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("epoch", pa.int32(), nullable=False),
        pa.field("start_lsn", pa.int64(), nullable=False),
        pa.field("start_seq", pa.int64(), nullable=False),
        pa.field("chunk", pa.int32()),
        pa.field("from_key", _TEXTS),
        pa.field("to_key", _TEXTS),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("stale_dropped", pa.int64()),
        pa.field("staged_lsn", pa.int64()),
        pa.field("seconds", pa.float64()),
        pa.field("condition", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("number", pa.int64(), nullable=False),
    ]
)

_RANGE = pa.struct(
    [
        pa.field("from", pa.int64()),
        pa.field("to", pa.int64()),
        pa.field("source_rows", pa.int64()),
        pa.field("lake_rows", pa.int64()),
        pa.field("keys", pa.int64()),
        pa.field("holes", pa.int64()),
    ]
)

# Each table of each verification has a row. `ordering` says what ordinals are. The verification
# compared those from `from_ordinal` to below `to_ordinal`; null means no bound.
VERIFICATIONS_SCHEMA = pa.schema(
    [
        pa.field("table", pa.string(), nullable=False),
        pa.field("epoch", pa.int32(), nullable=False),
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("result", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("coverage", pa.float64()),
        pa.field("source_rows", pa.int64()),
        pa.field("lake_rows", pa.int64()),
        pa.field("source_checksum", pa.string()),
        pa.field("lake_checksum", pa.string()),
        pa.field("ranges", pa.list_(pa.field("element", _RANGE))),
        pa.field("healed", pa.bool_()),
        pa.field("seconds", pa.float64()),
        pa.field("ordering", pa.string()),
        pa.field("from_ordinal", pa.int64()),
        pa.field("to_ordinal", pa.int64()),
        pa.field("number", pa.int64(), nullable=False),
    ]
)

MAINTENANCE_SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("cuts", pa.int64(), nullable=False),
        pa.field("dropped_cuts", pa.int64(), nullable=False),
        pa.field("oldest_cut_epoch", pa.int32()),
        pa.field("oldest_cut_lsn", pa.int64()),
        pa.field("oldest_cut_at", pa.timestamp("us", tz="UTC")),
        pa.field("floor_epoch", pa.int32()),
        pa.field("floor_lsn", pa.int64()),
        pa.field("holder", pa.string()),
        pa.field("files", pa.int64(), nullable=False),
        pa.field("needed_bytes", pa.int64(), nullable=False),
        pa.field("log_bytes", pa.int64(), nullable=False),
        pa.field("young_bytes", pa.int64(), nullable=False),
        pa.field("removed_files", pa.int64(), nullable=False),
        pa.field("removed_bytes", pa.int64(), nullable=False),
        pa.field("compacted_tables", pa.int64(), nullable=False),
        pa.field("problems", _TEXTS),
        pa.field("number", pa.int64(), nullable=False),
    ]
)
