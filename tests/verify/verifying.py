"""A pipeline whose lake is compared with its source, in this process and its one session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from cdc_core.settings import Settings
from cdc_core.staging.verifications import Verified
from cdc_core.vocabulary import TableName
from orchestration.capture.own_capture import ensuring_capture
from orchestration.verification.healing import VerificationResult, verify_and_heal
from orchestration.verification.verify import Verification, verify_tables
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import Round, merge_until
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database

Keys = set[tuple[str | None, ...]]


class Verifying:
    """What a test asks of a pipeline's verification."""

    def __init__(self, pipeline: Pipeline, session: SparkSession) -> None:
        """Nothing is staged yet."""
        self.pipeline = pipeline
        self.session = session
        self.lake = Lake.of(self.settings)

    @property
    def settings(self) -> Settings:
        """The configuration as it is now."""
        return self.pipeline.load_settings()

    def merge(self, *, limits: MergeLimits = DEFAULT_LIMITS) -> list[Round]:
        """Stage and merge all that is committed now."""
        self.pipeline.catch_up()
        return merge_until(self.session, self.lake, round_rows=1_000_000, limits=limits)

    def damage(self, table: str, statement: str) -> None:
        """Change a table of the lake by hand; `{}` stands for it."""
        path = self.lake.locate(TableName("public", table))
        self.session.sql(statement.replace("{}", f"delta.`{path}`"))

    def compare(self, *tables: str, **options: Any) -> Verification:
        """Compare tables once, all where none are named."""
        stop = threading.Event()
        named = [TableName("public", table) for table in tables]
        with ensuring_capture(self.settings, stop):
            return verify_tables(
                self.settings,
                self.session,
                named or None,
                stop=stop,
                tell=lambda _: None,
                **options,
            )

    def find_keys(self, *tables: str) -> dict[str, Keys]:
        """The keys that differ, by table."""
        found = self.compare(*tables)
        return {table.name: {*keys} for table, keys in found.keys.items()}

    def heal(self, *tables: str) -> VerificationResult:
        """Compare, heal, compare again."""
        named = [TableName("public", table) for table in tables]
        return verify_and_heal(
            self.settings,
            self.session,
            named or None,
            is_healing=True,
            stop=threading.Event(),
            tell=lambda _: None,
        )


def read_results(tables: tuple[Verified, ...]) -> dict[str, str]:
    """What was found of each table, with the reason where there is one."""
    return {
        found.table.name: f"{found.result}: {found.reason}" if found.reason else found.result
        for found in tables
    }


def make_verifying(
    make_pipeline: Callable[..., Pipeline], database: Database, spark: SparkSession
) -> Verifying:
    """A pipeline of a database whose tables are there already."""
    return Verifying(make_pipeline(database), spark.newSession())


def require_equal(found: Verification) -> None:
    """Fail unless every table is equal, with the ranges that differ."""
    assert {one.table.name: (one.result, one.reason, one.ranges) for one in found.tables} == {
        one.table.name: ("equal", None, ()) for one in found.tables
    }
