"""Connections to the source, all with the same output settings.

A statement with parameters is a constant of its module. SQL that is composed with names has
literals and no parameters: otherwise psycopg would take a `%` in a name for a parameter.

Each value has one text form: the replication stream and every query give the same bytes for it,
whatever the settings of the role and of the database are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc_core.errors import Retry, SlotInUse, SourceError, SourceStopping
from cdc_core.settings import SourceSettings

OUTPUT_SETTINGS = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    # Our queries never wait for a standby: only the server's own durability counts.
    "synchronous_commit": "local",
}

# The application name by which Walgate recognizes its own walsender on the server.
CAPTURE_NAME = "walgate capture"

_KEEPALIVE_PROBES = 3

# Long enough to reach a server that is up.
_BRIEF_S = 3.0

# The longest wait of a connection that only looks, behind an ALTER TABLE that has or wants a lock.
LOCK_S = 5.0

# Classes of SQLSTATE that another try does not cure: wrong role or password, no such database, no
# privilege, wrong statement.
_NEEDS_A_PERSON = ("28", "3D", "42")
# Classes whose primary message names only objects, settings and sizes. A message of another class
# may quote a value of a row. A function in a user's condition can raise any text with any SQLSTATE.
# Source: PostgreSQL documentation, appendix A.
_NAMES_NO_VALUE = (
    *("08", "0A", "25", "26", "28", "3D", "3F", "40", "42", "53", "54", "55", "57", "58", "XX"),
)
# Errors that a row's value causes: the same rows fail again at every try.
_MET_IN_A_ROW = ("21", "22", "23", "2F", "38", "39", "44", "P0")
# A user's condition cannot cause these errors, whatever it does with a row's value. It can cause
# class 42: a cast to regclass puts the value into the message.
_NOT_BY_A_CONDITION = ("08", "25", "28", "40", "53", "55", "57", "58030")

# Refused before there is any SQLSTATE. The wording is that of the installed libpq.
_UNTRUSTED = ("certificate", "does not support SSL")

# Without a SQLSTATE these mean that our statement is wrong. A lost connection raises other errors.
_REFUSED_BY_THE_DRIVER = (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError)

_Answer = TypeVar("_Answer")


class _TimeLimitedConnection(psycopg.Connection):
    """A connection that closes itself if an answer takes longer than `answer_s` seconds.

    A server that was stopped, or a proxy whose server is gone, still acknowledges what it receives.
    Then neither an error nor a timer of TCP ever ends the wait for the answer.
    """

    answer_s: float | None = None

    def wait(
        self, gen: PQGen[_Answer], interval: float = 0.1, timeout: float | None = None
    ) -> _Answer:
        """Wait for an answer, at most `timeout` or else `answer_s`. Raises: OperationalError."""
        try:
            return super().wait(gen, interval, timeout=timeout or self.answer_s)
        except psycopg.errors._WaitTimeout as exc:  # noqa: SLF001 - it has no other name.
            self.pgconn.finish()
            raise psycopg.OperationalError(f"no answer for {self.answer_s:g} s") from exc


def open_connection(
    source: SourceSettings,
    *,
    application_name: str = "walgate",
    replication: bool = False,
    answer_s: float | None = None,
    lock_s: float | None = None,
) -> psycopg.Connection:
    """Connect in autocommit with the output settings; `replication` makes it a walsender.

    The connection waits for each answer at most `answer_s`; None means no limit. The server waits
    for each lock at most `lock_s`, else `answer_s`: without a limit it goes on waiting after its
    client gave up. For a walsender only `lock_s` limits the locks, because the creation of a slot
    waits for open transactions by locks. Units: seconds. Raises: SourceStopping, SourceError.
    """
    options: dict[str, Any] = {
        key: str(value) for key, value in conninfo_to_dict(source.dsn).items() if value is not None
    }
    chosen = " ".join(f"-c {name}={value}" for name, value in OUTPUT_SETTINGS.items())
    if lock_s is None and not replication:
        lock_s = answer_s
    if lock_s is not None:
        chosen += f" -c lock_timeout={round(1000 * lock_s)}"
    options["options"] = f"{options.get('options', '')} {chosen}".strip()
    options["client_encoding"] = "UTF8"
    options["application_name"] = application_name
    options["connect_timeout"] = str(max(2, round(source.connect_timeout)))
    # Among several hosts libpq takes the primary. primary.py proves which server was reached.
    options.setdefault("target_session_attrs", "primary")
    for name, value in _keepalive(source.silence_timeout).items():
        options.setdefault(name, value)
    if source.password is not None:
        options["password"] = source.password.get_secret_value()
    if replication:
        options["replication"] = "database"
    with source_errors("connect to the source"):
        try:
            connection = _TimeLimitedConnection.connect("", autocommit=True, **options)
        except psycopg.errors.ConnectionTimeout:
            # A ping would wait once more, and would hold the interpreter lock.
            raise
        except psycopg.OperationalError as exc:
            if pq.PGconn.ping(make_conninfo("", **options).encode()) == pq.Ping.REJECT:
                raise SourceStopping(
                    "the server takes no connections: it is shutting down or starting",
                    fix="wait until it has started",
                    retry=Retry.LATER,
                ) from exc
            if any(word in str(exc) for word in _UNTRUSTED):
                raise SourceError(
                    f"cannot connect to the source: {first_line(exc)}",
                    fix="set host to the name in the server's certificate, and sslrootcert to the"
                    " certificate of its authority",
                    retry=Retry.AFTER_FIX,
                ) from exc
            raise
    connection.answer_s = answer_s
    return connection


def _keepalive(silence_s: float) -> dict[str, str]:
    """Choose TCP settings that notice in about `silence_s` that the peer's kernel is gone.

    They do not depend on our kernel's defaults.
    """
    return {
        "keepalives": "1",
        "keepalives_idle": str(max(1, round(silence_s / 3))),
        "keepalives_interval": str(max(1, round(silence_s / 6))),
        "keepalives_count": str(_KEEPALIVE_PROBES),
        "tcp_user_timeout": str(round(1000 * silence_s)),
    }


def open_for_query(source: SourceSettings, *, application_name: str) -> psycopg.Connection:
    """Connect for a look at the source; each answer and each lock has a time limit.

    A run or a person waits for such a look.
    Raises: SourceStopping, SourceError.
    """
    return open_connection(
        source, application_name=application_name, answer_s=source.silence_timeout, lock_s=LOCK_S
    )


def open_for_quick_query(source: SourceSettings, *, application_name: str) -> psycopg.Connection:
    """Connect as `open_for_query` does, but wait at most 3 s until the server accepts.

    Raises: SourceStopping, SourceError.
    """
    patience = min(source.connect_timeout, _BRIEF_S)
    brief = source.model_copy(update={"connect_timeout": patience})
    return open_for_query(brief, application_name=application_name)


@contextmanager
def source_errors(doing: str, *, has_condition: bool = False) -> Iterator[None]:
    """Turn the driver's errors into SourceError; the message names what failed, `doing`.

    With `has_condition` the statement evaluates a user's condition for rows. The condition may
    cause any error and may put a row's value into its message, so that message is left out.
    """
    try:
        yield
    except psycopg.Error as exc:
        said = type(exc).__name__ if has_condition and exc.sqlstate else first_line(exc)
        raise _explain(exc, doing, said, has_condition=has_condition) from exc


def _explain(exc: psycopg.Error, doing: str, said: str, *, has_condition: bool) -> SourceError:
    state = exc.sqlstate or ""
    code = f" (SQLSTATE {state})" if state else ""
    is_by_condition = has_condition and not state.startswith(_NOT_BY_A_CONDITION)
    if state and (is_by_condition or state.startswith(_MET_IN_A_ROW)):
        return SourceError(
            f"cannot {doing}: the statement fails on a value of a row: {said}{code}",
            fix="change the condition (--where, or the publication's row filter) so that the server"
            " can evaluate it for every row; the server's log quotes the value",
            retry=Retry.AFTER_FIX,
        )
    if isinstance(exc, psycopg.errors.ObjectInUse):
        return SlotInUse(
            f"cannot {doing}: {said}",
            fix="stop the other consumer, or wait until the server has noticed that it is gone",
            retry=Retry.LATER,
        )
    if isinstance(exc, psycopg.errors.LockNotAvailable):
        return SourceError(
            f"cannot {doing}: {said}: another session alters one of the tables, or waits to do so",
            fix="try again later; pg_stat_activity and pg_blocking_pids() show which session waits"
            " for which",
            retry=Retry.LATER,
        )
    if not state and isinstance(exc, _REFUSED_BY_THE_DRIVER):
        return SourceError(
            f"cannot {doing}: the PostgreSQL driver refused the statement: {said}",
            fix="report it as a bug in Walgate, with the names of the tables",
            retry=Retry.AFTER_FIX,
        )
    person = needs_person(state)
    return SourceError(
        f"cannot {doing}: {said}{code}",
        fix="run `walgate check`, which names what the source lacks"
        if person
        else "check that the server is up and reachable, then try again",
        retry=Retry.AFTER_FIX if person else Retry.LATER,
    )


def needs_person(sqlstate: str) -> bool:
    """Whether an error of this SQLSTATE needs a person, because no further try cures it."""
    return sqlstate.startswith(_NEEDS_A_PERSON)


def first_line(exc: psycopg.Error) -> str:
    """The server's message in one line; only the error's name if the message may quote a value."""
    if exc.sqlstate and not names_no_value(exc.sqlstate):
        return type(exc).__name__
    primary = exc.diag.message_primary
    return primary or (str(exc).strip().splitlines() or [type(exc).__name__])[0]


def names_no_value(sqlstate: str) -> bool:
    """Whether the primary message of an error of this SQLSTATE never quotes a row's value."""
    return sqlstate.startswith(_NAMES_NO_VALUE)
