"""Removes fixes by name: each mutation brings one old bug back into the real parts.

A simulator that finds nothing proves nothing. It must find each of these bugs and shrink it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cdc_core.backfill import completing
from cdc_core.backfill.changed_key_tracker import ChangedKeyTracker, _Kept
from cdc_core.backfill.marks import KeepChangedKeys
from cdc_core.backfill.reading import Reading
from cdc_core.backfill.visibility import ChangedKeys, Snapshot, Texts
from cdc_core.capture.backfills import Spooled
from cdc_core.capture.known_relations import KnownRelations
from cdc_core.capture.replay import Replay
from cdc_core.capture.run import _find_spooled
from cdc_core.protocol.messages import Begin
from cdc_core.settings import Settings
from cdc_core.targets import Target
from spark_jobs.lake import cut_plan
from spark_jobs.lake.cut_plan import ORIGIN, Place
from spark_jobs.lake.lake import Bound, find_bound
from spark_jobs.lake.ledger import Cut
from spark_jobs.maintenance.log_floor import OLDEST_CUT, Floor
from spark_jobs.merge import opened_target, rounds, targets
from spark_jobs.query import stored
from tests.simulation import capture_part, merge_part, worlds
from tests.simulation.histories import Play
from tests.simulation.server import Server
from tests.simulation.source import SimulatedSteps
from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Mutation:
    """A fix, the world that needs it, and how to remove it.

    `deviations` is how many deviations from the plainest history find the bug; 0 means by seeds.
    """

    name: str
    play: Play
    take_out: Callable[[pytest.MonkeyPatch], None]
    deviations: int = 0


def _let_signs_of_life_make_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    def renew(self: ChangedKeyTracker, step: KeepChangedKeys, *, at_us: int) -> bool:
        kept = self._kept.setdefault(step.memory, _Kept("public.t", ChangedKeys(), at_us))
        kept.heard_at_us = at_us
        return True

    monkeypatch.setattr(ChangedKeyTracker, "renew", renew)


def _wait_for_listed_transactions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_xid(_: SimulatedSteps) -> int:
        return World.now.server.snapshot().xmax

    monkeypatch.setattr(SimulatedSteps, "take_xid", take_xid)


def _share_a_version_over_a_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spooled(settings: Settings, known: KnownRelations) -> Spooled:
        return replace(_find_spooled(settings, known), note=lambda _: None)

    monkeypatch.setattr(capture_part, "_find_spooled", find_spooled)
    monkeypatch.setattr(Reading, "require_values_kept", lambda *_: None)


def _take_smaller_xids_for_older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "catalog_xmin", lambda *_: sys.maxsize)


def _read_every_table_as_the_cut_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_fold(_: Bound, at: Bound, *, is_halted: bool) -> bool:
        del is_halted
        cut = World.now.tables.find_cut(at)
        return cut is None or cut.bound != at

    monkeypatch.setattr(stored, "needs_fold", needs_fold)


def _name_versions_above_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    open_target, prepare = opened_target.open_target, targets._prepare

    def open_beyond(start: Any, target: Target, cut: Bound, **options: Any) -> Any:
        found = open_target(start, target, cut, **options)
        return target if found is None else found

    def prepare_beyond(start: Any, opened: Any, *arguments: Any) -> Any:
        if not isinstance(opened, Target):
            return prepare(start, opened, *arguments)
        there = World.now.tables.open(start.lake.locate_target(opened))
        assert there is not None
        bound = find_bound(there, start.epochs)  # type: ignore[arg-type]
        assert bound is not None
        return targets.TableRound(Place(bound, there.version()), None, None)

    def name_places(
        cut: Bound,
        before: Mapping[str, Place],
        reached: Mapping[str, Place],
        *,
        waiting: Collection[str],
        previous: Bound | None,
    ) -> dict[str, Place]:
        del previous
        places = {table: Place(cut, place.version) for table, place in before.items()}
        places |= {table: before.get(table, Place(ORIGIN, None)) for table in waiting}
        return places | dict(reached)

    monkeypatch.setattr(targets, "open_target", open_beyond)
    monkeypatch.setattr(targets, "_prepare", prepare_beyond)
    monkeypatch.setattr(rounds, "name_places", name_places)


def _read_no_row_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completing, "find_incomplete", lambda *_, **__: frozenset())


def _trim_what_a_table_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_floor(cuts: Sequence[Cut], **_: object) -> Floor:
        return Floor(cuts[0].bound, OLDEST_CUT)

    monkeypatch.setattr(merge_part, "find_floor", find_floor)


def _name_a_new_table_at_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    def name_places(*given: Any, previous: Bound | None, **more: Any) -> dict[str, Place]:
        del previous
        return cut_plan.name_places(*given, previous=None, **more)

    monkeypatch.setattr(rounds, "name_places", name_places)


def _admit_what_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_current(_: ChangedKeys, snapshot: Snapshot, keys: Texts) -> npt.NDArray[np.bool_]:
        del snapshot
        return np.ones(len(keys), np.bool_)

    monkeypatch.setattr(ChangedKeys, "find_current", find_current)


def _forget_what_an_open_read_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: ChangedKeys, oldest: Snapshot) -> None:
        del oldest
        self._changed.clear()

    monkeypatch.setattr(ChangedKeys, "forget", forget)


def _stage_a_replay_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def has(_: Replay, begin: Begin) -> bool:
        del begin
        return False

    monkeypatch.setattr(Replay, "has", has)


MUTATIONS = (
    Mutation("line_1_forgotten_memory", worlds.play_small, _let_signs_of_life_make_memories),
    Mutation("line_3_shared_version", worlds.play_altered, _share_a_version_over_a_rewrite),
    Mutation("late_rewrite", worlds.play_altered_late, _take_smaller_xids_for_older, 3),
    Mutation("line_4_unlisted_writer", worlds.play_small, _wait_for_listed_transactions_alone, 2),
    Mutation("line_5_mixed_bounds", worlds.play_merges, _read_every_table_as_the_cut_names_it),
    Mutation("line_6_older_value", worlds.play_recovered, _read_no_row_again),
    Mutation("line_9_above_the_cut", worlds.play_small_merges, _name_versions_above_the_cut, 1),
    Mutation("trimmed_too_far", worlds.play_merges, _trim_what_a_table_needs),
    Mutation("new_after_a_trim", worlds.play_merges, _name_a_new_table_at_the_beginning),
    Mutation("stale_rows", worlds.play_small, _admit_what_is_stale, 2),
    Mutation("replay", worlds.play_small, _stage_a_replay_again),
    Mutation("open_reads", worlds.play_backfill, _forget_what_an_open_read_does_not_see),
)
