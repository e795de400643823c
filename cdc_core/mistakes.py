"""Explains what is wrong in a configuration, so that a person can correct it.

Each mistake names its key, what was expected and found, and the fix. It repeats a value only if the
value cannot be a secret.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from cdc_core.conninfo import complete_conninfo, is_verified, read_conninfo, remote_hosts
from cdc_core.lake_layout import RESERVED_FOLDERS
from cdc_core.lake_roots import RootError, is_in_store
from cdc_core.origins import Key, Mistake
from cdc_core.quantities import parse_duration
from cdc_core.setting_values import SECRET_NAME

# An address with a user probably has a password, too.
_USER_IN_URL = re.compile(r"://[^/]*@")
_SECRET_KEYS: set[Key] = {
    ("source", "dsn"),
    ("source", "password"),
    ("redis", "url"),
    ("spark", "conf"),
    ("lake", "storage_options"),
}
_EXAMPLES: dict[Key, str] = {
    ("source", "dsn"): '"host=/var/run/postgresql dbname=shop user=walgate"',
    ("source", "password_file"): '"password"',
    ("source", "slot_budget"): '"10GB"',
    ("lake", "root"): '"lake"',
    ("lake", "spool"): '"lake/spool"',
    ("capture", "batch_bytes"): '"64MB"',
    ("capture", "spool_bytes"): '"128MB"',
}
# Seconds. A reader takes longer from the choice of a cut to the opening of its files, and so does a
# writer from a file to its commit.
_SHORTEST_GRACE_S = 60.0
_PASSWORD_FIX = (
    "set WALGATE_SOURCE__PASSWORD, "  # noqa: S105 - it says where a password goes.
    "or password_file, or use libpq's PGPASSFILE"
)
HASH_KEY_VARIABLE = "WALGATE_HASH_KEY"
# Characters. The fix makes 256 random bits in hex. A word could be guessed from hashed values.
_MIN_HASH_KEY_LENGTH = 32
_HASH_KEY_FIX = f"set {HASH_KEY_VARIABLE} or hash_key_file to the output of `openssl rand -hex 32`"
_CONF_VARIABLE = "WALGATE_SPARK__CONF"
# Defaults from here on are sizes, which the template shows with their unit.
_SMALLEST_SIZE = 1e6
# The default of `[merge] run_minutes`.
_MERGE_RUN_MINUTES = 30.0


def find_mistakes(
    written: Mapping[str, Any],
    values: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    folder: Path,
) -> list[Mistake]:
    """Find the mistakes that no single value shows: misplaced secrets and contradictions."""
    mistakes = []
    mistakes += [
        Mistake((name,), "unknown section", fix="remove it")
        for name in ("state_folder", "hash_key")
        if name in written
    ]
    source, lake = values.get("source"), values.get("lake")
    if isinstance(source, dict):
        mistakes += _find_source_mistakes(written, source, environ, folder=folder)
    mistakes += _find_hash_key_mistakes(values, environ, folder=folder)
    mistakes += [*_find_secrets(written)]
    if isinstance(lake, dict) and all(isinstance(lake.get(key), str) for key in ("root", "spool")):
        root = None if is_in_store(lake["root"]) else folder / lake["root"]
        mistakes += _find_spool_mistakes(root, folder / lake["spool"], folder)
    return mistakes + _find_retention_mistakes(values)


def explain_mistakes(
    error: ValidationError, model: type[BaseModel], values: Mapping[str, Any]
) -> list[Mistake]:
    """Explain each of pydantic's errors in Walgate's words."""
    mistakes = []
    for entry in error.errors(include_url=False):
        key = tuple(str(part) for part in entry["loc"][: _depth_of(entry["loc"])])
        key = tuple(part for part in key if part != "[key]")
        if entry["type"] == "default_factory_not_called":
            continue
        if entry["type"] == "extra_forbidden":
            mistakes.append(_explain_unknown(key, model))
            continue
        example = _EXAMPLES.get(key) or _default_of(key, model)
        fix = f"for example {key[-1]} = {example}" if example else "correct it"
        if isinstance(raised := entry.get("ctx", {}).get("error"), RootError):
            fix = raised.fix
        if entry["type"] == "missing":
            mistakes.append(Mistake(key, "missing", fix=fix))
            continue
        expected = {
            "string_type": "expected a string",
            "model_type": "expected a section",
            "string_pattern_mismatch": f"expected {entry.get('ctx', {}).get('pattern')}",
            "int_parsing": "expected a whole number",
            "int_type": "expected a whole number",
            "int_from_float": "expected a whole number",
            "float_parsing": "expected a number",
            "float_type": "expected a number",
            "greater_than": "expected a number above zero",
            "bool_parsing": "expected true or false",
            "bool_type": "expected true or false",
        }.get(entry["type"], entry["msg"].removeprefix("Value error, "))
        expected = expected.replace("Input should be", "expected")
        found = _describe_value(key, values)
        # An error of a whole section says what was found.
        what = expected if found == "a dict" else f"{expected}, found {found}"
        mistakes.append(Mistake(key, what, fix=fix))
    return mistakes


def _depth_of(place: tuple[int | str, ...]) -> int:
    """The number of parts of pydantic's location that are keys of ours. The rest is its own."""
    if place[:1] != ("tables",):
        return 2
    return 4 if place[2:3] == ("types",) else 3


