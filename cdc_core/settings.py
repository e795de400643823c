"""The settings of one pipeline: `walgate.toml` with overrides from the environment.

Walgate takes the file at an explicit path, else at `$WALGATE_CONFIG`, else `./walgate.toml`.
`WALGATE_SOURCE__DSN` overrides `dsn` in `[source]`. Relative paths are relative to the file. One
error reports all mistakes, each with its line and its fix. It never repeats a value that may be a
secret.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from cdc_core.errors import ConfigurationError
from cdc_core.lake_layout import CHANGES
from cdc_core.mistakes import HASH_KEY_VARIABLE, explain_mistakes, find_mistakes
from cdc_core.origins import Mistake, Origins
from cdc_core.setting_values import (
    ColumnTypes,
    Count,
    Duration,
    JarsPlace,
    LakeRoot,
    LocalPath,
    Modes,
    Names,
    Pattern,
    Pause,
    RedisUrl,
    Size,
    SparkConf,
    StoreOptions,
    choose_spool,
)

CONFIG_NAME = "walgate.toml"
_PREFIX = "WALGATE_"
# The default name of a pipeline. Each further pipeline in a Dagster needs another name.
DEFAULT_PIPELINE = "walgate"
# Two consecutive runs leave a gap of seconds. A slow start is not an outage either.
_STAGING_FRESHNESS_S = 300.0


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class SourceSettings(_Section):
    """`[source]`: the PostgreSQL server, the slot and the publication."""

    dsn: str = Field(min_length=1)
    password_file: LocalPath | None = None
    password: SecretStr | None = Field(default=None, repr=False)
    hash_key_file: LocalPath | None = None
    slot: str = Field(default="walgate", pattern=r"^[a-z0-9_]{1,63}$")
    publication: Names = ("walgate",)
    origin: Literal["any", "none"] = "any"
    slot_budget: Size | None = None
    connect_timeout: Duration = 10.0
    silence_timeout: Duration = 30.0
    allow_insecure: bool = False


class LakeSettings(_Section):
    """`[lake]`: where the log and the tables are, and how long they can be read as they were.

    The spool is on a disk of this host. `storage_options` are those of an object store.
    Maintenance drops the cuts that are older than `retention`, except the newest one and those of
    readers with a lease. It keeps the files that nobody needs for `grace`.
    """

    # The root is found with the options of its store, so they come first.
    storage_options: StoreOptions = Field(default_factory=dict)
    root: LakeRoot
    retention: Duration = 7 * 86_400.0
    grace: Duration = 6 * 3600.0
    spool: LocalPath = Field(
        default_factory=lambda fields: choose_spool(fields["root"]), validate_default=True
    )


class RedisSettings(_Section):
    """`[redis]`: live figures and wake-ups. Walgate works without them."""

    url: RedisUrl = Field(default="redis://127.0.0.1:6379/0", repr=False)
    prefix: str = Field(default="walgate", min_length=1, max_length=63)


class CaptureSettings(_Section):
    """`[capture]`: when a batch closes, how much memory it may take, how long a run lasts."""

    batch_seconds: Duration = 1.0
    batch_rows: Count = 100_000
    batch_bytes: Size = 64 << 20
    spool_bytes: Size = 128 << 20
    heartbeat_seconds: Duration = 10.0
    run_minutes: float = Field(default=30.0, gt=0)


class SparkSettings(_Section):
    """`[spark]`: the session that merges tables and answers queries."""

    master: str = Field(default="local[2]", min_length=1)
    delta_jars: JarsPlace = "packages"
    driver_memory: str = Field(default="4g", pattern=r"^[1-9][0-9]*[kmgt]$")
    conf: SparkConf = Field(default_factory=dict, repr=False)


class BackfillSettings(_Section):
    """`[backfill]`: how much a backfill reads at once, how fast, in which order, and when it waits.

    `automatic` says whether Dagster backfills queued tables by itself from the start.
    """

    chunk_rows: Count = 200_000
    parallel: Count = 2
    rows_per_second: Count | None = None
    order: Literal["smallest", "given"] = "smallest"
    most_slot_percent: float = Field(default=75.0, gt=0, le=100)
    most_lag: Size = 1 << 30
    automatic: bool = True


class MergeSettings(_Section):
    """`[merge]`: how many rows one round takes, and how long a run waits for more."""

    round_rows: Count = 2_000_000
    linger_seconds: Pause = 60.0
    run_minutes: float = Field(default=30.0, gt=0)


class VerifySettings(_Section):
    """`[verify]`: how often tables are verified, and in how many ranges at most.

    `rows_per_run` is how much of a large table one run compares.
    """

    every: Duration = 3600.0
    rows_per_run: Count = 10_000_000
    ranges: Count = 2048


class MaintenanceSettings(_Section):
    """`[maintenance]`: how often the lake is maintained, and how densely cuts are kept.

    Every cut is kept for `every_cut`, then one for each 10 minutes until the age of
    `ten_minute_cuts`, then one for each hour until `[lake] retention`.
    """

    every: Duration = 600.0
    every_cut: Duration = 900.0
    ten_minute_cuts: Duration = 86_400.0


class DagsterSettings(_Section):
    """`[dagster]`: the folder of its history, the page's port, and whether sensors start.

    `pipeline` names the pipeline's runs, pools and assets in a Dagster that also has other code.
    """

    pipeline: str = Field(default=DEFAULT_PIPELINE, pattern=r"^[a-z][a-z0-9_]{0,29}$")

    home: LocalPath = Field(default=Path(".walgate/dagster"), validate_default=True)
    port: int = Field(default=3000, ge=1, le=65535)
    autostart: bool = True
    freshness: dict[str, Duration] = Field(default_factory=lambda: {CHANGES: _STAGING_FRESHNESS_S})


class TableSettings(_Section):
    """`[tables."schema.name"]`: the columns to exclude or hash, and how the lake stores the table.

    `modes` says which rows and which targets the table has; empty means `current`. `types` has the
    names of Delta types, as Spark spells them. `append_retention` is in seconds; None: no limit.
    """

    modes: Modes = ()
    exclude: Names = ()
    hash: Names = ()
    types: ColumnTypes = Field(default_factory=dict)
    append_retention: Duration | None = None
    deletion_vectors: bool | None = None

    @property
    def conceals(self) -> bool:
        """Whether the settings exclude or hash a column."""
        return bool(self.exclude or self.hash)

    @model_validator(mode="after")
    def _refuse_both(self) -> Self:
        listed = [*self.exclude, *self.hash, *self.types]
        if both := sorted({name for name in listed if listed.count(name) > 1}):
            raise ValueError(f"expected each column once, found {', '.join(both)} in two places")
        return self


class Settings(_Section):
    """All sections. `state_folder` has the state of this host, which may be deleted.

    `hash_key` comes from the environment or a file, never from `walgate.toml`.
    """

    source: SourceSettings
    lake: LakeSettings
    redis: RedisSettings = RedisSettings()
    capture: CaptureSettings = CaptureSettings()
    spark: SparkSettings = SparkSettings()
    merge: MergeSettings = MergeSettings()
    backfill: BackfillSettings = BackfillSettings()
    verify: VerifySettings = VerifySettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    dagster: DagsterSettings
    tables: dict[Pattern, TableSettings] = Field(default_factory=dict)
    hash_key: SecretStr | None = Field(default=None, repr=False)
    state_folder: Path

    @model_validator(mode="before")
    @classmethod
    def _name_redis_keys(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Use the pipeline's name as the prefix of Redis keys, unless `[redis]` sets one."""
        dagster, redis = values.get("dagster"), values.get("redis", {})
        name = dagster.get("pipeline") if isinstance(dagster, dict) else None
        if isinstance(name, str) and name and isinstance(redis, dict) and "prefix" not in redis:
            return values | {"redis": redis | {"prefix": name}}
        return values


