"""The marker: what was asked for is emitted, over a lost connection too, and its death is seen."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from cdc_core.capture.marker import Marker
from cdc_core.capture.progress import CaptureProgress
from cdc_core.errors import Retry, SourceError
from cdc_core.vocabulary import Lsn
from tests.deadline import DeadlineMissedError, wait_for

DEADLINE_S = 30.0


class Server:
    """A server that marks are written to; it raises what it is told to, once each."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.marks: list[dict[str, object]] = []
        self.current = 0
        self.closed = 0

    def connect(self) -> Server:
        if self.failures:
            raise self.failures.pop(0)
        return self

    def emit_mark(self, detail: str) -> None:
        self.marks.append(json.loads(detail))

    def read_current_lsn(self) -> Lsn:
        return Lsn(self.current)

    def require_publications(self) -> None:
        pass

    def read_retention(self) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def progress() -> CaptureProgress:
    return CaptureProgress(Lsn(0), Lsn(0), Lsn(0))


@pytest.fixture
def markers() -> Iterator[list[Marker]]:
    """Lend a list of markers to be ended."""
    made: list[Marker] = []
    yield made
    for marker in made:
        marker.finish()


def test_a_requested_mark_is_emitted_with_its_term_even_if_the_run_ends_at_once(
    progress: CaptureProgress,
) -> None:
    server = Server()
    marker = Marker(server.connect, progress=progress, heartbeat_s=60.0)
    mark = marker.request()
    marker.finish()
    assert server.marks == [{"mark": mark}]
    assert server.closed == 1


def test_a_server_that_is_away_for_a_while_gets_the_mark_once(
    progress: CaptureProgress, markers: list[Marker]
) -> None:
    server = Server(SourceError("away", fix="wait", retry=Retry.LATER))
    markers.append(Marker(server.connect, progress=progress, heartbeat_s=60.0))
    mark = markers[0].request()
    wait_for(lambda: server.marks, DEADLINE_S, "the mark")
    markers[0].thread.require_alive()
    assert [shown["mark"] for shown in server.marks] == [mark]


@pytest.mark.parametrize(
    "failure",
    [SourceError("no right", fix="grant it", retry=Retry.AFTER_FIX), RuntimeError("a bug")],
)
def test_the_death_of_the_marker_is_seen(
    progress: CaptureProgress, markers: list[Marker], failure: Exception
) -> None:
    server = Server(failure)
    markers.append(Marker(server.connect, progress=progress, heartbeat_s=60.0))
    wait_for(lambda: markers[0].thread.failure, DEADLINE_S, "the marker to die")
    with pytest.raises(type(failure)):
        markers[0].thread.require_alive()


def test_a_source_that_moves_while_nothing_is_staged_is_marked_and_one_at_rest_is_not(
    progress: CaptureProgress, markers: list[Marker]
) -> None:
    server = Server()
    markers.append(Marker(server.connect, progress=progress, heartbeat_s=0.05))
    with pytest.raises(DeadlineMissedError):
        wait_for(lambda: server.marks, 0.5, "a mark that should not come")
    server.current = 1 << 20
    wait_for(lambda: server.marks, DEADLINE_S, "a mark")
