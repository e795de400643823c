"""Whether a task may run this program's code where it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException

from spark_jobs.fast_path import same_code
from spark_jobs.fast_path.same_code import OtherCode, run_on_executors


class Cluster:
    """A cluster whose executors have some code."""

    def __init__(self, digest: str | None) -> None:
        self._digest, self.jobs = digest, 0
        self.sparkContext = self
        self.applicationId = f"application of {digest}"
        self.master = "spark://hub:7077"

    def parallelize(self, items: list[Any], _: int) -> Any:
        return SimpleNamespace(
            map=lambda task: SimpleNamespace(collect=lambda: self._do(items, task))
        )

    def _do(self, items: list[Any], task: Any) -> list[Any]:
        self.jobs += 1
        if self._digest is None:
            raise PySparkException("… ModuleNotFoundError: No module named 'spark_jobs'")
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(same_code, "_DIGEST", self._digest)
                return [task(item) for item in items]
        except OtherCode as error:
            raise PySparkException(f"a task failed: {error}") from None


def double(number: int) -> int:
    if number < 0:
        raise PySparkException("a task failed")
    return 2 * number


def run(cluster: Cluster, items: list[int]) -> list[int]:
    return run_on_executors(cast("Any", cluster), items, double)


def test_executors_with_the_same_code_do_the_work() -> None:
    assert run(Cluster(same_code._DIGEST), [1, 2]) == [2, 4]


@pytest.mark.parametrize("digest", [None, "another"])
def test_executors_with_other_code_are_asked_once(digest: str | None) -> None:
    cluster = Cluster(digest)
    for _ in range(3):
        with pytest.raises(OtherCode):
            run(cluster, [1, 2])
    assert cluster.jobs == 1


def test_another_failure_is_no_reason_to_ask_no_more() -> None:
    cluster = Cluster(same_code._DIGEST)
    with pytest.raises(PySparkException):
        run(cluster, [-1])
    assert run(cluster, [1]) == [2]
