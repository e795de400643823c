"""Table names on the command line: `schema.name`, repeated or separated by commas."""

from __future__ import annotations

from collections.abc import Iterable

from cdc_core.errors import ConfigurationError
from cdc_core.vocabulary import TableName


def parse_tables(listed: Iterable[str] | None) -> list[TableName]:
    """Parse table names. Raises: ConfigurationError with every text that is not a table name."""
    names, problems = [], []
    for text in listed or ():
        try:
            names += [TableName.parse(name) for name in _split_names(text)]
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ConfigurationError(problems, fix='name tables as schema.name or "schema"."name"')
    return names


def _split_names(text: str) -> list[str]:
    """Split at the commas outside quotes."""
    parts = [""]
    is_quoted = False
    for character in text:
        is_quoted ^= character == '"'
        if character == "," and not is_quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
