"""A table that delta-rs creates is the one that Spark creates, and bad columns cost one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.targets import Target
from cdc_core.vocabulary import TableName
from spark_jobs.delta.direct_parquet import VECTORS_PROPERTY
from spark_jobs.lake.lake import Lake
from spark_jobs.target import creation
from spark_jobs.target.creation import create_target
from tests.lakes import locate_lake

TABLE = TableName("public", "t")
FIELDS = [
    T.StructField("k", T.LongType()),
    T.StructField("n", T.DecimalType(38, 18)),
    T.StructField("m", T.TimestampNTZType()),
    T.StructField("a", T.ArrayType(T.StringType())),
    T.StructField("_raw", T.MapType(T.StringType(), T.StringType())),
]


def test_delta_rs_creates_the_table_that_spark_creates(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(locate_lake(tmp_path / "lake"))
    one = create_target(spark, lake, Target(TABLE), FIELDS)
    other_place = LocalPlace.of(tmp_path / "other")
    creation._create_by_spark(spark, other_place, str(TABLE), T.StructType(FIELDS))
    other = DeltaTable(other_place.uri)
    assert json.loads(one.schema().to_json()) == json.loads(other.schema().to_json())
    assert one.metadata().description == other.metadata().description
    assert one.metadata().configuration == other.metadata().configuration | {
        VECTORS_PROPERTY: "false"
    }
    # No reader needs more features of it.
    features = [set(each.protocol().reader_features or ()) for each in (one, other)]
    assert features[0] <= features[1]


def test_columns_that_delta_rs_refuses_are_an_error_of_that_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(locate_lake(tmp_path / "lake"))
    fields = [T.StructField(name, T.LongType()) for name in ("k", "K")]
    with pytest.raises(DeltaError, match="refuses the columns"):
        create_target(spark, lake, Target(TABLE), fields)
