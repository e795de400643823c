"""How many small files a merge joins: few files wait, and few bytes are written again."""

from __future__ import annotations

import math
import random

import pytest

from spark_jobs.fast_path.joined_files import count_joined
from spark_jobs.target.limits import DEFAULT_LIMITS

SEED = 20261127
KIB = 1 << 10


@pytest.mark.parametrize(
    ("sizes", "most", "joined"),
    [
        pytest.param([], 100, 0, id="no files"),
        pytest.param([10], 100, 0, id="nothing is smaller"),
        pytest.param([10, 20], 100, 2, id="at half the size"),
        pytest.param([10, 21], 100, 0, id="below half the size"),
        pytest.param([10, 21, 62], 100, 3, id="a larger file takes smaller ones along"),
        pytest.param([10, 21, 63], 100, 0, id="nor does the largest pay"),
        pytest.param([10, 20, 100], 1000, 2, id="the largest waits"),
        pytest.param([40, 60], 100, 2, id="up to the most"),
        pytest.param([41, 60], 100, 0, id="above the most"),
        pytest.param([10, 20, 50, 60], 100, 3, id="what fits"),
    ],
)
def test_a_file_is_joined_if_the_smaller_ones_have_half_its_size(
    sizes: list[int], most: int, joined: int
) -> None:
    assert count_joined(sizes, most) == joined


def test_many_merges_of_inserts_leave_few_files_and_write_few_bytes_again() -> None:
    chance, limits = random.Random(SEED), DEFAULT_LIMITS
    files, arrived, written = list[int](), 0, 0
    for _ in range(20_000):
        small = sorted(size for size in files if size <= limits.small_file_bytes)
        closed = [size for size in files if size > limits.small_file_bytes]
        count = count_joined(small, limits.open_file_bytes)
        arriving = chance.randrange(1 * KIB, 8 * KIB)
        arrived += arriving
        written += arriving + sum(small[:count])
        files = [*closed, *small[count:], arriving + sum(small[:count])]
        waiting = sum(1 for size in files if size <= limits.small_file_bytes)
        assert waiting <= 8
    assert sum(files) == arrived
    # Each byte is written again about as often as a file can double.
    assert written <= arrived * math.log2(limits.small_file_bytes / (1 * KIB))
