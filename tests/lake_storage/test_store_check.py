"""What `walgate check` and each start find in an object store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_core.errors import LakeError, Retry
from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.lake_storage.place import ListedFile
from cdc_core.lake_storage.store_check import find_store_problems, require_store
from tests.store_proxy import Answer, Request, StoreProxy, Unconditional


@pytest.fixture
def proxy(object_lake: ObjectPlace) -> Iterator[StoreProxy]:
    with StoreProxy(object_lake.store).run() as running:
        yield running


def test_a_store_that_can_do_everything_has_no_problem(object_lake: ObjectPlace) -> None:
    assert find_store_problems(object_lake) == []
    assert [*object_lake.list_files()] == [], "the probe is gone"


def test_the_probe_of_a_check_that_was_killed_is_removed_later(
    object_lake: ObjectPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, young, other = (object_lake / name for name in ("_check-old", "_check-young", "other"))
    for place in (old, young, other):
        place.write_text("")
    list_files = ObjectPlace.list_files

    def make_old(place: ObjectPlace) -> Iterator[ListedFile]:
        long_ago = {old.name, other.name}
        for file in list_files(place):
            yield replace(file, modified_us=1) if file.name in long_ago else file

    monkeypatch.setattr(ObjectPlace, "list_files", make_old)
    assert find_store_problems(object_lake) == []
    assert {file.name for file in list_files(object_lake)} == {young.name, other.name}


# The proxy takes away headers that are signed.
@pytest.mark.usefixtures("_any_key")
def test_a_store_that_ignores_conditions_is_refused(
    object_lake: ObjectPlace, proxy: StoreProxy
) -> None:
    proxy.choose = lambda _: Unconditional()
    problems = find_store_problems(replace(object_lake, store=proxy.store))
    assert [problem.expected for problem in problems] == [
        "refuse to create an object that exists",
        "refuse to replace an object that has changed",
    ]
    with pytest.raises(LakeError, match="ignores the condition") as refused:
        require_store(replace(object_lake, store=proxy.store))
    assert refused.value.retry is Retry.AFTER_FIX
    assert [*object_lake.list_files()] == [], "the probe is gone"


def test_a_store_that_cannot_replace_on_a_condition_is_refused(
    object_lake: ObjectPlace, proxy: StoreProxy
) -> None:
    def choose(request: Request) -> Answer | None:
        return Answer(501, "NotImplemented") if "if-match" in request.headers else None

    proxy.choose = choose
    (problem,) = find_store_problems(replace(object_lake, store=proxy.store))
    assert problem.expected == "refuse to replace an object that has changed"
    assert problem.found == "NotImplemented"


@pytest.mark.parametrize(
    ("status", "code", "fix"),
    [
        (403, "AccessDenied", "allow these credentials"),
        (400, "ExpiredToken", "renew the credentials"),
        (403, "InvalidAccessKeyId", "renew the credentials"),
        (403, "SignatureDoesNotMatch", "renew the credentials"),
        (400, "AuthorizationHeaderMalformed", "set aws_region"),
        (301, "PermanentRedirect", "set aws_region"),
    ],
)
def test_a_refusal_of_the_store_is_named_with_its_fix(
    object_lake: ObjectPlace, proxy: StoreProxy, status: int, code: str, fix: str
) -> None:
    proxy.choose = lambda _: Answer(status, code)
    problems = find_store_problems(replace(object_lake, store=proxy.store))
    assert {problem.found for problem in problems} == {code}
    assert [problem.expected for problem in problems] == ["write an object"]
    with pytest.raises(LakeError, match=code) as refused:
        require_store(replace(object_lake, store=proxy.store))
    assert refused.value.fix.startswith(fix)
    assert refused.value.retry is Retry.AFTER_FIX


def test_a_bucket_that_is_not_there_is_named(object_lake: ObjectPlace) -> None:
    gone = replace(object_lake.store, bucket="not-there")
    root = ObjectPlace("s3://not-there/lake", gone)
    assert {problem.found for problem in find_store_problems(root)} == {"NoSuchBucket"}
    with pytest.raises(LakeError, match=r"s3://not-there/lake.*NoSuchBucket"):
        require_store(root)


def test_a_profile_that_is_not_there_is_named(
    object_lake: ObjectPlace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "credentials").touch()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "gone")
    with pytest.raises(LakeError, match="profile gone") as refused:
        require_store(object_lake)
    assert refused.value.fix.startswith("renew the credentials")
    assert refused.value.retry is Retry.AFTER_FIX


def test_credentials_that_may_only_write_are_named_by_what_they_may_not(
    object_lake: ObjectPlace, proxy: StoreProxy
) -> None:
    def choose(request: Request) -> Answer | None:
        return None if request.method != "GET" else Answer(403, "AccessDenied")

    proxy.choose = choose
    problems = find_store_problems(replace(object_lake, store=proxy.store))
    assert [problem.expected for problem in problems] == [
        "read an object", "list objects", "refuse to replace an object that has changed"
    ]  # fmt: skip


def test_a_store_that_does_not_answer_may_be_tried_again(
    object_lake: ObjectPlace, proxy: StoreProxy
) -> None:
    proxy.choose = lambda _: Answer(503, "SlowDown")
    with pytest.raises(LakeError, match="SlowDown") as refused:
        require_store(replace(object_lake, store=proxy.store))
    assert refused.value.retry is Retry.LATER