def load_settings(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """Read the configuration. Raises: ConfigurationError with every mistake in it."""
    file = find_file(path, environ)
    return parse_settings(_read_text(file), file=file, environ=environ)


def find_file(path: Path | None, environ: Mapping[str, str]) -> Path:
    """Choose the file by the search order. A relative path is relative to the working folder.

    Raises: ConfigurationError if the file does not exist.
    """
    named = path or (Path(environ["WALGATE_CONFIG"]) if environ.get("WALGATE_CONFIG") else None)
    file = (named or Path(CONFIG_NAME)).resolve()
    if not file.is_file():
        raise ConfigurationError(
            [f"no configuration: {named or CONFIG_NAME} does not exist"],
            fix="write one with `walgate init --dsn …`, or name it with --config",
        )
    return file


def parse_settings(text: str, *, file: Path, environ: Mapping[str, str]) -> Settings:
    """Read the text of a configuration that is, or will be, in `file`.

    Raises: ConfigurationError with every mistake in it.
    """
    try:
        written = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(
            [f"{file.name}: not TOML: {error}"], fix="correct the syntax of that line"
        ) from error
    origins = Origins(file.name, text)
    values, mistakes = _override(written, environ, origins)
    mistakes += find_mistakes(written, values, environ, folder=file.parent)
    settings = None
    try:
        settings = Settings.model_validate(
            values | {"state_folder": file.parent / ".walgate"},
            context={"folder": file.parent, "environ": environ},
        )
    except ValidationError as error:
        mistakes += explain_mistakes(error, Settings, values)
    if mistakes or settings is None:
        raise ConfigurationError(
            origins.report(mistakes),
            fix=f"correct {file.name}, then run `walgate check`",
        )
    return _with_secrets(settings, environ)


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(
            [f"{file.name} cannot be read: {reason}"], fix="make it readable UTF-8 text"
        ) from error


def _override(
    written: Mapping[str, Any], environ: Mapping[str, str], origins: Origins
) -> tuple[dict[str, Any], list[Mistake]]:
    """Override the file's values with the environment's; add the sections that must exist.

    To `[spark.conf]`, the environment adds options: the secret ones must not be in the file.
    """
    values: dict[str, Any] = {
        section: dict(keys) if isinstance(keys, dict) else keys for section, keys in written.items()
    }
    mistakes = []
    for section in ("source", "lake", "dagster"):
        values.setdefault(section, {})
    for name, value in sorted(environ.items()):
        section, separator, key = name.removeprefix(_PREFIX).lower().partition("__")
        if not name.startswith(_PREFIX) or not separator:
            continue
        origins.add_variable((section, key), name)
        entries = values.setdefault(section, {})
        if not isinstance(entries, dict):
            continue
        try:
            given = json.loads(value) if value.lstrip().startswith(("{", "[")) else value
        except ValueError:
            mistakes.append(Mistake((section, key), "not JSON", fix="write a JSON list or object"))
            continue
        is_added = (section, key) == ("spark", "conf")
        entries[key] = _combine(entries.get(key), given) if is_added else given
    return values, mistakes


def _combine(in_file: object, given: object) -> object:
    """Add the options of the environment to those of the file, and replace those that both have."""
    if not (isinstance(in_file, dict) and isinstance(given, dict)):
        return given
    return in_file | {key: _combine(in_file.get(key), value) for key, value in given.items()}


def _with_secrets(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """Add the password and the hash key. `find_mistakes` has checked that the files can be read."""
    source = settings.source
    if source.password_file is not None:
        password = _read_secret(source.password_file)
        settings = settings.model_copy(
            update={"source": source.model_copy(update={"password": password})}
        )
    hash_key = None
    if source.hash_key_file is not None:
        hash_key = _read_secret(source.hash_key_file)
    elif HASH_KEY_VARIABLE in environ:
        hash_key = SecretStr(environ[HASH_KEY_VARIABLE])
    if hash_key is not None:
        settings = settings.model_copy(update={"hash_key": hash_key})
    return settings


def _read_secret(file: Path) -> SecretStr:
    return SecretStr(file.read_text(encoding="utf-8").rstrip("\r\n"))
