"""The SQL of each transcript still leads to the text of its file.

PostgreSQL 15 and 18 must lead to one text, and so must Spark's MERGE and the ways that the usual
limits choose. `make test` plays the SQL on 18 up to the tables, by MERGE where it can, and on 15 up
to the log. `make soak` also plays it on 15 up to the tables, by the usual limits.
"""

from __future__ import annotations

import difflib

import pytest
from pyspark.sql import SparkSession

from spark_jobs.target.limits import DEFAULT_LIMITS
from spark_jobs.target.result import WritePlan
from tests.fix_postgres import lend_database
from tests.postgres_server import PostgresServer
from tests.spark.small_lake import MERGE_ONLY
from tests.transcripts.player import Merging, Played, play
from tests.transcripts.transcript import Transcript, leave_out_tables, read_transcripts

TRANSCRIPTS = read_transcripts()
# The second merge writes these tables whole: after a TRUNCATE, for rows older than a new column, or
# because the table is new.
WHOLE = {
    "dropped_column.visit",
    "new_column.pet",
    "truncate.visit",
    "truncate_several.item",
    "truncate_several.shop",
}
EACH = pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda one: one.name)


@pytest.fixture(scope="module")
def logged(postgres15: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Lend what the SQL leads to on version 15, up to the log."""
    with lend_database(postgres15) as database:
        return play(TRANSCRIPTS, database, tmp_path_factory.mktemp("transcripts"), None)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((18, MERGE_ONLY), id="postgres18"),
        pytest.param((15, DEFAULT_LIMITS), id="postgres15", marks=pytest.mark.soak),
    ],
)
def merged(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> Played:
    """Lend what the SQL leads to, up to the tables."""
    version, limits = request.param
    server: PostgresServer = request.getfixturevalue(f"postgres{version}")
    folder = tmp_path_factory.mktemp("transcripts")
    with lend_database(server) as database:
        return play(TRANSCRIPTS, database, folder, Merging(spark, limits))


@pytest.mark.xdist_group("transcripts")
@EACH
def test_the_sql_of_a_transcript_still_leads_to_its_log(
    transcript: Transcript, logged: Played
) -> None:
    require_equal(transcript, leave_out_tables(transcript.path.read_text()), logged)


@EACH
def test_the_sql_of_a_transcript_still_leads_to_its_text(
    transcript: Transcript, merged: Played
) -> None:
    require_equal(transcript, transcript.path.read_text(), merged)


def test_tables_are_written_in_the_ways_that_the_limits_are_for(merged: Played) -> None:
    first, *later = merged.ways
    assert set(first.values()) == {WritePlan.REWRITE}
    written = {table for ways in later for table in ways}
    by_merge = {table for ways in later for table, way in ways.items() if way is WritePlan.MERGE}
    assert by_merge == (written - WHOLE if merged.limits is MERGE_ONLY else set())


def require_equal(transcript: Transcript, written: str, played: Played) -> None:
    """Fail with the difference, and with what to do about it."""
    difference = difflib.unified_diff(
        written.splitlines(),
        played.texts[transcript.name].splitlines(),
        f"tests/transcripts/{transcript.path.name}",
        "what its SQL leads to now",
        lineterm="",
    )
    lines = list(difference)
    if lines:
        advice = "If this is what you want, run `make transcripts` and review the diff."
        pytest.fail("\n".join([*lines, "", advice]), pytrace=False)
