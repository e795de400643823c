"""Where the driver of a Spark session listens: on this host alone, unless the settings say more."""

from __future__ import annotations

import pytest

from cdc_core.errors import ConfigurationError
from cdc_core.settings import SparkSettings
from spark_jobs.session.session import _configure

PROTECTIONS = ["spark.authenticate", "spark.network.crypto.enabled"]
# A standalone cluster needs it.
SHARE = {"spark.cores.max": "2"}
HOST, BIND = "spark.driver.host", "spark.driver.bindAddress"


@pytest.mark.parametrize("master", ["local[2]", "spark://localhost:7077", "spark://127.0.0.1:7077"])
def test_a_driver_listens_on_this_host_alone(master: str) -> None:
    conf = _configure(SparkSettings(master=master, conf=SHARE), None, None)
    assert (conf[HOST], conf[BIND]) == ("127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize("master", ["spark://hub:7077", "yarn", "k8s://https://hub:443"])
def test_executors_of_other_hosts_need_an_address(master: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        _configure(SparkSettings(master=master), None, None)
    assert [problem.split()[2] for problem in refused.value.problems] == [HOST, *PROTECTIONS]
    chosen = {HOST: "10.0.0.1"} | SHARE | dict.fromkeys(PROTECTIONS, "true")
    conf = _configure(SparkSettings(master=master, conf=chosen), None, None)
    assert (conf[HOST], conf[BIND]) == ("10.0.0.1", "10.0.0.1")


@pytest.mark.parametrize("master", ["local[2]", "spark://127.0.0.1:7077"])
def test_a_driver_that_listens_on_all_addresses_is_protected(master: str) -> None:
    settings = SparkSettings(master=master, conf={BIND: "0.0.0.0"})  # noqa: S104 - Refused.
    with pytest.raises(ConfigurationError) as refused:
        _configure(settings, None, None)
    assert [problem.split()[2] for problem in refused.value.problems] == PROTECTIONS


@pytest.mark.parametrize("master", ["local[2]", "spark://hub:7077"])
def test_a_driver_that_other_hosts_reach_is_protected(master: str) -> None:
    open_to_all = {HOST: "10.0.0.1", PROTECTIONS[0]: "true"}
    with pytest.raises(ConfigurationError, match=PROTECTIONS[1]) as refused:
        _configure(SparkSettings(master=master, conf=open_to_all), None, None)
    assert len(refused.value.problems) == 1


def test_an_application_leaves_cores_of_a_standalone_cluster_to_others() -> None:
    with pytest.raises(ConfigurationError, match=r"spark\.cores\.max") as refused:
        _configure(SparkSettings(master="spark://127.0.0.1:7077"), None, None)
    assert "half" in refused.value.fix
    _configure(SparkSettings(master="local[2]"), None, None)