def _find_source_mistakes(
    written: Mapping[str, Any],
    source: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    folder: Path,
) -> list[Mistake]:
    mistakes = []
    key = ("source", "dsn")
    if "password" in written.get("source", {}):
        mistakes.append(Mistake(("source", "password"), "a password in the file", _PASSWORD_FIX))
    if "password" in source and "password_file" in source:
        what = "both password_file and WALGATE_SOURCE__PASSWORD are given"
        mistakes.append(Mistake(("source", "password_file"), what, "keep one of them"))
    elif isinstance(source.get("password_file"), str):
        mistakes += _find_secret_file_mistakes(
            "password_file", folder / source["password_file"], what="the password"
        )
    dsn = source.get("dsn")
    if not isinstance(dsn, str) or not dsn:
        return mistakes
    parameters, problems = read_conninfo(dsn)
    mistakes += [
        Mistake(key, problem, f"for example dsn = {_EXAMPLES[key]}") for problem in problems
    ]
    for secret in sorted({"password", "sslpassword"} & parameters.keys()):
        mistakes.append(Mistake(key, f"a {secret} inside the DSN", f"remove it; {_PASSWORD_FIX}"))
    if "replication" in parameters:
        what = "replication is set by Walgate itself"
        mistakes.append(Mistake(key, what, "remove it from the DSN"))
    return mistakes + _find_transport_mistakes(
        complete_conninfo(parameters, environ), is_allowed=_is_true(source.get("allow_insecure"))
    )


def _find_transport_mistakes(parameters: Mapping[str, str], *, is_allowed: bool) -> list[Mistake]:
    """Refuse an unverified connection over a network, and one whose host a service hides."""
    key = ("source", "dsn")
    if is_allowed or is_verified(parameters):
        return []
    if parameters.get("service"):
        what = "a service hides host and sslmode"
        return [Mistake(key, what, "write host and sslmode=verify-full into the DSN")]
    hosts = remote_hosts(parameters)
    if not hosts:
        return []
    found = parameters.get("sslmode", "no sslmode")
    return [
        Mistake(
            key,
            f"expected sslmode=verify-full for host {', '.join(hosts)}, found {found}",
            "add sslmode=verify-full and sslrootcert=…, or set allow_insecure = true",
        )
    ]


def _find_hash_key_mistakes(
    values: Mapping[str, Any], environ: Mapping[str, str], *, folder: Path
) -> list[Mistake]:
    """Refuse hashing without a key, and a key that could be guessed."""
    key = ("source", "hash_key_file")
    source, tables = values.get("source"), values.get("tables")
    file = source.get("hash_key_file") if isinstance(source, dict) else None
    given = environ.get(HASH_KEY_VARIABLE)
    if isinstance(file, str):
        if given is not None:
            what = f"both hash_key_file and {HASH_KEY_VARIABLE} are given"
            return [Mistake(key, what, "keep one of them")]
        mistakes = _find_secret_file_mistakes("hash_key_file", folder / file, what="the key")
        if mistakes:
            return mistakes
        given = (folder / file).expanduser().read_text(encoding="utf-8").strip()
    if given is not None and len(given) < _MIN_HASH_KEY_LENGTH:
        what = f"the hash key is shorter than {_MIN_HASH_KEY_LENGTH} characters"
        return [Mistake(key, what, _HASH_KEY_FIX)]
    if given is not None or not isinstance(tables, dict):
        return []
    return [
        Mistake(("tables", str(name), "hash"), "hashing needs a key", _HASH_KEY_FIX)
        for name, entries in tables.items()
        if isinstance(entries, dict) and entries.get("hash")
    ]


def _find_secret_file_mistakes(name: str, file: Path, *, what: str) -> list[Mistake]:
    key = ("source", name)
    try:
        text = file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        return [Mistake(key, f"cannot be read: {reason}", "make it a readable UTF-8 file")]
    if len(text.splitlines()) != 1:
        return [Mistake(key, "expected one line", f"write {what} and nothing else into it")]
    return []


