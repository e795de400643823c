"""What every test can ask for, and the header that makes a run repeatable."""

from __future__ import annotations

pytest_plugins = (
    "tests.fix_postgres",
    "tests.fix_catalog",
    "tests.fix_redis",
    "tests.fix_object_store",
    "tests.fix_lakes",
    "tests.fix_spark",
    "tests.fix_cluster",
    "tests.fix_proxy",
    "tests.fix_pipeline",
    "tests.fix_subscriber",
    "tests.fix_dagster",
    "tests.fix_browser",
    "tests.fix_header",
    "tests.fix_order",
)
