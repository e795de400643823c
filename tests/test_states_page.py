"""docs/states.md says what the tables of states in the code say."""

from __future__ import annotations

from cdc_core.table_states import BackfillState
from tests.states_page import PAGE, describe_backfill_states, replace_tables


def test_the_page_has_the_tables_of_states_that_the_code_has() -> None:
    page = PAGE.read_text()
    assert replace_tables(page) == page


def test_a_state_of_a_backfill_without_an_end_is_said_to_have_none() -> None:
    said = {line[0]: line[2] for line in describe_backfill_states()}
    assert [said[f"`{s}`"] for s in BackfillState if not s.next_states] == ["Never."]
    assert list(said.values()).count("Never.") == 1
