"""The types of setting values: how each is written, and which values are refused.

Pydantic calls the validators. Each raises ValueError with what it expected.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from cdc_core.column_types import ColumnType
from cdc_core.lake_layout import SPOOL
from cdc_core.lake_roots import (
    RootError,
    is_in_store,
    locate_folder,
    locate_in_store,
    parse_options,
)
from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.lake_storage.object_store import SCHEME
from cdc_core.lake_storage.place import LakePlace
from cdc_core.quantities import parse_duration, parse_size
from cdc_core.table_patterns import TablePattern
from cdc_core.vocabulary import ROW_MODES, TableMode

# The names of secret settings: Spark's own pattern, and variables such as AWS_ACCESS_KEY_ID.
# Source: Spark documentation, "Configuration", spark.redaction.regex.
SECRET_NAME = re.compile(r"(?i)secret|password|token|access[._]?key")
# The folder for the state of this host, beside the configuration.
_STATE = ".walgate"
# PostgreSQL cuts longer identifiers.
_NAME_BYTES = 63
# If a password has a slash that is not percent-encoded, the rest of it becomes part of the path.
_DATABASE_PATH = re.compile(r"(/[0-9]{0,4})?\Z")


def _resolve_path(value: object, info: ValidationInfo) -> Path:
    """Make a local path absolute, relative to the configuration file."""
    if isinstance(value, str) and "://" in value:
        raise ValueError("expected a path of this host")
    if not isinstance(value, (str, Path)) or not str(value):
        raise ValueError("expected a path")
    folder = (info.context or {}).get("folder", Path.cwd())
    return (Path(folder) / Path(value).expanduser()).resolve()


def _locate_lake(value: object, info: ValidationInfo) -> LakePlace:
    """Find the place of a lake's root. The options of its store come before it in the section."""
    if isinstance(value, ObjectPlace):
        return value
    options = info.data.get("storage_options")
    if isinstance(value, str) and is_in_store(value):
        # Wrong options have an error of their own, and may lack what a store needs.
        known = {"aws_region": "unknown", "aws_allow_http": "true"} if options is None else options
        return locate_in_store(value, known, (info.context or {}).get("environ", {}))
    if options:
        raise RootError(f"expected {SCHEME} with a bucket, because there are storage_options")
    return locate_folder(_resolve_path(value.uri if isinstance(value, LakePlace) else value, info))


def _parse_options(value: object) -> object:
    """Refuse unknown options of a store, and credentials."""
    if not isinstance(value, dict):
        raise ValueError("expected a table of options")  # noqa: TRY004 - pydantic's contract.
    return parse_options(value)


def _resolve_jars(value: object, info: ValidationInfo) -> object:
    """Keep `packages` and `provided`; make the path of a folder absolute."""
    if value in {"packages", "provided"}:
        return value
    folder = _resolve_path(value, info)
    if not folder.is_dir():
        raise ValueError("the folder does not exist")
    return str(folder)


def _split_list(value: object) -> object:
    """Accept one name or a list of names; refuse a name that is listed twice."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not names:
        raise ValueError("expected a name or a list of names")
    if not all(isinstance(n, str) and 0 < len(n.encode()) <= _NAME_BYTES for n in names):
        raise ValueError(f"expected names of 1 to {_NAME_BYTES} bytes")
    if len(set(names)) < len(names):
        raise ValueError("expected each name once")
    return tuple(names)


def _split_types(value: object) -> object:
    """Accept a table with a type for each column."""
    if not isinstance(value, dict) or not value:
        raise ValueError("expected a type for each column")
    _split_list(list(value))
    return value


def _spell_type(value: object) -> str:
    """Spell a type as Spark does."""
    if not isinstance(value, str):
        raise ValueError("expected a type in quotes")  # noqa: TRY004 - pydantic's contract.
    return str(ColumnType.parse(value))


def _flatten_conf(value: object) -> dict[str, str]:
    """Accept `spark.x.y = 1` with or without quotes around the key; write values as Spark does."""
    if not isinstance(value, dict):
        raise ValueError("expected a table of Spark settings")  # noqa: TRY004 - pydantic's contract.
    flat: dict[str, str] = {}
    for key, entry in value.items():
        if isinstance(entry, dict):
            nested = _flatten_conf(entry)
            flat.update({f"{key}.{k}": v for k, v in nested.items()})
        else:
            flat[key] = str(entry).lower() if isinstance(entry, bool) else str(entry)
    return flat


def _refuse_bool(value: object) -> object:
    """Refuse `true`, which would count as 1."""
    if isinstance(value, bool):
        raise ValueError("expected a whole number")  # noqa: TRY004 - pydantic's contract.
    return value


def _check_redis_url(value: str) -> str:
    if not value.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("expected redis://, rediss:// or unix://")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        # Not chained: the text that was parsed as a port may be the password.
        port, parts = 0, None
    if parts is None or port == 0:
        raise ValueError(
            "expected a port from 1 to 65535, and a password percent-encoded"
        ) from None
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            raise ValueError("expected unix:// and the path of a socket")
    elif not _DATABASE_PATH.match(parts.path):
        raise ValueError("expected the number of a database after the host, such as /0")
    return value


def _check_pattern(value: str) -> str:
    TablePattern.parse(value)
    return value


def _require_time(value: float) -> float:
    if value <= 0:
        raise ValueError("expected a duration above zero such as 30s")
    return value


def _check_modes(names: tuple[str, ...]) -> tuple[TableMode, ...]:
    """Accept one of the modes for rows, and any of those that ask for one more target."""
    of_rows, others = (
        " or ".join(f'"{mode}"' for mode in TableMode if (mode in ROW_MODES) is is_of_rows)
        for is_of_rows in (True, False)
    )
    wanted = f"{of_rows}, and perhaps {others}"
    known = [mode for mode in TableMode if mode in names]
    chosen = [mode for mode in known if mode in ROW_MODES]
    if len(chosen) != 1 or len(known) != len(names):
        found = ", ".join(f'"{name}"' for name in names) or "an empty list"
        raise ValueError(f"expected {wanted}, found {found}")
    return tuple(known)


def choose_spool(root: LakePlace) -> Path:
    """The spool of a lake without a setting: in its folder, or in the state of this host."""
    return Path(_STATE if isinstance(root, ObjectPlace) else root.uri) / SPOOL


LocalPath = Annotated[Path, BeforeValidator(_resolve_path)]
StoreOptions = Annotated[dict[str, str], BeforeValidator(_parse_options)]
LakeRoot = Annotated[LakePlace, BeforeValidator(_locate_lake)]
Size = Annotated[int, BeforeValidator(parse_size)]
Pause = Annotated[float, BeforeValidator(parse_duration)]
Duration = Annotated[Pause, AfterValidator(_require_time)]
Count = Annotated[int, BeforeValidator(_refuse_bool), Field(gt=0)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split_list)]
Modes = Annotated[
    tuple[TableMode, ...], BeforeValidator(lambda value: _check_modes(_split_list(value)))
]
JarsPlace = Annotated[str, BeforeValidator(_resolve_jars)]
SparkConf = Annotated[dict[str, str], BeforeValidator(_flatten_conf)]
RedisUrl = Annotated[str, AfterValidator(_check_redis_url)]
Pattern = Annotated[str, AfterValidator(_check_pattern)]
ColumnTypes = Annotated[
    dict[str, Annotated[str, BeforeValidator(_spell_type)]], BeforeValidator(_split_types)
]
