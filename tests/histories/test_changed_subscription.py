"""Other publications or another origin asked for, while changes wait to be confirmed.

The server then sends other transactions again than were staged, as a restored one would. Nothing is
lost by it: asked as before, capture goes on.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cdc_core.errors import Retry, StagingError
from cdc_core.staging.subscriptions import Subscription, SubscriptionChange
from cdc_core.vocabulary import Lsn
from orchestration.capture.capture import queue_unsent
from spark_jobs.lake.completeness import read_completeness
from spark_jobs.lake.lake import Lake
from spark_jobs.lake.ledger import read_requests
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.lakes import path_of
from tests.postgres_server import Database
from tests.refusing_disk import RefusingDisk
from tests.walgate_command import run_walgate

CRASH = {"WALGATE_CRASH_AT": "after_delta_commit"}
NARROW = {"WALGATE_SOURCE__PUBLICATION": '["narrow"]'}
WIDE = {"WALGATE_SOURCE__PUBLICATION": '["walgate"]'}
NO_ORIGIN = {"WALGATE_SOURCE__ORIGIN": "none"}
ANY_ORIGIN = {"WALGATE_SOURCE__ORIGIN": "any"}
# From this version on the server passes over changes that are older than their publication.
PASSES_OVER_SINCE = 18
COMMANDS = {"replicate --until-current": 4, "check": 1, "recover": 4, "recover --yes": 4}
OTHER, COMMON = "insert into other values (1)", "insert into common values (1)"
REPLICATED = """
    select pg_replication_origin_create('changed_subscription')
    where not exists (select from pg_replication_origin where roname = 'changed_subscription');
    select pg_replication_origin_session_setup('changed_subscription');
    insert into other values (2);
