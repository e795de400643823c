"""Which small files of a table maintenance writes as one."""

from __future__ import annotations

import pytest

from spark_jobs.maintenance.compaction import SizedFile, choose_small_files, is_worth_writing

MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        pytest.param([1] * 9, 0, id="few"),
        pytest.param([1] * 10, 10, id="enough"),
        pytest.param([8 * MIB] * 10, 0, id="none is small"),
        pytest.param([8 * MIB - 1] * 10, 4, id="large small files, as many as fit"),
        pytest.param([8 * MIB - 1] * 9 + [8 * MIB], 0, id="nine of ten are small"),
        pytest.param([1] * 2000, 1000, id="a bounded step"),
    ],
)
def test_the_smallest_of_ten_small_files_are_chosen(sizes: list[int], chosen: int) -> None:
    files = [SizedFile(str(number), size, None) for number, size in enumerate(sizes)]
    assert len(choose_small_files(files)) == chosen


def test_the_smallest_files_come_first() -> None:
    files = [SizedFile(str(size), size, None) for size in range(12 * MIB, 0, -MIB)]
    names = [int(file.name) // MIB for file in choose_small_files([*files, *files[6:]])]
    assert names == sorted(names)
    assert names[:4] == [1, 1, 2, 2]


@pytest.mark.parametrize("sizes", [[5, 5], [1, 5, 6]])
def test_files_are_written_again_if_none_has_more_than_half_the_bytes(sizes: list[int]) -> None:
    assert is_worth_writing([SizedFile("", size, None) for size in sizes])


@pytest.mark.parametrize("sizes", [[], [5], [5, 6]])
def test_no_file_is_written_again_because_of_a_few_bytes(sizes: list[int]) -> None:
    assert not is_worth_writing([SizedFile("", size, None) for size in sizes])
