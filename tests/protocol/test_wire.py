"""What real servers sent is read as written down, and they still send it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.protocol.transcript import (
    FOLDER,
    format_transcript,
    parse_transcript,
    read_frames,
    record,
    redact,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres_server import PostgresServer

FILES = sorted(FOLDER.glob("*.hex"))
NAMES = sorted({path.name.split(".")[0] for path in FILES})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_recorded_frames_are_read_as_written_down(path: Path) -> None:
    transcript = parse_transcript(path.read_text())
    assert read_frames(transcript.blocks) == transcript.readings
    assert len(transcript.readings) > 5
    assert format_transcript(transcript) == path.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_server_still_sends_what_was_recorded(name: str, postgres: PostgresServer) -> None:
    recorded = parse_transcript((FOLDER / f"{name}.{postgres.version}.hex").read_text())
    assert redact(record(postgres, recorded).readings) == redact(recorded.readings)
