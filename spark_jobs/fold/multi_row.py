"""Folds keys whose last step does not decide which row left, or whose values a moved row has.

Which row remains? Inside a transaction a key may have several rows; at its end a key has at most
one. So count departures and arrivals by key and transaction. A renewal is one of each.

- If the source sends the whole row that departs, count by row image. An image with more arrivals
  than departures is the row that remains.
- If the source sends only the key, the oldest row departs first. So the last to arrive remains.
- A row that departed and never arrived existed before the transaction. If all rows that arrived
  departed again, the key is as it was before the transaction.

Where is a value that was not sent? The life of a row under one key is a segment. It begins with an
arrival, or before the log range (segment 0). If a row moved, its segment has a parent: the segment
that departed from the key that the row came from. The fold looks for the value along the parents,
and at last in the target's row under the key of segment 0. If a transaction renews a key that has
several rows, nothing tells which row each renewal belongs to: the value is missing.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Observation, Window
from pyspark.sql import functions as F

from spark_jobs.fold.fold import GONE, SAID
from spark_jobs.fold.rows import carry, insert, match_names, table_fields, type_rows
from spark_jobs.fold.steps import ARRIVAL, DEPARTURE, RENEWAL, TRUNCATES, id_names
from spark_jobs.log.reading import POSITION
from spark_jobs.schema.evolution import TableSchema

_TRANSACTION = ("epoch", "commit_lsn")
# An optional BOOLEAN column of steps; see `JudgedSteps`.
PARTS = "_parts"


def fold_by_lineage(
    steps: DataFrame, schema: TableSchema, unsent: frozenset[int], target: DataFrame | None
) -> DataFrame:
    """Reduce steps to typed rows as `fold_by_last` and `type_rows` do, for any sequence of steps.

    Shape: as `type_rows`, but without keys that keep the target's row; `_unclear` is false.
    """
    ids = id_names(schema)
    steps = steps.dropDuplicates([*ids, *POSITION]).localCheckpoint()
    verdicts = judge(steps, ids).localCheckpoint()
    held = find_held(verdicts, target, ids, schema)
    final = _conclude(verdicts, held, ids)
    judged = JudgedSteps(steps, verdicts, held, ids)
    return read_images(judged, final, schema, unsent, target)


@dataclass(frozen=True, slots=True)
class JudgedSteps:
    """Steps of some keys, each position once; their verdicts; and which keys the target has.

    `ids` are the columns that identify a key. Two steps with different ids never share a row. The
    steps may have the column `PARTS`: such a renewal begins a segment, which continues the last.
    """

    steps: DataFrame
    verdicts: DataFrame
    held: DataFrame
    ids: list[str]


def read_images(
    judged: JudgedSteps,
    final: DataFrame,
    schema: TableSchema,
    unsent: frozenset[int],
    target: DataFrame | None,
) -> DataFrame:
    """Read the rows that steps brought, with the values that the steps did not send.

    `final` has the ids of each key, `present`, and the position of the step that brought its row.
    Shape: as `fold_by_lineage`.
    """
    steps, ids = judged.steps, judged.ids
    images = final.join(
        steps.select(*ids, *POSITION, "committed_at", "kind", "values", "unchanged"),
        [*ids, *POSITION],
        "left",
    )
    images, partial = _compute(images, F.size("unchanged") > 0)
    if not partial:
        return type_rows(images.withColumns(_settled()), schema)
    segments = _cut_segments(steps, judged.verdicts, judged.held, ids)
    lineages = _trace(_link(segments, ids, unsent), unsent)
    numbered = segments.select(*ids, *POSITION, "segment")
    named = images.join(numbered, [*ids, *POSITION], "left").join(
        lineages, [*ids, "segment"], "left"
    )
    return _fetch(type_rows(_fill(named, ids, unsent, schema), schema), schema, unsent, target)


def _compute(rows: DataFrame, condition: Expression) -> tuple[DataFrame, int]:
    """Compute rows once, and count those that meet a condition."""
    found = Observation()
    computed = rows.observe(found, F.count_if(condition).alias("count")).localCheckpoint()
    return computed, found.get["count"]


def judge(steps: DataFrame, ids: list[str]) -> DataFrame:
    """Decide for each key and transaction whether the key has a row afterwards.

    Shape: ids, epoch, commit LSN; `stays` (NULL: as before the transaction); `seq` of the step that
    brought the row that remains, if one did; `needed`, how many rows the key must have had before;
    `last`, the `seq` of the key's last step.
    """
    transaction = Window.partitionBy(*ids, *_TRANSACTION)
    names_row = (F.col("kind") == ARRIVAL) | F.col("old").isNotNull()
    leaves = F.struct(F.lit(-1).alias("delta"), F.col("old").alias("image"))
    comes = F.struct(F.lit(1).alias("delta"), F.col("values").alias("image"))
    deltas = (
        F.when(F.col("kind") == DEPARTURE, F.array(leaves))
        .when(F.col("kind") == ARRIVAL, F.array(comes))
        .otherwise(F.array(leaves, comes))
    )
    changed_rows = (
        steps.withColumn("whole", F.min(names_row).over(transaction))
        .select(*ids, *POSITION, "whole", F.inline(deltas))
        .withColumn("image", F.when(F.col("whole"), F.col("image")))
    )
    same_image = Window.partitionBy(*ids, *_TRANSACTION, "image").orderBy("seq", "delta")
    images = (
        changed_rows.withColumn("balance", F.sum("delta").over(same_image))
        .groupBy(*ids, *_TRANSACTION, "image")
        .agg(
            F.sum("delta").alias("net"),
            F.greatest(F.lit(0), -F.min("balance")).alias("needed"),
            F.max(F.when(F.col("delta") == 1, F.col("seq"))).alias("arrived"),
            F.max("seq").alias("last"),
            F.first("whole").alias("whole"),
        )
    )
    remains = F.col("net") + F.col("needed") >= 1
    transactions = images.groupBy(*ids, *_TRANSACTION).agg(
        F.max(F.when(remains, F.col("arrived"))).alias("survivor"),
        F.sum("needed").alias("needed"),
        F.max("arrived").alias("arrived"),
        F.max("last").alias("last"),
        F.first("whole").alias("whole"),
    )
    gone = F.col("needed") >= 1
    return transactions.select(
        *ids,
        *_TRANSACTION,
        F.when(F.col("survivor").isNotNull(), True).when(gone, False).alias("stays"),
        F.when(F.col("survivor").isNotNull(), F.col("survivor"))
        .when(~gone & ~F.col("whole"), F.col("arrived"))
        .alias("seq"),
        "needed",
        "last",
    )


def find_held(
    verdicts: DataFrame, target: DataFrame | None, ids: list[str], schema: TableSchema
) -> DataFrame:
    """Find for each key whether the target has a row with it. Shape: ids, `held`.

    After a TRUNCATE no key has a row of the target.
    """
    keys = verdicts.select(*ids).distinct()
    if target is None:
        return keys.withColumn("held", F.lit(False))
    own = id_names(schema)
    held = target.select(
        *(F.col(f"`{name}`").alias(i) for name, i in zip(match_names(schema), own, strict=True)),
        F.lit(True).alias("held"),
    ).distinct()  # Another writer may have left several rows of one key.
    is_held = F.coalesce("held", F.lit(False))
    if TRUNCATES in ids:
        is_held &= F.col(TRUNCATES) == 0
    return keys.join(held, own, "left").select(*ids, is_held.alias("held"))


def _conclude(verdicts: DataFrame, held: DataFrame, ids: list[str]) -> DataFrame:
    """Decide for each key whose row changes if it is `present`; give the position of that change.

    It is the position of the step that brought the row, or of the key's last step if it has no row
    then: a MERGE compares it with the position of the target's row.
    """
    transaction = F.struct(*_TRANSACTION)
    position = F.struct(*POSITION)
    end = F.struct(*_TRANSACTION, F.col("last").alias("seq"))
    settled = F.when(F.col("stays").isNotNull(), transaction)
    brought = F.when(F.col("seq").isNotNull(), transaction)
    return (
        verdicts.groupBy(*ids)
        .agg(
            F.max_by("stays", settled).alias("stays"),
            F.max_by(position, brought).alias("image"),
            F.max(end).alias("end"),
        )
        .join(held, ids)
        .withColumn("present", F.coalesce("stays", "held"))
        .where(~F.col("present") | F.col("image").isNotNull())
        .withColumn("at", F.when(F.col("present"), F.col("image")).otherwise(F.col("end")))
        .select(*ids, "present", *(F.col(f"at.{name}").alias(name) for name in POSITION))
    )


def _settled() -> dict[str, Expression]:
    nothing = F.array().cast("array<int>")
    return {"carried": nothing, "lost": nothing, "unclear": F.lit(False)}


def _cut_segments(
    steps: DataFrame, verdicts: DataFrame, held: DataFrame, ids: list[str]
) -> DataFrame:
    """Add to each step its `segment`, to a departure the segment that `departs`, and `blurred`.

    A step is blurred if its transaction renews the key, and the key has several rows during it.
    """
    by_key = Window.partitionBy(*ids).orderBy(*_TRANSACTION)
    before = by_key.rowsBetween(Window.unboundedPreceding, -1)
    starts = verdicts.join(held, ids).select(
        *ids,
        *_TRANSACTION,
        F.greatest(
            "needed",
            F.coalesce(F.last("stays", ignorenulls=True).over(before), "held").cast("int"),
        ).alias("start"),
    )
    so_far = Window.partitionBy(*ids).orderBy(*POSITION)
    in_transaction = Window.partitionBy(*ids, *_TRANSACTION)
    so_far_in_transaction = in_transaction.orderBy("seq")
    is_arrival = (F.col("kind") == ARRIVAL).cast("int")
    parts = F.col(PARTS).cast("int") if PARTS in steps.columns else F.lit(0)
    counted = steps.join(starts, [*ids, *_TRANSACTION]).withColumns(
        {
            "segment": F.sum(is_arrival + parts).over(so_far),
            "come": F.sum((F.col("kind") != DEPARTURE).cast("int")).over(so_far_in_transaction),
            "gone": F.sum((F.col("kind") != ARRIVAL).cast("int")).over(so_far_in_transaction),
            "renews": F.max(F.col("kind") == RENEWAL).over(in_transaction),
        }
    )
    rows = F.col("start") + F.col("come") - F.col("gone")
    mixed = counted.withColumn("most", F.max(rows).over(in_transaction))
    blurred = F.col("renews") & (F.col("most") > 1)
    oldest = F.col("segment") - F.col("come") + F.col("gone") - F.col("start")
    return mixed.select(
        *steps.columns,
        "segment",
        blurred.alias("blurred"),
        F.when(
            (F.col("kind") == DEPARTURE) & ~blurred,
            F.when(F.col("renews"), F.col("segment")).otherwise(oldest),
        ).alias("departs"),
    ).localCheckpoint()


def _link(segments: DataFrame, ids: list[str], unsent: frozenset[int]) -> DataFrame:
    """Return one row for each segment: what its steps say about each column, its parent, its root.

    Only segment 0 has a root here: its own key.
    """
    position = F.struct(*POSITION)
    sent = {
        i: ~F.coalesce(F.array_contains("unchanged", i), F.lit(False)) & F.col("values").isNotNull()
        for i in unsent
    }
    says = {
        i: F.max_by(
            F.struct(
                F.when(F.col("blurred"), GONE).otherwise(SAID).alias("what"),
                F.when(~F.col("blurred"), F.col("values")[i]).alias("text"),
            ),
            F.when(F.col("blurred") | sent[i], position),
        )
        for i in unsent
    }
    lives = segments.groupBy(*ids, "segment").agg(
        F.max(F.when(F.col("_from").isNotNull(), F.struct(*POSITION, "_from"))).alias("came"),
        F.max(PARTS if PARTS in segments.columns else F.lit(False)).alias("continues"),
        *(said.alias(f"_said{i}") for i, said in says.items()),
    )
    departures = segments.where(F.col("departs") >= 0).select(
        F.struct(*ids).alias("up"),
        *(F.col(name).alias(f"up_{name}") for name in POSITION),
        F.col("departs").alias("up_segment"),
    )
    same = [F.col(f"came.{name}") == F.col(f"up_{name}") for name in POSITION]
    linked = lives.join(departures, [F.col("came._from") == F.col("up"), *same], "left")
    continues = F.col("continues")
    return linked.select(
        *ids,
        "segment",
        *(f"_said{i}" for i in says),
        F.when(continues, F.struct(*ids)).otherwise(F.col("up")).alias("up"),
        F.when(continues, F.col("segment") - 1).otherwise(F.col("up_segment")).alias("up_segment"),
        F.when(F.col("segment") == 0, F.struct(*ids)).alias("root"),
    )


def _trace(nodes: DataFrame, unsent: frozenset[int]) -> DataFrame:
    """Follow the parents to the end. Each pass reaches twice as far as the pass before."""
    said = [f"_said{i}" for i in sorted(unsent)]
    ids = [
        name for name in nodes.columns if name not in {*said, "segment", "up", "up_segment", "root"}
    ]
    has_parent = F.col("up").isNotNull()
    nodes, children = _compute(nodes, has_parent)
    while children:
        parents = nodes.select(
            F.struct(*ids).alias("up"),
            F.col("segment").alias("up_segment"),
            *(F.col(name).alias(f"p{name}") for name in said),
            F.col("up").alias("p_up"),
            F.col("up_segment").alias("p_up_segment"),
            F.coalesce("root", F.when(F.col("segment") == 0, F.struct(*ids))).alias("p_root"),
            F.lit(True).alias("found"),
        )
        # A segment 0 without a step of its own is also the target's row.
        is_root = F.col("found").isNull() & (F.col("up_segment") == 0)
        nodes = nodes.join(parents, ["up", "up_segment"], "left").select(
            *ids,
            "segment",
            *(F.coalesce(name, f"p{name}").alias(name) for name in said),
            F.col("p_up").alias("up"),
            F.col("p_up_segment").alias("up_segment"),
            F.coalesce("root", "p_root", F.when(is_root, F.col("up"))).alias("root"),
        )
        nodes, children = _compute(nodes, has_parent)
    return nodes.drop("up", "up_segment")


def _fill(
    named: DataFrame, ids: list[str], unsent: frozenset[int], schema: TableSchema
) -> DataFrame:
    """Fill the texts that segments have, and say where the others are.

    They are in the target's row (`carried`), under `root` if that is another key, or are `lost`.
    """
    own = F.struct(*ids)
    sent = {i: ~F.coalesce(F.array_contains("unchanged", i), F.lit(False)) for i in unsent}
    texts = [
        F.when(sent[i], F.col("values")[i]).otherwise(F.col(f"_said{i}.text"))
        if i in unsent
        else F.col("values")[i]
        for i in range(len(schema.columns))
    ]
    wanted = {i: ~sent[i] & F.col(f"_said{i}").isNull() for i in unsent}
    missing = {i: ~sent[i] & (F.col(f"_said{i}.what") == GONE) for i in unsent}
    return named.select(
        *ids,
        "present",
        *POSITION,
        "committed_at",
        F.when(F.col("values").isNotNull(), F.array(*texts)).alias("values"),
        _list({i: wanted[i] & F.col("root").isNotNull() for i in unsent}).alias("carried"),
        _list({i: missing[i] | (wanted[i] & F.col("root").isNull()) for i in unsent}).alias("lost"),
        F.lit(False).alias("unclear"),
        F.when(F.col("root") != own, F.col("root")).alias("root"),
    )


def _fetch(
    rows: DataFrame, schema: TableSchema, unsent: frozenset[int], target: DataFrame | None
) -> DataFrame:
    """Take values that moved rows did not send from the target's rows under their root keys."""
    s = rows.alias("s")
    new, renewed = insert(schema, unsent, "s"), carry(schema, unsent, "s", "t")
    moved = F.col("s._root").isNotNull()
    if target is None:
        found, values = s, {name: F.when(moved, new[name]) for name in new}
    else:
        pairs = zip(match_names(schema), id_names(schema), strict=True)
        matches = [F.col(f"t.`{name}`") == F.col(f"s._root.{i}") for name, i in pairs]
        # Another writer may have left several rows of one key.
        old = target.alias("t").join(s.where(moved), matches, "left_semi")
        old = old.dropDuplicates(match_names(schema))
        found = s.join(old.alias("t"), matches, "left")
        is_known = F.col(f"t.`{match_names(schema)[0]}`").isNotNull()
        values = {
            name: F.when(moved & is_known, renewed[name]).when(moved, new[name]) for name in new
        }
    own = [field.name for field in table_fields(schema)]
    chosen = [
        F.when(moved, values[name]).otherwise(F.col(f"s.`{name}`")).alias(name) for name in own
    ]
    at_home = F.when(~moved, F.col("s._carried")).otherwise(F.array().cast("array<string>"))
    return found.select(
        *(F.col(f"s.{name}") for name in id_names(schema)),
        F.col("s._present"),
        *chosen,
        at_home.alias("_carried"),
        F.col("s._unclear"),
    )


def _list(chosen: dict[int, Expression]) -> Expression:
    listed = F.array(*(F.when(is_chosen, F.lit(i)) for i, is_chosen in sorted(chosen.items())))
    return F.array_compact(listed).cast("array<int>")
