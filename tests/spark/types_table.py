"""The table of types in docs/types.md; `python -m tests.spark.types_table` writes it there."""

from __future__ import annotations

from spark_jobs.pg_types.types import describe_types
from tests.walgate_command import REPOSITORY

PAGE = REPOSITORY / "docs" / "types.md"
OPENING, CLOSING = "<!-- types -->", "<!-- end of types -->"


def replace_table(page: str) -> str:
    """Give the page with the table as the code has it."""
    before, opening, rest = page.partition(OPENING)
    _, closing, after = rest.partition(CLOSING)
    assert opening, f"the page has no {OPENING}"
    assert closing, f"the page has no {CLOSING}"
    lines = [("PostgreSQL", "column in the lake", "`_raw` holds"), ("---", "---", "---")]
    table = "\n".join(f"| {' | '.join(line)} |" for line in (*lines, *describe_types()))
    return f"{before}{opening}\n{table}\n{closing}{after}"


if __name__ == "__main__":
    PAGE.write_text(replace_table(PAGE.read_text()))
