"""The form of log lines, and what they never hold."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from orchestration.cli.main import hoist_options
from orchestration.runs.log_lines import LogForm, LogLines, logging_to_standard_error


def write(
    form: LogForm, name: str, message: str, *, is_debug: bool = False, **fields: object
) -> str:
    record = logging.makeLogRecord(
        {"name": name, "levelname": "INFO", "msg": message, "created": 0.25, "fields": fields}
    )
    return LogLines(form, is_debug=is_debug).format(record)


def test_a_line_is_time_level_noun_verb_and_fields() -> None:
    line = write("logfmt", "walgate.capture", "batch staged", rows=3, end_lsn="0/1A")
    assert line == "1970-01-01T00:00:00.250Z info batch staged rows=3 end_lsn=0/1A"


def test_the_same_line_as_json() -> None:
    line = json.loads(write("json", "walgate.capture", "batch staged", rows=3))
    assert line == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "info",
        "noun": "batch",
        "verb": "staged",
        "rows": 3,
    }


def test_a_value_with_spaces_quotes_or_newlines_stays_on_its_line() -> None:
    line = write("logfmt", "walgate.capture", "session ended", reason='a "b"\nc=d', empty="")
    assert line.endswith(r'session ended reason="a \"b\"\nc=d" empty=""')


@pytest.mark.parametrize("is_debug", [False, True])
def test_the_text_of_a_library_is_never_shown(*, is_debug: bool) -> None:
    line = write("logfmt", "py4j.java", "row c4n4ry", is_debug=is_debug)
    assert line.endswith("info library logged logger=py4j.java")


def test_an_exception_is_named_without_its_text() -> None:
    try:
        raise ValueError("c4n4ry")  # noqa: TRY301 - the exception of the test.
    except ValueError:
        record = logging.makeLogRecord(
            {"name": "walgate", "levelname": "ERROR", "msg": "run failed"}
            | {"exc_info": sys.exc_info()}
        )
    assert LogLines("logfmt", is_debug=False).format(record).endswith("error=ValueError")
    traced = LogLines("logfmt", is_debug=True).format(record)
    assert "test_log_lines.py" in traced
    assert "c4n4ry" not in traced.replace('raise ValueError("c4n4ry")', "")


def test_options_of_every_command_may_stand_anywhere() -> None:
    written = ["check", "--json", "--config", "a.toml", "--debug", "--log=json", "--", "--debug"]
    assert hoist_options(written) == [
        *("--config", "a.toml", "--debug", "--log=json"),
        *("check", "--json", "--", "--debug"),
    ]


def test_a_run_logs_in_the_form_that_the_environment_asks_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ("json", "logfmt"):
        monkeypatch.setenv("WALGATE_LOG", form)
        with logging_to_standard_error():
            try:
                raise ValueError("c4n" + "4ry")  # noqa: TRY301 - the exception of the test.
            except ValueError:
                logging.getLogger("walgate.run").exception("loop failed")
        written = capsys.readouterr().err
        assert "c4n4ry" not in written
        if form == "json":
            (line,) = written.splitlines()
            told = json.loads(line)
            assert (told["noun"], told["verb"], told["error"]) == ("loop", "failed", "ValueError")
            assert "test_log_lines.py" in told["traceback"]
        else:
            assert "error loop failed error=ValueError\n" in written


@pytest.mark.parametrize("name", ["psycopg", "psycopg.transaction", "py4j.java", "redis"])
def test_a_run_shows_no_text_of_a_library_and_gives_the_host_none(
    name: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with logging_to_standard_error():
        logging.getLogger(name).warning("error ignored: %s", "c4n4ry")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f" warning library logged logger={name}")
    assert caplog.records == []
    # After the run it is the host's matter again.
    logging.getLogger(name).warning("closed")
    assert [record.message for record in caplog.records] == ["closed"]
