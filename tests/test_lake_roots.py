"""Where the lake of a configuration is: in a folder, or in an object store with its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_core.errors import ConfigurationError
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.settings import Settings, parse_settings

OPTIONS = (
    'storage_options = { AWS_ENDPOINT = "http://127.0.0.1:9", aws_allow_http = true,'
    ' aws_region = "here" }'
)


def read(folder: Path, lake: str, environ: dict[str, str] | None = None) -> Settings:
    text = f'[source]\ndsn = "host=/nowhere dbname=shop"\n[lake]\n{lake}\n'
    return parse_settings(text, file=folder / "walgate.toml", environ=environ or {})


def test_a_folder_is_relative_to_the_configuration_and_has_the_spool(tmp_path: Path) -> None:
    lake = read(tmp_path, 'root = "lake"').lake
    assert lake.root == LocalPlace.of(tmp_path / "lake")
    assert lake.spool == tmp_path / "lake" / "spool"


def test_a_store_has_its_options_and_the_spool_is_on_this_host(tmp_path: Path) -> None:
    lake = read(tmp_path, f'root = "s3://bucket/some/lake"\n{OPTIONS}').lake
    assert isinstance(lake.root, ObjectPlace)
    assert str(lake.root) == "s3://bucket/some/lake"
    assert lake.root.store.bucket == "bucket"
    assert dict(lake.root.store.options) == {
        "aws_allow_http": "true", "aws_endpoint": "http://127.0.0.1:9", "aws_region": "here"
    }  # fmt: skip
    assert lake.spool == tmp_path / ".walgate" / "spool"


@pytest.mark.parametrize(
    ("environ", "region", "endpoint"),
    [
        ({"AWS_DEFAULT_REGION": "one"}, "one", None),
        ({"AWS_REGION": "two", "AWS_DEFAULT_REGION": "one"}, "two", None),
        ({"AWS_REGION": "two", "AWS_ENDPOINT_URL": "https://s"}, "two", "https://s"),
        (
            {"AWS_REGION": "two", "AWS_ENDPOINT_URL_S3": "https://t", "AWS_ENDPOINT_URL": "u"},
            "two",
            "https://t",
        ),
    ],
)
def test_the_environment_says_what_the_options_do_not(
    tmp_path: Path, environ: dict[str, str], region: str, endpoint: str | None
) -> None:
    root = read(tmp_path, 'root = "s3://bucket"', environ).lake.root
    assert isinstance(root, ObjectPlace)
    options = dict(root.store.options)
    assert (options["aws_region"], options.get("aws_endpoint")) == (region, endpoint)
    written = read(tmp_path, f'root = "s3://bucket"\n{OPTIONS}', environ).lake.root
    assert isinstance(written, ObjectPlace)
    assert dict(written.store.options)["aws_region"] == "here"


@pytest.mark.parametrize(
    ("lake", "fix"),
    [
        ('root = "s3://bucket/lake"', 'storage_options = { aws_region = "eu-central-1" }'),
        (f'root = "s3://bucket/lake"\n{OPTIONS.replace("true", "false")}', "or use https://"),
        ('root = "gs://bucket/lake"', 'root = "s3://bucket/lake"'),
        (f'root = "lake"\n{OPTIONS}', 'root = "s3://bucket/lake"'),
        ('root = "s3://key:hush@bucket/lake"', "AWS_PROFILE"),
    ],
)
def test_each_mistake_of_a_root_has_a_fix_of_its_own(tmp_path: Path, lake: str, fix: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, lake)
    (problem,) = caught.value.problems
    assert fix in problem.partition("; fix: ")[2]


@pytest.mark.parametrize(
    "lake",
    [
        'root = "s3://key:hush@bucket/lake"',
        'root = "gs://key:hush@bucket/lake"',
        'root = "s3://bucket"\nstorage_options = { aws_endpoint = "https://key:hush@host" }',
        'root = "s3://bucket"\nstorage_options = { aws_region = "https://key:hush@host" }',
        'root = "s3://bucket"\nstorage_options = "aws_secret_access_key=hush"',
    ],
)
def test_no_message_repeats_a_password_of_an_address(tmp_path: Path, lake: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, f"{lake}\nunknown = 1")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "environ",
    [
        {"AWS_ENDPOINT_URL": "https://key:hush@host"},
        {"WALGATE_LAKE__STORAGE_OPTIONS": "aws_secret_access_key=hush"},
        {"WALGATE_LAKE__STORAGE_OPTIONS": ' { "aws_secret_access_key": "hush" }'},
    ],
)
def test_no_message_repeats_a_secret_of_the_environment(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, 'root = "s3://bucket/lake"', {"AWS_REGION": "here", **environ})
    assert "hush" not in str(caught.value)
