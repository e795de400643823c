"""What a PostgreSQL connection string says, read without libpq: enough to judge its safety.

Understands both forms, `host=… dbname=…` and `postgresql://…`. Never repeats any part of the string
in an error: it may hold a password.

Source: PostgreSQL, libpq, "Connection Strings".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import unquote

_SCHEMES = ("postgresql://", "postgres://")
_KEYWORD = re.compile(r"\s*([A-Za-z_]+)\s*=\s*")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'(?=\s|\Z)", re.DOTALL)
_USER = re.compile(r"([^@/]*)@")
_BARE = re.compile(r"((?:[^\s'\\]|\\.)*)(?=\s|\Z)", re.DOTALL)

# libpq's environment variables for what is judged here.
_ENVIRONMENT = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "service": "PGSERVICE",
}


def parse_conninfo(text: str) -> dict[str, str]:
    """Read a connection string into its parameters. Raises: ValueError without repeating it."""
    for scheme in _SCHEMES:
        if text.startswith(scheme):
            return _parse_uri(text.removeprefix(scheme))
    return _parse_pairs(text)


def complete_conninfo(parameters: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Add what libpq takes from its environment where the string is silent."""
    inherited = {key: environ[name] for key, name in _ENVIRONMENT.items() if environ.get(name)}
    return inherited | {key: value for key, value in parameters.items() if value}


def is_verified(parameters: Mapping[str, str]) -> bool:
    """Tell whether the server's name is checked against its certificate."""
    default = "verify-full" if parameters.get("sslrootcert") == "system" else "prefer"
    return parameters.get("sslmode", default) == "verify-full"


def remote_hosts(parameters: Mapping[str, str]) -> list[str]:
    """List the hosts reached over a network: neither a socket folder nor the loopback."""
    hosts = parameters.get("hostaddr") or parameters.get("host") or ""
    return [host for host in hosts.split(",") if host and not _is_local(host)]


def _is_local(host: str) -> bool:
    if host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parse_pairs(text: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    position = 0
    while text[position:].strip():
        keyword = _KEYWORD.match(text, position)
        if keyword is None:
            raise ValueError(f'a keyword and "=" expected at character {position + 1}')
        value = _QUOTED.match(text, keyword.end()) or _BARE.match(text, keyword.end())
        if value is None:
            raise ValueError(f"the value at character {keyword.end() + 1} is not well quoted")
        parameters[keyword[1]] = re.sub(r"\\(.)", r"\1", value[1], flags=re.DOTALL)
        position = value.end()
    if not parameters:
        raise ValueError("it is empty")
    return parameters


def _parse_uri(rest: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    # As libpq: the first "@" before any "/" ends the user, whatever else stands there.
    user_part = _USER.match(rest)
    user, _, password = user_part[1].partition(":") if user_part else ("", "", "")
    rest, _, query = rest[user_part.end() if user_part else 0 :].partition("?")
    host_part, _, database = rest.partition("/")
    hosts, ports = [], []
    for entry in host_part.split(","):
        match = re.fullmatch(r"(?:\[([^\]]*)\]|([^:@\[\]]*))(?::([0-9]*))?", entry)
        if match is None:
            raise ValueError("a host or port in it is not well formed")
        hosts.append(unquote(match[1] or match[2] or ""))
        ports.append(match[3] or "")
    parts = {
        "user": unquote(user),
        "password": unquote(password),
        "host": ",".join(hosts),
        "port": ",".join(ports),
        "dbname": unquote(database),
    }
    parameters.update({key: value for key, value in parts.items() if value.strip(",")})
    for pair in query.split("&") if query else ():
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise ValueError('a "key=value" pair expected after "?"')
        parameters[unquote(key)] = unquote(value)
    return parameters
