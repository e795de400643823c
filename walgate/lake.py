"""A lake that is open for reading, and the lake at one LSN."""

from __future__ import annotations

import os
from datetime import datetime
from functools import cached_property
from pathlib import Path

from cdc_core.errors import ConfigurationError, LakeError, Retry
from cdc_core.read_point import ReadPoint, parse_read_point, put_in_utc
from cdc_core.settings import Settings, load_settings
from cdc_core.vocabulary import TableName
from spark_jobs.lake import lake as files
from spark_jobs.lake.leases import Lease
from spark_jobs.query.as_of import list_tables
from spark_jobs.query.read_bound import find_bound_at
from walgate.table import TableAt


def open_lake(config: str | os.PathLike[str] | None = None) -> Lake:
    """Open the lake of a configuration for reading.

    Without `config`, the file is found as the commands find it: by `WALGATE_CONFIG`, then
    `./walgate.toml`. Raises: ConfigurationError with every mistake in it.
    """
    return Lake(load_settings(None if config is None else Path(config), os.environ))


class Lake:
    """A lake that is open for reading. It needs neither the source nor Redis."""

    def __init__(self, settings: Settings) -> None:
        """Users call `walgate.open`. This reads nothing."""
        self._settings = settings

    def at(self, point: str | datetime = "latest") -> LakeAt:
        """The lake at `latest` (the newest cut), `live` (all that is staged), an LSN or a time.

        A time selects every transaction whose log time is at or before it. Without an offset it is
        in UTC.
        Raises: LakeError if the lake cannot be read there; its text says what can be read.
        ConfigurationError if `point` is none of these.
        """
        lake = files.Lake.of(self._settings)
        bound = find_bound_at(lake, _parse(point))
        return LakeAt(self._settings, lake, bound, Lease(lake, bound))


class LakeAt:
    """All tables at one LSN. Each transaction of the source is in all of them, or in none."""

    def __init__(
        self, settings: Settings, lake: files.Lake, bound: files.Bound, lease: Lease
    ) -> None:
        """Users call `Lake.at`. This reads nothing.

        As long as the program keeps this object or one of its tables, maintenance keeps what they
        read.
        """
        self._settings, self._lake, self._bound = settings, lake, bound
        self._lease = lease

    @property
    def lsn(self) -> str:
        """The LSN, as PostgreSQL writes it."""
        return str(self._bound.lsn)

    @property
    def epoch(self) -> int:
        """The epoch of the LSN. After a recovery, a new epoch may have smaller LSNs."""
        return self._bound.epoch

    def __repr__(self) -> str:
        """Lake and LSN."""
        return f"<walgate.LakeAt {self._lake.root} at {self.lsn}>"

    def tables(self) -> list[str]:
        """List the tables of the lake, by name as PostgreSQL quotes it."""
        return [str(table) for table in self._tables]

    def table(self, name: str) -> TableAt:
        """A table, by `schema.name`, or by `name` alone if its schema is public. Starts no JVM.

        Raises: LakeError if the lake has no such table, or if its version is gone;
        ConfigurationError if `name` is not a table name.
        """
        table = _parse_name(name)
        if table not in self._tables:
            listed = ", ".join(self.tables()) or "none"
            raise LakeError(
                f"the lake has no table {table}: expected one of {listed}",
                fix="check the name and the publication",
                retry=Retry.AFTER_FIX,
            )
        return TableAt(self._settings, self._lake, table, self._bound, self._lease)

    @cached_property
    def _tables(self) -> list[TableName]:
        """All tables of the lake. To list them reads every relation of the log, so do it once."""
        return list_tables(self._lake)


def _parse(point: str | datetime) -> ReadPoint:
    try:
        return parse_read_point(point) if isinstance(point, str) else put_in_utc(point)
    except (ValueError, OverflowError) as error:
        raise ConfigurationError([str(error)], fix="give one of these forms") from error


def _parse_name(name: str) -> TableName:
    for text in (name, f"public.{name}"):
        try:
            return TableName.parse(text)
        except ValueError:
            continue
    raise ConfigurationError(
        [f"not a table name: {name!r}"], fix='give schema.name or "schema"."name"'
    )
