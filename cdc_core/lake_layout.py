"""Where everything of a lake is: each path below its root, and the names inside a Delta table.

Pure: names only. `cdc_core.lake_storage` reads and writes what is there.

Source: the Delta protocol, sections Delta Log Entries, Checkpoints and Last Checkpoint File.
"""

from __future__ import annotations

import hashlib

from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import TableName, encode_name

# The log, the incarnations of its slot, and the relations of its changes.
_STAGING = "staging"
CHANGES = f"{_STAGING}/changes"
EPOCHS = f"{_STAGING}/epochs"
RELATIONS = f"{_STAGING}/relations"

# Each ledger is one table.
_LEDGER = "ledger"
BACKFILLS = f"{_LEDGER}/backfills"
CUTS = f"{_LEDGER}/cuts"
STATES = f"{_LEDGER}/states"
VERIFICATIONS = f"{_LEDGER}/verifications"
DROPPED_CUTS = f"{_LEDGER}/dropped_cuts"
MAINTENANCE = f"{_LEDGER}/maintenance"

# Targets with rows. Each kind of target has one folder for each schema.
TABLES = TargetKind.ROWS.value

# The spool, unless `[lake] spool` sets another folder. It is always on the disk of this host.
SPOOL = "spool"

# The leases of readers.
LEASES = "leases"

_LOCKS = "locks"

# Folders of the lake in which no spool may be, also those that later versions will make.
RESERVED_FOLDERS = (
    *(_STAGING, *(kind.value for kind in TargetKind)),
    *("quarantine", "reports", _LEDGER, LEASES, _LOCKS),
)
# The most bytes that Linux accepts as the name of one file.
_LONGEST_FILE_NAME = 255

# Copies of files that are not complete, in any folder.
COPIES = ".*.new"

# Inside a Delta table. Delta and Spark ignore names that begin with an underscore.
DELTA_LOG = "_delta_log"
# Where a target is built again.
REBUILD = "_rebuild"
COMMITS = "*.json"
CHECKPOINTS = "*.checkpoint*.parquet"
LAST_CHECKPOINT = "_last_checkpoint"
# The Delta properties of every table. A checkpoint names the files that left its table within an
# hour. At a commit a second, those of a day are 5 MB, and to open the table takes 80 ms, not 6 ms.
CHECKPOINT_PROPERTIES = {"delta.deletedFileRetentionDuration": "interval 1 hours"}
# Which data files the table lost in commits that may be gone, and when.
TOMBSTONES = "_tombstones.json"
# How the names of a table's data files end, and of the files in its log.
DATA_FILES = (".parquet", ".bin")
LOG_FILES = (".json", ".checkpoint.parquet", ".crc")
# The records of attempts to write the table, and the folders that Spark writes their files to.
ATTEMPTS = "_attempts"
RECORDS = "*.json"
# In such a folder: the names of the files that Spark has written to the folder of the table.
SPARK_FILES = "files.txt"

# Each commit of the log records the newest log time as the version of this Delta app id, in
# microseconds since 1970.
LOG_TIME_APP = "walgate:log_time"
# The log lacks all entries up to a bound, if capture has trimmed it. The commit that trims records
# this bound under two more app ids.
TRIMMED_EPOCH_APP = "walgate:trimmed:epoch"
TRIMMED_LSN_APP = "walgate:trimmed:lsn"


def name_table(table: TableName) -> str:
    """The folder of a table's rows."""
    return name_target(Target(table))


def name_target(target: Target) -> str:
    """The folder of a target, safe on every file system."""
    schema, name = encode_name(target.table.schema), encode_name(target.table.name)
    return f"{target.kind}/{schema}/{name}"


def name_schema(schema: str) -> str:
    """The folder of the rows of a schema's tables."""
    return f"{TABLES}/{encode_name(schema)}"


def name_lock(name: str) -> str:
    """The file of a lock: the encoded name; if it is too long, cut, with a hash at its end.

    Schema and table have up to 63 bytes each. Quoting may double them, and encoding triples them.
    """
    encoded = encode_name(name)
    if len(encoded) > _LONGEST_FILE_NAME:
        # No encoded name has two of this sign in a row, so no short name equals a cut one.
        end = f"~~{hashlib.sha256(encoded.encode('ascii')).hexdigest()}"
        encoded = encoded[: _LONGEST_FILE_NAME - len(end)] + end
    return f"{_LOCKS}/{encoded}"


def name_lease(identifier: object) -> str:
    """The file of a reader's lease."""
    return f"{LEASES}/{identifier}.json"


def name_commit(version: int) -> str:
    """The file of a commit, inside the folder of its Delta table."""
    return f"{DELTA_LOG}/{version:020}.json"


def name_checkpoint(version: int) -> str:
    """The checkpoint of a version, inside the folder of its Delta table."""
    return f"{DELTA_LOG}/{version:020}.checkpoint.parquet"


def name_version_checksum(version: int) -> str:
    """The file in which Spark's Delta keeps a summary of a version, beside the commit."""
    return f"{version:020}.crc"


def name_local_checksum(name: str) -> str:
    """The file in which Spark keeps the checksum of another file on a local disk, beside it."""
    return f".{name}.crc"


def name_copy(name: str, identifier: object) -> str:
    """The copy of a file, beside the file, until it takes the file's name."""
    return f".{name}.{identifier}.new"


def name_attempt(identifier: str) -> str:
    """The record of an attempt to write a table, inside the table's folder."""
    return f"{ATTEMPTS}/{identifier}.json"


def identify_attempt(name: str) -> str:
    """The identifier of an attempt, from the name of its record."""
    return name.removesuffix(".json")


def name_data_file(attempt: str, identifier: str) -> str:
    """A data file of an attempt, inside the table's folder."""
    return f"part-{attempt}-{identifier}.parquet"


def match_data_files(attempt: str) -> str:
    """The pattern of the names of an attempt's data files."""
    return f"part-{attempt}-*"


def name_spark_folder(attempt: str, identifier: str) -> str:
    """A folder that Spark writes files of an attempt to, inside the table's folder."""
    return f"{ATTEMPTS}/{attempt}-{identifier}"


def match_spark_folders(attempt: str) -> str:
    """The pattern of the names of an attempt's folders for Spark, in the folder of attempts."""
    return f"{attempt}-*"
