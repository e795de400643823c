"""Reads a PostgreSQL connection string with libpq's own parser, without a connection.

It reports every mistake that shows without a server. It repeats only a misspelt option: any other
part of the string may be a password. For the same reason it hides libpq's own messages.

Source: PostgreSQL, libpq, "Connection Strings" and "Parameter Key Words".
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Mapping

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

# libpq's message about an unknown option, in either form of the string.
_UNKNOWN = re.compile(r'invalid (?:connection option|URI query parameter:) "([^"]*)"')
_EXPECTED = "expected key=value pairs or postgresql://…"
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,9}\s*\Z")
_INTEGERS = (
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
)
_HIGHEST_PORT = 65535
_CHOICES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": (
        *("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    ),
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer", "require"),
    "load_balance_hosts": ("disable", "random"),
    "sslnegotiation": ("postgres", "direct"),
}
_MAX_PROBLEMS = 10
# Replaces an unknown option, so that the parser reads the rest of the string, too.
_STAND_IN = "fallback_application_name"

# libpq's environment variables for the options that a check here needs.
_ENVIRONMENT = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "service": "PGSERVICE",
}


def read_conninfo(text: str) -> tuple[dict[str, str], list[str]]:
    """Read a connection string; return its parameters and every mistake in it."""
    problems: list[str] = []
    while True:
        try:
            parsed = {
                key: str(value) for key, value in conninfo_to_dict(_require_text(text)).items()
            }
            break
        except (psycopg.ProgrammingError, ValueError) as error:
            found = _UNKNOWN.search(str(error))
            if found is None or len(problems) == _MAX_PROBLEMS:
                return {}, [*problems, f"not a connection string: {_EXPECTED}"]
            problems.append(_explain_unknown(found[1]))
            renamed = re.sub(rf"(^|[\s?&]){re.escape(found[1])}(\s*=)", rf"\1{_STAND_IN}\2", text)
            if renamed == text:
                return {}, problems
            text = renamed
    if problems:
        parsed.pop(_STAND_IN, None)
    elif not parsed:
        problems.append(f"the connection string is empty: {_EXPECTED}")
    return parsed, problems + _find_value_problems(parsed)


def complete_conninfo(parameters: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Add what libpq takes from its environment for options that the string does not set."""
    inherited = {key: environ[name] for key, name in _ENVIRONMENT.items() if environ.get(name)}
    return inherited | {key: value for key, value in parameters.items() if value}


def is_verified(parameters: Mapping[str, str]) -> bool:
    """Whether libpq checks the server's name against its certificate."""
    default = "verify-full" if parameters.get("sslrootcert") == "system" else "prefer"
    return parameters.get("sslmode", default) == "verify-full"


def remote_hosts(parameters: Mapping[str, str]) -> list[str]:
    """List the hosts that are reached over a network, not by a socket folder or the loopback."""
    hosts = parameters.get("hostaddr") or parameters.get("host") or ""
    return [host for host in hosts.split(",") if host and not _is_local(host)]


def _is_local(host: str) -> bool:
    if host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _require_text(text: str) -> str:
    """Check that libpq can take a text: it is UTF-8 without a NUL. Raises: ValueError."""
    text.encode("utf-8")
    if "\0" in text:
        raise ValueError("NUL")
    return text


def _explain_unknown(name: str) -> str:
    """Say that libpq does not know an option; repeat its name only if it resembles a known one."""
    known = [option.keyword.decode() for option in pq.Conninfo.get_defaults()]
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"unknown option {name}, did you mean {near[0]}?"
    return "the connection string has an option that libpq does not know"


def _find_value_problems(parameters: Mapping[str, str]) -> list[str]:
    """Find the values that libpq would refuse before it contacts a server."""
    problems = []
    ports = parameters.get("port", "").split(",")
    if not all(not port.strip() or _is_port(port) for port in ports):
        problems.append(f"expected port as a number from 1 to {_HIGHEST_PORT}")
    for name in ("host", "hostaddr"):
        places = parameters.get(name, "").split(",")
        if len(ports) > 1 and parameters.get(name) and len(ports) != len(places):
            problems.append(f"{len(ports)} ports are given for {len(places)} values of {name}")
    problems += [
        f"expected {name} as a whole number"
        for name in _INTEGERS
        if parameters.get(name) and not _INTEGER.match(parameters[name])
    ]
    problems += [
        f"expected {name} as one of {', '.join(choices)}"
        for name, choices in _CHOICES.items()
        if parameters.get(name) and parameters[name] not in choices
    ]
    return problems


def _is_port(text: str) -> bool:
    return bool(_INTEGER.match(text)) and 1 <= int(text) <= _HIGHEST_PORT
