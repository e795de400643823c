"""`python -m tests.transcripts`: plays the SQL of all transcripts, and writes the files again."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.fix_postgres import lend_database, run_postgres
from tests.fix_spark import run_spark
from tests.spark.small_lake import MERGE_ONLY
from tests.transcripts.player import Merging, play
from tests.transcripts.transcript import read_transcripts

VERSION = 18


def main() -> None:
    """Write all transcripts."""
    transcripts = read_transcripts()
    with (
        run_postgres(VERSION) as server,
        lend_database(server) as database,
        run_spark() as spark,
        tempfile.TemporaryDirectory() as folder,
    ):
        played = play(transcripts, database, Path(folder), Merging(spark, MERGE_ONLY))
    for transcript in transcripts:
        transcript.path.write_text(played.texts[transcript.name])


if __name__ == "__main__":
    main()