"""


@pytest.fixture
def shop(pipeline: Pipeline) -> Pipeline:
    """Two tables, one of them in both publications, and some staged changes."""
    return fill(pipeline)


def fill(pipeline: Pipeline) -> Pipeline:
    """Make the tables, the second publication, and a slot that is younger than both."""
    pipeline.database.execute(
        "create table common (id int primary key); create table other (id int primary key);"
        " create publication narrow for table common"
    )
    pipeline.make_slot_again()
    return pipeline


@pytest.mark.parametrize(
    ("before", "after", "statements", "said"),
    [
        (WIDE, NARROW, [OTHER], "publication was changed from walgate to"),
        (
            NARROW,
            WIDE,
            [OTHER, COMMON],
            "to walgate",
        ),
        (ANY_ORIGIN, NO_ORIGIN, [REPLICATED], "[source] origin was changed from any to none"),
    ],
    ids=["narrower", "wider", "origin"],
)
def test_settings_that_changed_over_unconfirmed_changes_are_named_and_recover_nothing(
    shop: Pipeline, before: dict[str, str], after: dict[str, str], statements: list[str], said: str
) -> None:
    for statement in statements:
        shop.database.execute(statement)
    stage_unconfirmed(shop, before)
    slot = shop.slot_facts()
    for command, code in COMMANDS.items():
        answer = run_walgate(*command.split(), folder=shop.folder, environment=after)
        assert answer.exit_code == code, answer
        assert said in answer.stderr + answer.stdout
        assert "change it back" in answer.stderr + answer.stdout
    assert shop.slot_facts()["confirmed"] == slot["confirmed"]
    # As it was once, and then as it is to be.
    shop.catch_up(**before)
    shop.database.execute("insert into common values (9)")
    shop.catch_up(**after)
    assert shop.slot_facts()["confirmed"] >= shop.staged() > slot["confirmed"]


@pytest.mark.parametrize(
    ("apart", "back", "statement"),
    [(NARROW, WIDE, OTHER), (NO_ORIGIN, ANY_ORIGIN, REPLICATED)],
    ids=["publication", "origin"],
)
def test_what_was_not_sent_under_other_settings_is_read_whole_once_they_are_changed_back(
    shop: Pipeline, apart: dict[str, str], back: dict[str, str], statement: str
) -> None:
    shop.catch_up(**back)
    answer = run_walgate("backfill", "public.other", "public.common", folder=shop.folder)
    assert answer.exit_code == 0, answer
    assert not list_queued(shop)
    shop.database.execute(statement)
    shop.database.execute("insert into common values (7)")
    shop.catch_up(**apart)
    assert "public.other" not in list_queued(shop)
    child = shop.start("--until-current", **back, WALGATE_CRASH_AT="before_delta_commit")
    shop.database.execute("insert into common values (8)")
    child.wait(DEADLINE_S)
    shop.catch_up(**back)
    assert "public.other" in list_queued(shop)
    for table in list_queued(shop):
        assert run_walgate("backfill", table, folder=shop.folder).exit_code == 0
    assert not list_queued(shop)


def test_every_table_of_a_publication_that_is_added_is_read_whole(shop: Pipeline) -> None:
    """What a publication that was named before sent of it, the catalog of today does not tell."""
    shop.database.execute("insert into common values (1); insert into other values (1)")
    shop.catch_up(**NARROW)
    shop.database.execute("insert into common values (2); insert into other values (2)")
    shop.catch_up(WALGATE_SOURCE__PUBLICATION='["walgate", "narrow"]')
    requests = {request.table for request in read_requests(Lake(shop.lake))}
    assert requests == {"public.common", "public.other"}


def test_a_table_that_both_publications_hold_by_now_is_read_whole_all_the_same(
    shop: Pipeline,
) -> None:
    shop.catch_up(**WIDE)
    answer = run_walgate("backfill", "public.other", folder=shop.folder)
    assert answer.exit_code == 0, answer
    shop.catch_up(**NARROW)
    shop.database.execute(OTHER)
    shop.database.execute(COMMON)
    shop.catch_up(**NARROW)
    # Somebody notices, and then goes back to the settings that were right.
    shop.database.execute("alter publication narrow add table other")
    shop.database.execute("insert into common values (2)")
    shop.catch_up(**WIDE)
    assert "public.other" in list_queued(shop)


def test_a_publication_that_is_younger_than_the_slot_costs_neither_the_slot_nor_a_row(
    database: Database, make_pipeline: Callable[..., Pipeline]
) -> None:
    shop = fill(make_pipeline(database))
    shop.database.execute(COMMON)
    shop.catch_up(**WIDE)
    answer = run_walgate("backfill", "public.common", folder=shop.folder)
    assert answer.exit_code == 0, answer
    shop.database.execute("insert into common values (5)")
    shop.database.execute("create publication young for table common")
    young = {"WALGATE_SOURCE__PUBLICATION": '["young"]'}
    slot = shop.slot_facts()
    is_passed_over = shop.database.server.version >= PASSES_OVER_SINCE
    if not is_passed_over:
        for command, code in COMMANDS.items():
            answer = run_walgate(*command.split(), folder=shop.folder, environment=young)
            assert answer.exit_code == code, answer
            assert "publication was changed from walgate to young" in answer.stderr + answer.stdout
        assert shop.slot_facts() == slot
        shop.catch_up(**WIDE)
    shop.catch_up(**young)
    assert "public.common" in list_queued(shop)


def test_a_ledger_that_the_disk_refuses_is_tried_again_as_the_log_is(
    shop: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.catch_up(**NARROW)
    before, now = (Subscription((name,), "any") for name in ("narrow", "walgate"))
    settings = shop.load_settings()
    RefusingDisk(monkeypatch).refuse(path_of(Lake.of(settings).states), ".json", times=2)
    with pytest.raises(StagingError) as caught:
        queue_unsent(settings, SubscriptionChange(before, now), 1, Lsn(1))
    assert caught.value.retry is Retry.LATER


def list_queued(shop: Pipeline) -> list[str]:
    """Which of the two tables may lack rows, by the ledgers."""
    tables = ("public.other", "public.common")
    return sorted(read_completeness(Lake(shop.lake)).list_incomplete(tables))


def stage_unconfirmed(shop: Pipeline, settings: dict[str, str]) -> None:
    """Let a capture die between a commit of the log and its confirmation."""
    child = shop.start("--until-current", **settings, **CRASH)
    assert child.wait(DEADLINE_S) != 0, child.output()
    assert shop.staged() > shop.slot_facts()["confirmed"]
