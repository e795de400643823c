"""The columnar decoder against a row-wise one, over random batches."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_core.protocol.rows import RelationFrom, decode_rows
from tests.protocol import oracle
from tests.protocol.encoding import UNCHANGED, Value, delete, insert, update
from tests.protocol.shapes import relation_from, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

OIDS = (16385, 16390, 2**32 - 1)
WIDEST = 1600
ALPHABETS = (
    "abcdefgh 0123456789",
    "äöüß€",
    "漢字かな",
    "𝄞😀\u200d",
    "\u0080\u07ff\u0800\uffff\x01",
)
BROKEN = (b"caf\xe9", b"\xed\xa0\x80", b"\x80", b"ok \xf0\x9f")

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
broken_texts = st.sampled_from(BROKEN)
values = st.one_of(texts, st.none(), st.just(UNCHANGED))
any_values = st.one_of(texts, st.none(), st.just(UNCHANGED), broken_texts)


@st.composite
def batches(
    draw: st.DrawFn, cells: st.SearchStrategy[Value]
) -> tuple[list[bytes], list[RelationFrom]]:
    """Rows of up to three tables, whose shapes change in mid-batch."""
    frames: list[bytes] = []
    relations: list[RelationFrom] = []
    widths: dict[int, int] = {}
    for row in range(draw(st.integers(0, 12))):
        oid = draw(st.sampled_from(OIDS))
        if oid not in widths or draw(st.integers(0, 4)) == 0:
            widths[oid] = draw(st.integers(0, 5))
            relations.append(relation_from(row, oid, f"t{len(relations)}", widths[oid]))
        tuples = st.lists(cells, min_size=widths[oid], max_size=widths[oid])
        kind = draw(st.sampled_from(["insert", "update", "update with old", "delete"]))
        letter = draw(st.sampled_from([b"K", b"O"]))
        if kind == "insert":
            frames.append(insert(oid, draw(tuples)))
        elif kind == "update":
            frames.append(update(oid, draw(tuples)))
        elif kind == "delete":
            frames.append(delete(oid, draw(tuples), letter))
        else:
            frames.append(update(oid, draw(tuples), draw(tuples), letter))
    return frames, relations


def check(frames: Sequence[bytes], relations: Sequence[RelationFrom]) -> None:
    """Decode both ways and compare."""
    batch = decode_rows(frames, relations)
    batch.validate(full=True)
    shapes = [shape_of(entry) for entry in relations]
    assert batch.to_pylist() == oracle.decode(frames, shapes)


@settings(max_examples=300)
@given(batches(values))
def test_any_batch_decodes_as_row_by_row(batch: tuple[list[bytes], list[RelationFrom]]) -> None:
    check(*batch)


@settings(max_examples=300)
@given(batches(any_values))
def test_any_batch_with_broken_texts_decodes_as_row_by_row(
    batch: tuple[list[bytes], list[RelationFrom]],
) -> None:
    check(*batch)


@settings(max_examples=200)
@given(batches(any_values), st.data())
def test_a_batch_cut_anywhere_decodes_to_the_same_rows(
    batch: tuple[list[bytes], list[RelationFrom]], data: st.DataObject
) -> None:
    frames, relations = batch
    cut = data.draw(st.integers(0, len(frames)))
    moved = [RelationFrom(max(entry.first_row - cut, 0), entry.relation) for entry in relations]
    first = decode_rows(frames[:cut], relations).to_pylist()
    assert (
        first + decode_rows(frames[cut:], moved).to_pylist()
        == decode_rows(frames, relations).to_pylist()
    )


@pytest.mark.parametrize("broken_share", [0.0, 0.001], ids=["text", "some not UTF-8"])
def test_large_batches_decode_as_row_by_row(seed: int, broken_share: float) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        check(*_random_batch(chance, row_count=3000, broken_share=broken_share))


def test_the_widest_table_and_large_values_decode_as_row_by_row(seed: int) -> None:
    chance = random.Random(seed)
    relations = [relation_from(0, 1, "wide", WIDEST), relation_from(0, 2, "narrow", 2)]
    frames: list[bytes] = []
    for _ in range(20):
        frames.append(insert(1, [_random_value(chance, 0.0) for _ in range(WIDEST)]))
        frames.append(insert(2, ["x" * chance.randrange(400_000), "€" * chance.randrange(100_000)]))
        old: list[Value] = ["1", *[None] * (WIDEST - 1)]
        frames.append(update(1, [_random_value(chance, 0.0) for _ in range(WIDEST)], old, b"K"))
        frames.append(delete(2, ["1", None]))
    check(frames, relations)


def _random_batch(
    chance: random.Random, *, row_count: int, broken_share: float
) -> tuple[list[bytes], list[RelationFrom]]:
    """Rows of many tables, each announced again now and then with another width."""
    frames: list[bytes] = []
    relations: list[RelationFrom] = []
    widths: dict[int, int] = {}
    for row in range(row_count):
        oid = chance.choice((1, 2, 3, 2**31, 2**32 - 1))
        if oid not in widths or chance.random() < 0.01:
            widths[oid] = chance.choice((0, 1, 2, 3, 10, 12, 40))
            relations.append(relation_from(row, oid, f"t{len(relations)}", widths[oid]))
        new, old = (
            [_random_value(chance, broken_share) for _ in range(widths[oid])] for _ in range(2)
        )
        letter = chance.choice((b"K", b"O"))
        frames.append(
            chance.choice(
                (
                    insert(oid, new),
                    update(oid, new),
                    update(oid, new, old, letter),
                    delete(oid, old, letter),
                )
            )
        )
    return frames, relations


def _random_value(chance: random.Random, broken_share: float) -> Value:
    if chance.random() < broken_share:
        return chance.choice(BROKEN)
    if chance.random() < 0.1:
        return None
    if chance.random() < 0.03:
        return UNCHANGED
    return "".join(chance.choices(chance.choice(ALPHABETS), k=chance.randrange(9)))
