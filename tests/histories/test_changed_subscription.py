"""Other publications or another origin asked for, while changes wait to be confirmed.

The server then sends other transactions again than were staged, as a restored one would. Nothing is
lost by it: asked as before, capture goes on.
"""

from __future__ import annotations

import pytest

from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.walgate_command import run_walgate

CRASH = {"WALGATE_CRASH_AT": "after_delta_commit"}
NARROW = {"WALGATE_SOURCE__PUBLICATION": '["narrow"]'}
WIDE = {"WALGATE_SOURCE__PUBLICATION": '["walgate"]'}
NO_ORIGIN = {"WALGATE_SOURCE__ORIGIN": "none"}
ANY_ORIGIN = {"WALGATE_SOURCE__ORIGIN": "any"}
COMMANDS = {"replicate --until-current": 4, "check": 1, "recover": 4, "recover --yes": 4}
OTHER, TOLD = "insert into other values (1)", "insert into told values (1)"
REPLICATED = """
    select pg_replication_origin_create('elsewhere');
    select pg_replication_origin_session_setup('elsewhere');
    insert into other values (2);
"""


@pytest.fixture
def shop(pipeline: Pipeline) -> Pipeline:
    """Two tables, one of them in both publications, and some staged changes."""
    pipeline.database.execute(
        "create table told (id int primary key); create table other (id int primary key);"
        " create publication narrow for table told"
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
            [OTHER, TOLD],
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
    shop.database.execute("insert into told values (9)")
    shop.catch_up(**after)
    assert shop.slot_facts()["confirmed"] >= shop.staged() > slot["confirmed"]


def stage_unconfirmed(shop: Pipeline, settings: dict[str, str]) -> None:
    """Let a capture die between a commit of the log and its confirmation."""
    child = shop.start("--until-current", **settings, **CRASH)
    assert child.wait(DEADLINE_S) != 0, child.output()
    assert shop.staged() > shop.slot_facts()["confirmed"]
