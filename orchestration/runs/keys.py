"""The asset keys of a pipeline, in a Dagster that may also hold other assets."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import dagster as dg

from cdc_core.lake_layout import CHANGES, CUTS
from cdc_core.settings import DEFAULT_PIPELINE, Settings
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import TableName

_PLAIN = re.compile(r"[A-Za-z0-9_]+")
_ODD = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class AssetKeys:
    """The asset keys of one pipeline. They begin with its name if that is not the default."""

    prefix: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> AssetKeys:
        """The asset keys of the pipeline that the settings name."""
        name = settings.dagster.pipeline
        return cls(() if name == DEFAULT_PIPELINE else (name,))

    @property
    def staging(self) -> dg.AssetKey:
        """The key of the log."""
        return self._make(*CHANGES.split("/"))

    @property
    def cuts(self) -> dg.AssetKey:
        """The key of the cuts: the LSNs at which all tables can be read together."""
        return self._make(*CUTS.split("/"))

    @property
    def backfill(self) -> dg.AssetKey:
        """The key of the asset whose partitions are tables."""
        return self._make("backfill")

    @property
    def maintenance(self) -> dg.AssetKey:
        """The key of the asset that maintains the lake."""
        return self._make("maintenance")

    def find_table(self, table: TableName) -> dg.AssetKey:
        """The key of a table's asset, `tables/<schema>/<name>`."""
        return self.find_target(Target(table))

    def find_target(self, target: Target) -> dg.AssetKey:
        """The key of a target's asset, such as `append/<schema>/<name>`."""
        return self._make(target.kind.value, *list_parts(target.table))

    def is_merged(self, key: dg.AssetKey) -> bool:
        """Whether an asset is a target of this pipeline, or its cuts."""
        folders = [[*self.prefix, kind.value] for kind in TargetKind]
        return key == self.cuts or key.path[:-2] in folders

    def shorten(self, key: dg.AssetKey) -> str:
        """The text of a key of this pipeline, without the pipeline's name."""
        return "/".join(key.path[len(self.prefix) :])

    def _make(self, *parts: str) -> dg.AssetKey:
        return dg.AssetKey([*self.prefix, *parts])


def list_parts(table: TableName) -> tuple[str, str]:
    """The schema and the name of a table, as its asset key spells them."""
    return _spell(table.schema), _spell(table.name)


def _spell(name: str) -> str:
    """A name in characters that Dagster allows; a changed name gets a hash, so it stays unique."""
    if _PLAIN.fullmatch(name):
        return name
    return f"{_ODD.sub('_', name)}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
