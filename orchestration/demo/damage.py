"""Damages rows of the lake by hand, and says what a verification must find, while the shop sells.

The damage breaks no invariant, so the invariants can still be checked at the cuts that follow.
"""

from __future__ import annotations

from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import SparkSession, functions

from cdc_core.staging.verifications import EQUAL
from cdc_core.vocabulary import TableName
from orchestration.demo.shop import CUSTOMERS
from orchestration.verification.healing import VerificationResult
from spark_jobs.lake.lake import Lake
from spark_jobs.session.session import find_jvm

DAMAGED = TableName("public", "customers")
_DELETED, _CHANGED, _COPIED = (CUSTOMERS + i for i in (1, 2, 3))
_ADDED = 0
DAMAGED_IDS = frozenset({_DELETED, _CHANGED, _ADDED})
WHAT_IS_DAMAGED = f"customer {_DELETED} deleted, {_CHANGED} changed, {_ADDED} added"


@dataclass(frozen=True, slots=True)
class Healing:
    """What the verification found, and what is left after the healing."""

    verdict: VerificationResult

    @property
    def is_whole(self) -> bool:
        """Whether exactly the damaged rows were found, and the table is equal after the healing."""
        keys = self.verdict.keys
        found = {int(text) for (text,) in keys.get(DAMAGED, ()) if text is not None}
        is_found = set(keys) == {DAMAGED} and found == DAMAGED_IDS
        return is_found and all(one.result == EQUAL for one in self.verdict.tables)


def damage_customers(session: SparkSession, lake: Lake) -> None:
    """Delete a row of the customers' Delta table, change one and add one. Raises: MergeError."""
    with lake.lock_table(str(DAMAGED), jvm=find_jvm(session)):
        table = DeltaTable.forPath(session, lake.locate(DAMAGED).uri)
        key = functions.col("id")
        rows = table.toDF().where(key.isin(_DELETED, _CHANGED, _COPIED))
        new_key = functions.when(key == _COPIED, functions.lit(_ADDED).cast("long")).otherwise(key)
        # One commit: merges wait for the lock, but not for long.
        damage = table.alias("table").merge(
            rows.withColumn("id", new_key).alias("row"), "table.id = row.id"
        )
        damage = damage.whenMatchedDelete(f"table.id = {_DELETED}")
        damage = damage.whenMatchedUpdate(set={"name": functions.lit("Nobody")})
        damage.whenNotMatchedInsertAll().execute()
