from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from deltalake import DeltaTable

from cdc_core.lake_layout import RELATIONS
from cdc_core.staging.relations import RelationStore, find_new
from cdc_core.vocabulary import Lsn, Relation, ReplicaIdentity, TableName
from tests.lakes import locate_lake, on_disk

A = Relation(5, TableName("public", "t"), ReplicaIdentity.DEFAULT, (), storage=1)
B = replace(A, identity=ReplicaIdentity.FULL)
# The same version, after a rewrite that changed no value.
C = replace(A, storage=2)


def test_what_differs_from_the_announcement_before_it_is_new() -> None:
    for stored, announced, new in (
        ([], [A], [A]),
        ([A], [A, A], []),
        ([A], [C], [C]),
        ([A], [B], [B]),
        ([A, B], [A], [A]),
        ([A], [A, B, A], [B, A]),
        ([A, B, A], [A, B, A], []),
        ([B, A], [B, A, A], []),
        ([A, B], [A, B, A], [A, B, A]),
    ):
        assert find_new(stored, announced) == new


@on_disk
def test_what_comes_again_after_a_restart_writes_nothing(tmp_path: Path) -> None:
    announced = [(A, Lsn(5)), (B, Lsn(7)), (A, Lsn(7)), (A, Lsn(9)), (B, Lsn(11))]
    store = RelationStore(locate_lake(tmp_path))
    store.store(announced, epoch=1)
    written = DeltaTable(tmp_path / RELATIONS)
    assert [row["ordinal"] for row in written.to_pyarrow_table().to_pylist()] == [0, 1, 2, 3]
    again = RelationStore(locate_lake(tmp_path))
    again.reload((1, Lsn(6)))
    assert again.latest(5) == A
    for cut in (0, 1, 3, 4):
        again.store(announced[:cut], epoch=1)
        again.store(announced[cut:], epoch=1)
        assert again.latest(5) == B
    assert DeltaTable(tmp_path / RELATIONS).version() == written.version()


def test_another_answer_of_the_catalog_counts_when_a_transaction_comes_again(
    tmp_path: Path,
) -> None:
    RelationStore(locate_lake(tmp_path)).store([(A, Lsn(5)), (B, Lsn(7))], epoch=1)
    RelationStore(locate_lake(tmp_path)).store([(A, Lsn(7))], epoch=1)
    assert RelationStore(locate_lake(tmp_path)).latest(5) == A
