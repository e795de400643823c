"""Statements that read are let through; whatever else is refused before it runs."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from cdc_core.errors import ConfigurationError
from spark_jobs.session.read_only import explain_refusal, require_read_only

READING = [
    "select 1",
    "  -- a comment\n (select 1) union all (select 2)",
    "/* a */ with x as (select 1 as a) select * from x",
    "values (1), (2)",
    "from range(3) |> where id > 1",
    "show tables",
    "describe query select 1",
    "explain insert into t select 1",
    "select 1;",
]
ACTING = [
    "",
    "drop table t",
    "insert into t select 1",
    "with x as (select 1 as a) insert into t select * from x",
    "from t insert into t select *",
    "create view v as select 1",
    "set spark.sql.ansi.enabled = false",
    "execute immediate 'drop table t'",
    "begin drop table t; end",
    "select transform(a) using 'cat' from t",
    "select 1; drop table t",
    "selec 1",
]


@pytest.mark.parametrize("statement", READING)
def test_a_statement_that_reads_is_let_through(spark: SparkSession, statement: str) -> None:
    require_read_only(spark, statement)


@pytest.mark.parametrize("statement", ACTING)
def test_a_statement_that_acts_is_refused(spark: SparkSession, statement: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        require_read_only(spark, statement)
    assert "\n" not in str(refusal.value)


def test_a_refusal_names_what_is_wrong_in_one_line(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException) as error:
        spark.sql("select nope from range(3)")
    explained = explain_refusal(error.value)
    assert "`nope`" in explained
    assert "SQLSTATE" not in explained
    assert "\n" not in explained


def test_a_failure_names_no_value(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as error:
        spark.sql("select cast(concat('c4n4ry', id) as int) from range(1)").collect()
    assert explain_refusal(error.value) == "CAST_INVALID_INPUT, SQLSTATE 22018"