def _find_secrets(written: Mapping[str, Any]) -> Iterator[Mistake]:
    """Refuse secrets of Redis and of Spark in the file."""
    redis, spark = (
        section if isinstance(section := written.get(name), dict) else {}
        for name in ("redis", "spark")
    )
    url, conf = redis.get("url"), spark.get("conf")
    with suppress(ValueError):
        if isinstance(url, str) and urlsplit(url).password:
            yield Mistake(("redis", "url"), "a password in the file", "set WALGATE_REDIS__URL")
    for path in _list_options(conf if isinstance(conf, dict) else {}):
        if SECRET_NAME.search(".".join(path)):
            fix = f"remove it, and set {_CONF_VARIABLE} to a JSON object with it"
            yield Mistake(("spark", "conf", *path), "a secret in the file", fix)


def _list_options(table: Mapping[str, Any]) -> Iterator[Key]:
    """The path of each option of a table, and of the tables in it."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from ((name, *path) for path in _list_options(value))
        else:
            yield (name,)


def _find_retention_mistakes(values: Mapping[str, Any]) -> list[Mistake]:
    """Refuse a retention in which no reader could use a cut, and a grace that removes too soon."""
    lake, merge = (
        section if isinstance(section := values.get(name), dict) else {}
        for name in ("lake", "merge")
    )
    mistakes = []
    with suppress(ValueError, TypeError):
        longest = 60 * float(merge.get("run_minutes", _MERGE_RUN_MINUTES))
        if parse_duration(lake.get("retention", longest)) < longest:
            what = f"expected at least [merge] run_minutes, which is {longest:g} s"
            mistakes.append(
                Mistake(("lake", "retention"), what, fix='for example retention = "7d"')
            )
    with suppress(ValueError):
        if parse_duration(lake.get("grace", _SHORTEST_GRACE_S)) < _SHORTEST_GRACE_S:
            what = f"expected at least {_SHORTEST_GRACE_S:g} s"
            mistakes.append(Mistake(("lake", "grace"), what, fix='for example grace = "6h"'))
    return mistakes


def _find_spool_mistakes(root: Path | None, spool: Path, folder: Path) -> list[Mistake]:
    """Refuse a spool folder if emptying it would remove other files.

    The root is None if the lake is in no folder.
    """
    spool = spool.resolve()
    reserved = [] if root is None else [root.resolve() / name for name in RESERVED_FOLDERS]
    taken = [folder.resolve(), *reserved, *([] if root is None else [root.resolve()])]
    is_inside = any(spool.is_relative_to(place) for place in reserved)
    if not is_inside and not any(place.is_relative_to(spool) for place in taken):
        return []
    what = "capture empties the spool at every start, and would remove other files from this folder"
    return [
        Mistake(
            ("lake", "spool"), what, "name a folder that nothing else uses, or remove the setting"
        )
    ]


def _explain_unknown(key: Key, model: type[BaseModel]) -> Mistake:
    """Report an unknown section or key; name the nearest one that exists."""
    fields: dict[str, Any] = model.model_fields
    what = "unknown section"
    if len(key) > 1:
        what = "unknown key"
        fields = getattr(_section_of(key, model), "model_fields", {})
    known = sorted(set(fields) - {"state_folder", "hash_key", "password"})
    near = difflib.get_close_matches(key[-1], known, n=1)
    fix = f"did you mean {near[0]}?" if near else f"remove it, or use one of {', '.join(known)}"
    return Mistake(key, what, fix)


def _section_of(key: Key, model: type[BaseModel]) -> object:
    """Give the model of a key's section; for `[tables]`, the model of one table."""
    annotation = model.model_fields[key[0]].annotation
    return get_args(annotation)[-1] if get_origin(annotation) is dict else annotation


def _default_of(key: Key, model: type[BaseModel]) -> str | None:
    """Write a key's default as TOML would."""
    if len(key) != 2:  # noqa: PLR2004 - a section and its key.
        return None
    setting = getattr(_section_of(key, model), "model_fields", {}).get(key[1])
    default = None if setting is None else setting.default
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return f'"{default[0]}"'
    return f'"{default}"' if isinstance(default, str) else _number(default)


def _number(value: object) -> str | None:
    is_plain = isinstance(value, (int, float)) and value < _SMALLEST_SIZE
    return f"{value:g}" if is_plain else None


def _describe_value(key: Key, values: Mapping[str, Any]) -> str:
    """Name what was found: the value if it cannot be a secret, otherwise its type."""
    found: Any = values
    for part in key:
        found = found.get(part) if isinstance(found, Mapping) else None
    if isinstance(found, str) and _USER_IN_URL.search(found):
        return "an address with a user in it"
    if key not in _SECRET_KEYS and len(key) > 1 and isinstance(found, (str, int, float)):
        shown = str(found).lower() if isinstance(found, bool) else repr(found)
        return shown if len(shown) <= 80 else f"{shown[:77]}…"  # noqa: PLR2004 - one line.
    if found == "":
        return "an empty string"
    return f"a {type(found).__name__}".replace("a int", "an int")


def _is_true(value: object) -> bool:
    return str(value).lower() in {"true", "1", "yes", "on"}
