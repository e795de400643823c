"""Finds the turns of keys: what each transaction did to a key, and which row it left.

A turn ends the version that the key has, and begins one if it leaves a row. The open versions of
the history come first, as turns of earlier transactions.

The multi-row fold says for each key and transaction whether the key has a row afterwards, and which
step brought it (`fold/multi_row.py`). A TRUNCATE removes every row. So each step has the number of
TRUNCATEs before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_jobs.fold.multi_row import PARTS, JudgedSteps, find_held, judge, read_images
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.removals import RemovalPoints
from spark_jobs.fold.rows import carry, insert, match_keys, match_names, select_values, table_fields
from spark_jobs.fold.steps import RENEWAL, TRUNCATES, id_names
from spark_jobs.fold.truncates import number_by_truncates
from spark_jobs.history.versions import MOMENT, OPENING
from spark_jobs.log.reading import POSITION
from spark_jobs.schema.evolution import TableSchema

_TRANSACTION = ("epoch", "commit_lsn")
# Columns of its log entry that a step keeps.
_ALSO = ("op", "end_lsn", "log_time")
# The columns of a turn: its position; whether the key has a row afterwards (NULL: as before);
# whether it brought that row; what a version says of it that it opens, or that it closes; whether
# it only renewed the row that the key had; and whether it is a version of the history.
_TURN = ("_at", "_stays", "_brings", "_opening", "_closing", "_renews", "_is_stored")
_MOMENT_TYPE = "struct<epoch:int,end_lsn:bigint,log_time:timestamp,op:string>"
_AT_TYPE = "struct<epoch:int,commit_lsn:bigint,seq:bigint>"


@dataclass(frozen=True, slots=True)
class HistorySteps:
    """The steps of a plan, each position once, and what else removes rows.

    `ids` are the columns that identify a row, `names` those of them that identify its key.
    `dropped` are the columns that only versions of the history have.
    """

    plan: TablePlan
    schema: TableSchema
    steps: DataFrame
    ids: list[str]
    removals: RemovalPoints
    dropped: tuple[T.StructField, ...] = ()

    @property
    def names(self) -> list[str]:
        """The columns that identify a key."""
        return id_names(self.schema)

    def mark_touched(self, versions: DataFrame) -> DataFrame:
        """Add to open versions `_touched`: the plan changes or removes the row, or may do so."""
        keys = self.steps.select(*self.names).distinct().withColumn("_found", F.lit(True))
        removed = self.removals.find("t", self.schema, None).isNotNull()
        found = versions.alias("t").join(keys.alias("s"), match_keys(self.schema), "left")
        touched = F.coalesce(F.col("s._found"), F.lit(False)) | removed
        return found.select("t.*", touched.alias("_touched"))


def take_history_steps(
    plan: TablePlan,
    dropped: tuple[T.StructField, ...] = (),
) -> HistorySteps:
    """Turn the row changes of a plan into steps, and compute them."""
    assert plan.schema is not None
    removals, names = RemovalPoints.of(plan), id_names(plan.schema)
    steps, ids = number_by_truncates(plan.take_all_steps(*_ALSO), names, removals.truncates)
    steps = steps.dropDuplicates([*ids, *POSITION])
    if plan.unsent:
        steps = _begin_parts(steps, ids)
    return HistorySteps(plan, plan.schema, steps.localCheckpoint(), ids, removals, dropped)


def list_turns(
    history: HistorySteps, versions: DataFrame | None, *, has_all_changes: bool
) -> DataFrame:
    """List the turns of the keys of a plan, and those of some open versions.

    If not `has_all_changes`, the log lacks changes between the versions and the plan. Then no row
    takes a value from a version.
    Shape: the names of the key, `_TURN`, the columns of the table, and, if the source has dropped
    columns, `_older`: what a version of the history has of them. A turn that brings no row has NULL
    in these. Order: none; `_at` orders the turns of a key, and versions come first.
    """
    plan, schema, steps, ids = history.plan, history.schema, history.steps, history.ids
    had = versions if has_all_changes else None
    verdicts = judge(steps, ids).localCheckpoint()
    held = find_held(verdicts, had, ids, schema)
    brought = verdicts.where("seq is not null")
    final = brought.select(*ids, F.lit(True).alias("present"), *POSITION)
    judged = JudgedSteps(steps, verdicts, held, ids)
    images = read_images(judged, final, schema, plan.unsent, had)
    images = _take_values(images, had, schema, plan.unsent)
    turns = _describe_turns(steps, verdicts, ids)
    fields = [field.name for field in table_fields(schema)]
    same = [F.col(f"i.{name}") == F.col(f"w.{name}") for name in history.names]
    same += [F.col(f"i._{name}") == F.col(f"w._at.{name}") for name in _TRANSACTION]
    found = turns.alias("w").join(images.alias("i"), same, "left")
    listed = found.select(
        *(F.col(f"w.{name}") for name in (*history.names, *_TURN)),
        *(F.col(f"i.`{name}`") for name in fields),
    )
    if versions is None and not history.dropped:
        return listed
    if versions is None:
        return listed.withColumn("_older", F.lit(None).cast(_find_older_type(history.dropped)))
    stored = _list_stored(versions, schema, history.dropped)
    return stored.unionByName(listed, allowMissingColumns=True)


def _begin_parts(steps: DataFrame, ids: list[str]) -> DataFrame:
    """Mark the first step of each transaction, if it renews a row: it begins a part of its life.

    Each version then has the values of its own transaction, and not those of later ones.
    """
    transaction = Window.partitionBy(*ids, *_TRANSACTION)
    is_first = F.col("seq") == F.min("seq").over(transaction)
    return steps.withColumn(PARTS, (F.col("kind") == RENEWAL) & is_first)


def _describe_turns(steps: DataFrame, verdicts: DataFrame, ids: list[str]) -> DataFrame:
    """Make a turn of each verdict that changes a key."""
    decided = verdicts.where("stays is not null or seq is not null").select(
        *ids, *_TRANSACTION, "stays", F.col("seq").alias("image"), "last"
    )
    brings = F.col("image").isNotNull()
    found = (
        steps.join(decided, [*ids, *_TRANSACTION])
        .groupBy(*ids, *_TRANSACTION, "stays", "image", "last")
        .agg(
            F.max("end_lsn").alias("end_lsn"),
            F.max("log_time").alias("log_time"),
            F.max(F.when(F.col("seq") == F.col("image"), F.col("op"))).alias("opened_by"),
            F.max_by("op", "seq").alias("last_op"),
            F.min(F.col("kind") == RENEWAL).alias("renews"),
        )
    )
    at = F.struct(*_TRANSACTION, F.coalesce("image", "last").alias("seq"))
    values = {
        "_at": at.cast(_AT_TYPE),
        "_stays": F.col("stays"),
        "_brings": brings,
        "_opening": _make_moment(F.col("opened_by")),
        "_closing": _make_moment(F.coalesce("opened_by", "last_op")),
        "_renews": F.col("renews"),
        "_is_stored": F.lit(False),
    }
    names = [name for name in ids if name != TRUNCATES]
    return found.select(*names, *(values[name].alias(name) for name in _TURN))


def _make_moment(op: Expression) -> Expression:
    return F.struct("epoch", "end_lsn", "log_time", op.alias("op")).cast(_MOMENT_TYPE)


def _list_stored(
    versions: DataFrame, schema: TableSchema, dropped: Sequence[T.StructField]
) -> DataFrame:
    """Make a turn of each open version."""
    position = F.struct(*(F.col(f"_{name}").alias(name) for name in POSITION))
    opening = F.struct(
        *(F.col(own).alias(name) for own, name in zip(OPENING, MOMENT, strict=True))
    ).cast(_MOMENT_TYPE)
    values = {
        "_at": position.cast(_AT_TYPE),
        "_stays": F.lit(True),
        "_brings": F.lit(True),
        "_opening": opening,
        "_closing": F.lit(None).cast(_MOMENT_TYPE),
        "_renews": F.coalesce("_continues", F.lit(False)),
        "_is_stored": F.lit(True),
    }
    ids = zip(match_names(schema), id_names(schema), strict=True)
    return versions.select(
        *(F.col(f"`{name}`").alias(id_name) for name, id_name in ids),
        *(values[name].alias(name) for name in _TURN),
        *(F.col(f"`{field.name}`") for field in table_fields(schema)),
        *([_take_older(dropped).alias("_older")] if dropped else []),
    )


def _find_older_type(dropped: Sequence[T.StructField]) -> T.StructType:
    texts, names = T.MapType(T.StringType(), T.StringType()), T.ArrayType(T.StringType())
    own = [T.StructField(field.name, field.dataType) for field in dropped]
    return T.StructType([*own, T.StructField("_raw", texts), T.StructField("_holes", names)])


def _take_older(dropped: Sequence[T.StructField]) -> Expression:
    """What a version has of columns that the source has dropped: values, texts and holes."""
    names = F.array(*(F.lit(field.name) for field in dropped))
    texts = F.map_filter("_raw", lambda name, _: F.array_contains(names, name))
    return F.struct(
        *(F.col(f"`{field.name}`") for field in dropped),
        texts.alias("_raw"),
        F.array_intersect("_holes", names).alias("_holes"),
    )


def _take_values(
    images: DataFrame, had: DataFrame | None, schema: TableSchema, unsent: frozenset[int]
) -> DataFrame:
    """Give rows the values that no step sent: those of the open version, or none."""
    fields, names = table_fields(schema), id_names(schema)
    new = insert(schema, unsent, "s")
    rows, values = images.alias("s"), new
    if unsent and had is not None:
        matches = match_keys(schema)
        taking = images.where(F.size("_carried") > 0).alias("s")
        old = had.alias("t").join(taking, matches, "left_semi")
        # Another writer may have left several versions of one key open.
        old = old.dropDuplicates(match_names(schema))
        rows = rows.join(old.alias("t"), matches, "left")
        is_known = F.col(f"t.`{match_names(schema)[0]}`").isNotNull()
        renewed = carry(schema, unsent, "s", "t")
        values = {name: F.when(is_known, renewed[name]).otherwise(new[name]) for name in new}
    return rows.select(*(F.col(f"s.{name}") for name in names), *select_values(values, fields))
