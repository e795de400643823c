"""The text of a transcript: what a person writes in it, and where the rest goes.

A transcript begins with a title. Sections follow: a heading, an empty line, then indented lines. A
person writes the title, the settings and the SQL. `make transcripts` writes all other sections,
each below the SQL that it comes from.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
INDENT: Final = "    "

SETTINGS: Final = "walgate.toml has:"
BEFORE: Final = "Before the replication slot exists, the source runs:"
SQL: Final = "The source runs:"
LOG: Final = "The log then has:"
# The first words of each heading above a table.
MERGE: Final = "The merge "
_SECTION = re.compile(r"\n{2,}(?=\S)")
_END_OF_STATEMENT = re.compile(r";[ \t]*(?:\n|\Z)")
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, and the lines below it, without their indentation."""

    heading: str
    body: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """What a person wrote. `name` is the schema of the tables, and the name of the file.

    Each of `steps` is SQL that is staged and merged before the next one runs.
    """

    name: str
    title: str
    settings: str
    before: str
    steps: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The file."""
        return FOLDER / f"{self.name}.txt"


def read_transcripts() -> list[Transcript]:
    """Read what a person wrote in each transcript, in the order of their names."""
    return [parse(path.stem, path.read_text()) for path in sorted(FOLDER.glob("*.txt"))]


def parse(name: str, text: str) -> Transcript:
    """Read what a person wrote. The text may lack all that `make transcripts` writes."""
    title, sections = _split(text)
    for section in sections:
        known = section.heading in {SETTINGS, BEFORE, SQL, LOG} or section.heading.startswith(MERGE)
        assert known, f"{name}: {section.heading!r} is no heading of a transcript"

    def find(heading: str) -> tuple[str, ...]:
        return tuple(one.body for one in sections if one.heading == heading)

    settings, before = find(SETTINGS), find(BEFORE)
    return Transcript(name, title, "\n".join(settings), "\n".join(before), find(SQL))


def leave_out_tables(text: str) -> str:
    """The text of a transcript as it is where nothing merges the log."""
    title, sections = _split(text)
    return _join(title, (one for one in sections if one.heading in {SETTINGS, BEFORE, SQL, LOG}))


def assemble(transcript: Transcript, results: Sequence[Sequence[Section]]) -> str:
    """Write a transcript, with the sections that each of its steps led to."""
    sections = []
    if transcript.settings:
        sections.append(Section(SETTINGS, transcript.settings))
    if transcript.before:
        sections.append(Section(BEFORE, transcript.before))
    for step, result in zip(transcript.steps, results, strict=True):
        sections += [Section(SQL, step), *result]
    return _join(transcript.title, sections)


def split_statements(text: str) -> list[str]:
    """Split SQL into its statements. Each ends with a semicolon at the end of a line."""
    statements = _END_OF_STATEMENT.split(_COMMENT.sub("", text))
    return [statement.strip() for statement in statements if statement.strip()]


def _split(text: str) -> tuple[str, list[Section]]:
    title, *blocks = _SECTION.split(text.strip())
    sections = []
    for block in blocks:
        heading, _, body = block.partition("\n\n")
        sections.append(Section(heading, textwrap.dedent(body)))
    return title, sections


def _join(title: str, sections: Iterable[Section]) -> str:
    blocks = [title]
    for section in sections:
        blocks.append(section.heading)
        if section.body:
            blocks.append(textwrap.indent(section.body, INDENT))
    return "\n\n".join(blocks) + "\n"
