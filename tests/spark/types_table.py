"""The README's table of types; `python -m tests.spark.types_table` puts it between its markers."""

from __future__ import annotations

from spark_jobs.pg_types.types import describe_types
from tests.walgate_command import REPOSITORY

README = REPOSITORY / "README.md"
OPENING, CLOSING = "<!-- types -->", "<!-- end of types -->"


def replace_table(readme: str) -> str:
    """Give the README with the table as the code has it."""
    before, opening, rest = readme.partition(OPENING)
    _, closing, after = rest.partition(CLOSING)
    assert opening, f"the README has no {OPENING}"
    assert closing, f"the README has no {CLOSING}"
    lines = [("PostgreSQL", "column in the lake", "`_raw` holds"), ("---", "---", "---")]
    table = "\n".join(f"| {' | '.join(line)} |" for line in (*lines, *describe_types()))
    return f"{before}{opening}\n{table}\n{closing}{after}"


if __name__ == "__main__":
    README.write_text(replace_table(README.read_text()))
