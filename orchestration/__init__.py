"""The Dagster definitions, the command `walgate` and the demo.

The package is thin: it leaves almost all work on rows to `cdc_core` and `spark_jobs`.
"""
