"""Folds a plan to the versions that it opens, closes and confirms.

The answer depends on the log alone, and not on where rounds begin and end.

A turn ends the version that its key has. A TRUNCATE or a sweep that comes before the next turn ends
it, too. A read of a backfill that finds the row as it is ends nothing: the version gets the read's
position, and the values that it lacked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cdc_core.vocabulary import Operation
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.rows import null_if_empty, select_values, table_fields
from spark_jobs.history.holes import LACKED, fill_earlier
from spark_jobs.history.turns import HistorySteps, list_turns
from spark_jobs.history.versions import CLOSING, OPENING, list_fields, name_moment
from spark_jobs.log.reading import POSITION
from spark_jobs.schema.evolution import TableSchema

# Whether a version was in the history before the plan.
WAS_STORED = "_was_stored"
_REMOVALS = (Operation.TRUNCATE, Operation.SWEEP)
_ENDING_TYPE = (
    "struct<epoch:int,commit_lsn:bigint,seq:bigint,end_lsn:bigint,log_time:timestamp,op:string>"
)


def fold_versions(
    history: HistorySteps, versions: DataFrame | None, *, has_all_changes: bool
) -> DataFrame:
    """Fold the steps of a plan onto the open versions that it touches; None if there are none.

    If not `has_all_changes`, the log lacks changes between the versions and the plan. Then no row
    takes a value from a version, and no version one from a row.
    Shape: the columns of the history; `WAS_STORED`, whether the version is one of `versions`; and
    `LACKED`. Each of `versions` is there as it is afterwards, beside the new ones.
    """
    names = history.names
    key = Window.partitionBy(*names).orderBy(F.col("_is_stored").desc(), "_at")
    turns = list_turns(history, versions, has_all_changes=has_all_changes)
    turns = _find_removals(turns, history)
    turns = _drop_idle(turns, key, has_all_changes=has_all_changes)
    turns = _find_endings(turns, key, has_all_changes=has_all_changes)
    has_reads = history.plan.has(Operation.READ)
    if has_reads:
        turns = _mark_confirmations(turns, history.schema, key)
    else:
        turns = turns.withColumn("_confirms", F.lit(False))
    found = _join_confirmations(turns.where("_brings"), key, has_older=bool(history.dropped))
    if has_reads:
        found = fill_earlier(found, names)
    return _finish(found, history)


def _find_removals(turns: DataFrame, history: HistorySteps) -> DataFrame:
    """Add `_removal`: the first TRUNCATE or sweep after a turn that removes the row it left."""
    removal = history.removals.find("w", history.schema, None)
    position = F.struct(*(removal[name].alias(name) for name in POSITION))
    removed = F.when(F.col("_brings") & removal.isNotNull(), position)
    return turns.alias("w").select("w.*", removed.alias("_removal"))


def _drop_idle(turns: DataFrame, key: WindowSpec, *, has_all_changes: bool) -> DataFrame:
    """Drop turns of a key that had no row before and has none after: a row came and went."""
    left = F.when(_is_removed(key), False).otherwise(F.col("_stays"))
    if not has_all_changes:
        left = F.when(~F.col("_is_stored"), left)
    before = key.rowsBetween(Window.unboundedPreceding, -1)
    known = turns.withColumn("_left", left)
    had = F.coalesce(F.last("_left", ignorenulls=True).over(before), F.lit(False))
    known = known.withColumn("_had", had)
    return known.where(F.col("_stays").isNotNull() | F.col("_had")).drop("_left", "_had")


def _is_removed(key: WindowSpec) -> Expression:
    """Whether a TRUNCATE or a sweep removes the row that a turn left, before the next turn."""
    next_at = _find_next("_at", key)
    removal = F.col("_removal")
    return removal.isNotNull() & (next_at.isNull() | (removal < next_at))


def _find_next(column: str, key: WindowSpec) -> Expression:
    """A column of the next turn of the plan.

    Another writer may have left several versions of one key open. None of them ends another.
    """
    later = key.rowsBetween(1, Window.unboundedFollowing)
    return F.first(F.when(~F.col("_is_stored"), F.col(column)), ignorenulls=True).over(later)


def _find_endings(turns: DataFrame, key: WindowSpec, *, has_all_changes: bool) -> DataFrame:
    """Add `_next`, the next turn of each; `_is_removed`; `_joins`; and `_is_same_row`.

    A turn joins the one before it if it ended that one's version, and no TRUNCATE or sweep did. Its
    row is the same one if the log has all changes between the two.
    """
    following = F.struct(
        F.col("_at.epoch").alias("epoch"),
        F.col("_at.commit_lsn").alias("commit_lsn"),
        F.col("_at.seq").alias("seq"),
        F.col("_closing.end_lsn").alias("end_lsn"),
        F.col("_closing.log_time").alias("log_time"),
        F.col("_closing.op").alias("op"),
    )
    marked = turns.withColumns(
        {"_is_removed": _is_removed(key), "_following": following.cast(_ENDING_TYPE)}
    )
    joins = F.coalesce(F.lag(F.col("_brings") & ~F.col("_is_removed")).over(key), F.lit(False))
    same_epoch = F.lag("_at.epoch").over(key) == F.col("_at.epoch")
    is_known = F.lit(True) if has_all_changes else ~F.lag("_is_stored").over(key)
    return marked.withColumns(
        {
            "_next": _find_next("_following", key),
            "_joins": joins,
            "_is_same_row": joins & F.coalesce(same_epoch & is_known, F.lit(False)),
        }
    ).drop("_following")


def _mark_confirmations(turns: DataFrame, schema: TableSchema, key: WindowSpec) -> DataFrame:
    """Add `_confirms`: the turn is a read that found the row as the turn before it had left it."""
    fields = table_fields(schema)
    row = F.struct(*(F.col(f"`{field.name}`") for field in fields))
    beside = turns.withColumn("_before", F.lag(row).over(key))
    # Nobody knows if a value that a version lacks was the same before changes that are missing.
    same = [_is_same(field, F.col("_is_same_row")) for field in fields[: len(schema.columns)]]
    is_read = F.col("_opening.op") == Operation.READ.value
    confirms = is_read & ~F.col("_is_stored") & F.col("_joins") & reduce(Expression.__and__, same)
    return beside.withColumn("_confirms", F.coalesce(confirms, F.lit(False))).drop("_before")


def _is_same(field: T.StructField, may_lack: Expression) -> Expression:
    """Whether a value equals that of the row before. Any value does, if that row `may_lack` it."""
    own, other = F.col(f"`{field.name}`"), F.col("_before").getField(field.name)
    raw = F.try_element_at("_raw", F.lit(field.name))
    other_raw = F.try_element_at(F.col("_before").getField("_raw"), F.lit(field.name))
    same = own.eqNullSafe(other) & raw.eqNullSafe(other_raw)
    kind = field.dataType.simpleString()
    if "float" in kind or "double" in kind:
        # SQL takes 0.0 and -0.0 for equal, but they are different values.
        same &= own.cast("string").eqNullSafe(other.cast("string"))
    lacks = F.array_contains(F.col("_before").getField("_holes"), field.name)
    return F.when(F.coalesce(lacks, F.lit(False)), may_lack).otherwise(same)


def _join_confirmations(turns: DataFrame, key: WindowSpec, *, has_older: bool) -> DataFrame:
    """Join turns with the reads that confirm them: the values and the end are those of the last.

    Add `_opened`, what the version has of its first turn; `_continues`; and `LACKED`.
    """
    opened = F.struct(
        F.col("_opening").alias("moment"),
        # `_renews` of a version of the history is what the history says.
        (F.col("_renews") & (F.col("_is_stored") | F.col("_is_same_row"))).alias("continues"),
        F.col("_is_stored").alias("is_stored"),
        F.coalesce("_holes", F.array().cast("array<string>")).alias("holes"),
        *([F.col("_older").alias("older")] if has_older else []),
    )
    up_to_here = key.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    first = F.last(F.when(~F.col("_confirms"), opened), ignorenulls=True).over(up_to_here)
    is_last = ~F.coalesce(F.lead("_confirms").over(key), F.lit(False))
    found = turns.withColumns({"_opened": first, "_is_last": is_last}).where("_is_last")
    return found.withColumns(
        {
            "_continues": F.col("_opened.continues"),
            LACKED: F.col("_opened.holes"),
        }
    )


def _finish(found: DataFrame, history: HistorySteps) -> DataFrame:
    """Give versions the columns of the history. What dropped columns have comes last."""
    plan, schema = history.plan, history.schema
    removed = _describe_removal(plan)
    ending = F.when(F.col("_is_removed"), removed).otherwise(F.col("_next"))
    ended = found.withColumn("_ending", ending)
    values = {field.name: F.col(f"`{field.name}`") for field in table_fields(schema)}
    values |= _leave_out_new(values, plan, schema)
    values |= _keep_older(values, history.dropped)
    values |= name_moment(OPENING, F.col("_opened.moment"))
    values |= name_moment(CLOSING, F.col("_ending"))
    values |= {
        "_is_current": F.col("_ending").isNull(),
        "_continues": F.col("_continues"),
    }
    fields = [*list_fields(schema), *history.dropped]
    was_stored = F.col("_opened.is_stored").alias(WAS_STORED)
    return ended.select(*select_values(values, fields), was_stored, LACKED)


def _describe_removal(plan: TablePlan) -> Expression:
    """The ending of the TRUNCATE or sweep at `_removal`."""
    kinds = [kind.value for kind in _REMOVALS]
    if not any(map(plan.has, _REMOVALS)):
        return F.lit(None).cast(_ENDING_TYPE)
    found = plan.read().where(F.col("op").isin(*kinds))
    rows = found.select(
        *POSITION, "end_lsn", F.unix_micros("log_time").alias("time"), "op"
    ).distinct()
    listed = json.dumps([[*map(str, row)] for row in rows.collect()])
    endings = F.transform(
        F.from_json(F.lit(listed), "array<array<string>>"),
        lambda row: F.struct(
            *(row[i].cast("long").alias(name) for i, name in enumerate((*POSITION, "end_lsn"))),
            F.timestamp_micros(row[4].cast("long")).alias("log_time"),
            row[5].alias("op"),
        ).cast(_ENDING_TYPE),
    )
    own = [F.col(f"_removal.{name}") for name in POSITION]
    same = F.filter(
        endings,
        lambda one: reduce(
            Expression.__and__,
            [one[name] == column for name, column in zip(POSITION, own, strict=True)],
        ),
    )
    return F.try_element_at(same, F.lit(1))


def _leave_out_new(
    values: dict[str, Expression], plan: TablePlan, schema: TableSchema
) -> dict[str, Expression]:
    """Set columns to NULL in versions that ended before a column came, or as it came."""
    steps = [position for position, _ in plan.schemas]
    widths = [len(known.columns) for _, known in plan.schemas]
    if plan.before is None:
        steps, first = steps[1:], widths[0] if widths else len(schema.columns)
        widths = [first, *widths[1:]]
    else:
        widths = [len(plan.before.columns), *widths]
    changed = dict[str, Expression]()
    ended = F.struct("_ending.epoch", "_ending.commit_lsn")
    lacking: list[Expression] = []
    for position, low, high in zip(steps, widths, widths[1:], strict=False):
        at = F.struct(
            F.lit(position.epoch).alias("epoch"),
            F.lit(int(position.commit_lsn)).cast("long").alias("commit_lsn"),
        )
        is_older = F.col("_ending").isNotNull() & (ended <= at)
        for name in schema.names[low:high]:
            changed[name] = F.when(~is_older, values[name])
            lacking.append(F.when(is_older, F.lit(name)))
    if lacking:
        left_out = F.array_compact(F.array(*lacking))
        raw = F.map_filter("_raw", lambda name, _: ~F.array_contains(left_out, name))
        changed["_raw"] = null_if_empty(raw)
        changed["_holes"] = null_if_empty(F.array_except("_holes", left_out))
    return changed


def _keep_older(
    values: dict[str, Expression], dropped: Sequence[T.StructField]
) -> dict[str, Expression]:
    """Let a version keep what it has of columns that the source has dropped."""
    if not dropped:
        return {}
    older = F.col("_opened.older")
    names = F.array(*(F.lit(field.name) for field in dropped))
    kept = {field.name: older[field.name] for field in dropped}
    raw = F.coalesce(values["_raw"], F.create_map().cast("map<string,string>"))
    raw = F.map_filter(raw, lambda name, _: ~F.array_contains(names, name))
    texts = F.coalesce(older["_raw"], F.create_map().cast("map<string,string>"))
    holes = F.coalesce(values["_holes"], F.array().cast("array<string>"))
    lost = F.coalesce(older["_holes"], F.array().cast("array<string>"))
    kept["_raw"] = null_if_empty(F.map_concat(raw, texts))
    kept["_holes"] = null_if_empty(F.array_union(F.array_except(holes, names), lost))
    return kept
