"""The state of a pipeline: source, slot, capture, lake and tables.

Progress is read from the lake through delta-rs, live figures from Redis, so no JVM starts. A part
that is down is missing from the answer, and a problem of the answer names it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from cdc_core.coordination.live import Figures
from cdc_core.coordination.redis_coordination import RedisCoordination
from cdc_core.errors import SourceError, StagingError
from cdc_core.settings import Settings
from cdc_core.source.backfillable import ReadObstacle, find_read_obstacles
from cdc_core.source.connection import open_for_query
from cdc_core.source.identity import Identity, read_identity
from cdc_core.source.preflight import find_problems
from cdc_core.source.problems import Problem, Severity
from cdc_core.source.retention import Retention, find_retention, measure_growth, read_slot_budget
from cdc_core.source.slot import Slot, read_slot
from cdc_core.source.slot_problems import BUDGET_CODE, find_budget_problems
from cdc_core.source.table_oids import read_names
from cdc_core.staging.epochs import read_newest_epoch
from cdc_core.staging.tables import staging_errors
from cdc_core.staging.verifications import DIFFERENT, TableVerification, VerificationLedger
from cdc_core.table_states import BackfillState, TableState
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import Lsn, TableName, format_time
from orchestration.status.backfills import describe_backfills
from orchestration.status.space import Space, describe_space, list_space_problems, read_space
from orchestration.status.table_facts import Facts, read_facts
from orchestration.status.targets import describe_targets
from orchestration.status.unpublished import Whereabouts, find_unpublished
from spark_jobs.lake.completeness import Completeness, read_completeness
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import Cut, StateRecord, find_cut, read_places, read_states
from spark_jobs.target.older_targets import FIX as OLDER_FIX
from spark_jobs.target.older_targets import inspect_targets

ANSWER_VERSION = 1
_SLOT_FACTS = (
    *("active_pid", "confirmed_flush", "restart", "wal_status", "retained_bytes"),
    *("safe_wal_size", "inactive_seconds"),
)


@dataclass(frozen=True, slots=True)
class _Source:
    """What the source shows at one moment."""

    identity: Identity
    slot: Slot | None
    budget_bytes: int
    tables: dict[str, ReadObstacle | None]
    problems: list[Problem]
    growth: float | None
    whereabouts: Whereabouts

    @property
    def retention(self) -> Retention | None:
        """What the slot holds back; None if it is missing or lost."""
        return None if self.slot is None else find_retention(self.slot, self.budget_bytes)

    @property
    def is_capture_active(self) -> bool:
        """Whether our own capture uses the slot."""
        is_foreign = any(
            problem.code == "slot_active" and problem.severity is Severity.ERROR
            for problem in self.problems
        )
        return self.slot is not None and self.slot.active_pid is not None and not is_foreign


@dataclass(frozen=True, slots=True)
class _Progress:
    """What the lake shows at one moment; only the failure if it cannot be read."""

    staged: Bound | None = None
    cut: Cut | None = None
    states: dict[str, StateRecord] = field(default_factory=dict)
    backfilled: Completeness = field(default_factory=Completeness)
    tables: set[str] = field(default_factory=set)
    facts: Facts = field(default_factory=Facts)
    older: dict[str, str] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    backfills: list[dict[str, Any]] = field(default_factory=list)
    standings: dict[str, TableVerification] = field(default_factory=dict)
    is_recovering: bool = False
    space: Space = field(default_factory=Space)
    failure: StagingError | None = None


def read_status(settings: Settings) -> dict[str, Any]:
    """The answer with every section of `status --json`; `source` is None if the source is down."""
    lease = RedisCoordination(settings.redis, slot=settings.source.slot)
    with closing(lease):
        is_redis_up = lease.is_up()
        figures = lease.read_figures() if is_redis_up else None
    failure: SourceError | None = None
    source: _Source | None = None
    try:
        source = _read_source(settings, figures)
    except SourceError as error:
        failure = error
    progress = _read_progress(settings)
    return {
        "version": ANSWER_VERSION,
        "at": _format_time(datetime.now(UTC)),
        "source": None if source is None else _describe_source(source.identity),
        "slot": None if source is None else _describe_slot(settings.source.slot, source),
        "capture": _describe_capture(source, progress, figures),
        "lake": {
            "root": str(settings.lake.root),
            "cut_lsn": None if progress.cut is None else str(progress.cut.bound.lsn),
            "cut_at": None if progress.cut is None else _format_time(progress.cut.committed_at),
        },
        "maintenance": describe_space(progress.space),
        "redis": {"up": is_redis_up},
        "tables": _describe_tables(Lake.of(settings), source, progress),
        "backfills": progress.backfills,
        "problems": list(_list_problems(source, progress, figures, failure, is_up=is_redis_up)),
    }


def _read_source(settings: Settings, figures: Figures | None) -> _Source:
    source = settings.source
    with closing(open_for_query(source, application_name="walgate status")) as connection:
        slot = read_slot(connection, source.slot)
        growth = None if figures is None else figures.retained_growth
        if growth is None and slot is not None:
            growth = measure_growth(connection, slot)
        identity = read_identity(connection)
        hindrances = find_read_obstacles(connection, source.publication)
        tables = {str(table): hindrance for table, hindrance in hindrances.items()}
        away = _find_unpublished(settings, identity, tables)
        return _Source(
            identity,
            slot,
            read_slot_budget(connection, source),
            tables,
            find_problems(connection, source, settings.tables),
            growth,
            Whereabouts(away, read_names(connection, away)),
        )


def _find_unpublished(
    settings: Settings, identity: Identity, published: Collection[str]
) -> dict[TableName, int]:
    # If the lake cannot be read, another problem reports that.
    with suppress(StagingError), staging_errors("read the relations"):
        lake = Lake.of(settings)
        return find_unpublished(lake, system_id=identity.system_id, published=published)
    return {}


def _read_progress(settings: Settings) -> _Progress:
    lake = Lake.of(settings)
    try:
        with staging_errors("read the lake"):
            cut = find_cut(lake)
            merged = [] if cut is None else cut.list_tables()
            relations = lake.read_relations()
            places = read_places(lake, cut, relations)
            epoch = read_newest_epoch(settings.lake.root)
            facts = read_facts(lake, merged)
            older = inspect_targets(lake, places, lake.read_epochs(), is_thorough=True).older
            return _Progress(
                staged=lake.read_staged(lake.read_epochs()),
                cut=cut,
                facts=facts,
                states={
                    name: state
                    for name, state in read_states(lake).items()
                    if name in places or Target.parse(name).kind is TargetKind.ROWS
                },
                backfilled=read_completeness(lake),
                tables={str(relation.table) for relation in relations.values()},
                backfills=describe_backfills(settings.lake),
                standings=VerificationLedger(settings.lake.root).read_table_verifications(),
                older={table: older[table] for table in older.keys() - facts.unreadable},
                kept={str(table) for table in merged if lake.locate(table).is_folder()},
                is_recovering=epoch is not None and epoch.is_pending,
                space=read_space(settings, lake),
            )
    except StagingError as error:
        return _Progress(failure=error)


def _describe_source(identity: Identity) -> dict[str, Any]:
    return {
        "system_id": identity.system_id,
        "timeline": identity.timeline,
        "server_version": identity.version,
        "current_lsn": str(identity.current),
    }


def _describe_slot(name: str, source: _Source) -> dict[str, Any]:
    slot, retention = source.slot, source.retention
    if slot is None:
        facts = dict.fromkeys(_SLOT_FACTS)
        state = "missing"
    else:
        facts = {fact: getattr(slot, fact) for fact in _SLOT_FACTS}
        state = "lost" if slot.is_lost else "idle" if slot.active_pid is None else "active"
    return {
        "name": name,
        "state": state,
        "active_pid": facts["active_pid"],
        "confirmed_flush_lsn": _format_lsn(facts["confirmed_flush"]),
        "restart_lsn": _format_lsn(facts["restart"]),
        "wal_status": facts["wal_status"],
        "retained_bytes": facts["retained_bytes"],
        "budget_bytes": source.budget_bytes,
        "budget_used_percent": retention and retention.used_percent,
        "safe_wal_size": facts["safe_wal_size"],
        "inactive_seconds": facts["inactive_seconds"],
        "growth_bytes_per_second": source.growth,
        "seconds_left": retention and retention.seconds_left(source.growth),
    }


def _describe_capture(
    source: _Source | None, progress: _Progress, figures: Figures | None
) -> dict[str, Any]:
    """The staged LSN is from the lake, other figures from Redis, liveness from the slot.

    If the source is down, figures in Redis mean that capture lives.
    """
    is_alive = figures is not None if source is None else source.is_capture_active
    live = figures if is_alive else None
    state = "stopped" if not is_alive else "running" if live is None else live.state
    staged = progress.staged
    lag_bytes = None
    if source is not None and staged is not None:
        lag_bytes = max(0, source.identity.current - staged.lsn)
    return {
        "state": state,
        "term": live and live.term,
        "epoch": None if staged is None else staged.epoch,
        "staged_lsn": None if staged is None else str(staged.lsn),
        "lag_bytes": lag_bytes,
        "lag_seconds": 0.0 if lag_bytes == 0 else live and live.lag_seconds,
        "rows_per_second": live and live.rows_per_second,
    }


def _describe_tables(
    lake: Lake, source: _Source | None, progress: _Progress
) -> list[dict[str, Any]]:
    published = {} if source is None else source.tables
    cut = progress.cut
    merged = set() if cut is None else {str(table) for table in cut.list_named_tables()}
    recorded = {name for name in progress.states if Target.parse(name).kind is TargetKind.ROWS}
    answer = []
    for table in sorted({*published, *progress.tables, *recorded, *merged}):
        state = _tell_state(table, source, progress)
        standing = progress.standings.get(table)
        if standing is not None and progress.staged and standing.epoch != progress.staged.epoch:
            standing = None
        bound = None
        if cut is not None and table in merged:
            bound = cut.merged.get(table, cut.bound)
        answer.append(
            {
                "table": table,
                "state": state.state.value,
                "reason": state.reason,
                "fix": state.fix,
                "modes": [mode.value for mode in lake.choose_modes(TableName.parse(table))],
                "merged_lsn": None if bound is None else str(bound.lsn),
                "verified_lsn": _format_lsn(None if standing is None else standing.lsn),
                "rows": None,
                "lossy": progress.facts.lossy.get(table),
                "holes": progress.facts.holes.get(table),
                "quarantined": 0,
                "targets": describe_targets(lake, TableName.parse(table), progress.states, cut),
            }
        )
    return answer


def _tell_state(table: str, source: _Source | None, progress: _Progress) -> StateRecord:
    """The state of a table; a table that cannot be read is not shown as queued."""
    known = progress.states.get(table)
    if (error := progress.facts.unreadable.get(table)) is not None:
        return StateRecord(table, TableState.HALTED, error.message, error.fix)
    if table in progress.older:
        return StateRecord(table, TableState.HALTED, progress.older[table], OLDER_FIX)
    if source is not None and table not in source.tables:
        return source.whereabouts.explain(table, source.tables.keys())
    hindrance = None if source is None else source.tables[table]
    if hindrance is not None:
        is_halted = known is not None and known.state is TableState.HALTED
        told = StateRecord(table, TableState.HALTED, hindrance.reason, hindrance.fix)
        return known if known is not None and is_halted else told
    cut = None if progress.cut is None else progress.cut.bound
    state = progress.backfilled.derive_state(table, known, cut)
    running = {b["table"] for b in progress.backfills if b["state"] == BackfillState.RUNNING}
    if state.state is TableState.QUEUED and table in running:
        state = replace(state, state=TableState.BACKFILLING)
    return state


def _list_problems(
    source: _Source | None,
    progress: _Progress,
    figures: Figures | None,
    failure: SourceError | None,
    *,
    is_up: bool,
) -> Iterator[dict[str, Any]]:
    if failure is not None:
        yield _describe_problem(Severity.ERROR, "source_down", failure.message, failure.fix)
    for problem in _list_source_problems(source):
        if problem.severity is not Severity.NOTE:
            place = f"{problem.table}: " if problem.table else ""
            what = f"{place}{problem.what}, expected {problem.expected}, found {problem.found}"
            yield _describe_problem(problem.severity, problem.code, what, problem.fix)
    if figures is not None and figures.storage_error:
        what = f"the log cannot be written: {figures.storage_error}"
        fix = "check that the lake's storage is up, writable and not full"
        yield _describe_problem(Severity.ERROR, "storage", what, fix)
    if progress.failure is not None:
        what, fix = progress.failure.message, progress.failure.fix
        yield _describe_problem(Severity.ERROR, "lake_down", what, fix)
    if progress.is_recovering:
        what = "a recovery began and did not finish: capture stages nothing until it does"
        yield _describe_problem(Severity.ERROR, "recovering", what, "run `walgate recover --yes`")
    published = progress.kept if source is None else source.tables.keys()
    for table in sorted(progress.kept - published):
        state = _tell_state(table, source, progress)
        what = f"{table} is in the lake, but not published: {state.reason}"
        yield _describe_problem(Severity.WARNING, "table_not_published", what, state.fix or "")
    yield from _list_table_problems(progress)
    for severity, code, what, fix in list_space_problems(progress.space):
        yield _describe_problem(severity, code, what, fix)
    if not is_up:
        what = "Redis does not answer: no live figures, nothing else is affected"
        yield _describe_problem(
            Severity.WARNING, "redis_down", what, "start Redis, or correct [redis] url"
        )


def _list_table_problems(progress: _Progress) -> Iterator[dict[str, Any]]:
    for table, error in sorted(progress.facts.unreadable.items()):
        what = f"{table} is damaged: {error.message}"
        yield _describe_problem(Severity.ERROR, "table_damaged", what, error.fix)
    for table, age in sorted(progress.older.items()):
        yield _describe_problem(
            Severity.ERROR, "table_older", f"{table} is older than its cut: {age}", OLDER_FIX
        )
    for state in progress.states.values():
        if state.state is TableState.HALTED:
            what = f"{state.table} is halted: {state.reason}"
            severity = Severity.WARNING if state.curable else Severity.ERROR
            yield _describe_problem(severity, "table_halted", what, state.fix or "")
    for name, standing in sorted(progress.standings.items()):
        if standing.result == DIFFERENT:
            what = f"{name} differed from the source when it was last verified"
            fix = f"run `walgate verify '{name}' --heal`"
            yield _describe_problem(Severity.ERROR, "table_differs", what, fix)


def _list_source_problems(source: _Source | None) -> Iterator[Problem]:
    if source is None:
        return
    yield from (problem for problem in source.problems if problem.code != BUDGET_CODE)
    if source.retention is not None:
        # The preflight looks only once, so it cannot estimate when the budget is used up.
        yield from find_budget_problems(source.retention, source.growth)


def _describe_problem(severity: Severity, code: str, what: str, fix: str) -> dict[str, Any]:
    return {"severity": severity, "code": code, "what": what, "fix": fix}


def _format_lsn(lsn: Lsn | None) -> str | None:
    return None if lsn is None else str(lsn)


def _format_time(time: datetime | None) -> str | None:
    return None if time is None else format_time(time, "seconds")
