"""What is concealed is in no decoded row, whichever message it came in."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_core.errors import MalformedMessage
from cdc_core.protocol.concealment import Concealment, Treatment, mark_key
from cdc_core.protocol.rows import RelationFrom, decode_rows
from cdc_core.vocabulary import Relation
from tests.protocol.encoding import UNCHANGED, delete, insert, update
from tests.protocol.shapes import relation_from

KEY = b"0123456789abcdef0123456789abcdef"
SECRET = "s3cr3t-canary"  # noqa: S105 - What must not be found.
OPEN, VEILED = 16385, 16386
KEEP, DROP, HASH = Treatment.KEEP, Treatment.DROP, Treatment.HASH
RULE = Concealment((KEEP, DROP, HASH, KEEP), KEY)


def hashed(text: str) -> str:
    return hmac.new(KEY, text.encode(), hashlib.sha256).hexdigest()


def veil(entry: RelationFrom, rule: Concealment) -> RelationFrom:
    return replace(entry, relation=rule.conceal_relation(entry.relation), concealment=rule)


RELATIONS = [relation_from(0, OPEN, "open", 2), veil(relation_from(0, VEILED, "veiled", 4), RULE)]


def decode(*frames: bytes, relations: list[RelationFrom] = RELATIONS) -> list[dict[str, object]]:
    batch = decode_rows(frames, relations)
    batch.validate(full=True)
    rows: list[dict[str, object]] = batch.to_pylist()
    return rows


def images(row: dict[str, object]) -> tuple[object, ...]:
    return row["op"], row["values"], row["unchanged"], row["old_values"]


def test_every_kind_of_message_is_concealed_and_other_tables_are_not() -> None:
    s = SECRET
    rows = decode(
        insert(VEILED, ["1", s, s, "x"]),
        insert(OPEN, [s, s]),
        update(VEILED, ["1", UNCHANGED, UNCHANGED, UNCHANGED]),
        update(VEILED, ["1", UNCHANGED, UNCHANGED, UNCHANGED], ["1", s, s, "y"], b"O"),
        update(VEILED, ["2", s, None, ""], ["1", None, None, None], b"K"),
        delete(VEILED, ["1", s, s, None], b"O"),
    )
    h = hashed(s)
    assert [images(row) for row in rows] == [
        ("insert", ["1", h, "x"], None, None),
        ("insert", [s, s], None, None),
        ("update", ["1", None, None], [1, 2], None),
        ("update", ["1", h, "y"], None, ["1", h, "y"]),
        ("update", ["2", None, ""], None, ["1", None, None]),
        ("delete", None, None, ["1", h, None]),
    ]


def test_bytes_that_are_no_text_are_hashed_or_left_out_and_kept_bytes_show_no_secret() -> None:
    broken = b"caf\xe9" + SECRET.encode()
    (fine, undecoded) = decode(
        insert(VEILED, ["1", broken, broken, "x"]), insert(VEILED, ["1", SECRET, SECRET, b"\xff"])
    )
    digest = hmac.new(KEY, broken, hashlib.sha256).hexdigest()
    assert images(fine) == ("insert", ["1", digest, "x"], None, None)
    assert undecoded["op"] == "undecoded"
    assert SECRET.encode().hex() not in str(undecoded["detail"])
    assert b"\xff".hex() in str(undecoded["detail"])


def test_a_rule_counts_from_its_announcement_on() -> None:
    plain = relation_from(0, VEILED, "veiled", 4)
    later = replace(veil(relation_from(1, VEILED, "veiled", 4), RULE), first_row=1)
    message = insert(VEILED, ["1", "a", "b", "c"])
    rows = decode(message, message, relations=[plain, later])
    assert [row["values"] for row in rows] == [["1", "a", "b", "c"], ["1", hashed("b"), "c"]]


def test_a_concealed_relation_shows_neither_the_column_nor_its_default() -> None:
    (relation,) = [relation_from(0, VEILED, "veiled", 4).relation]
    columns = tuple(replace(c, missing_value=SECRET) for c in relation.columns)
    shown: Relation = RULE.conceal_relation(replace(relation, columns=columns))
    assert [c.name for c in shown.columns] == [columns[i].name for i in (0, 2, 3)]
    assert (shown.columns[1].type_oid, shown.columns[1].type_name) == (25, "text")
    assert shown.columns[1].missing_value == hashed(SECRET)


def test_the_key_is_in_no_description_of_the_rule() -> None:
    assert KEY.decode() not in repr(RELATIONS)


@given(
    st.lists(
        st.lists(st.none() | st.text(max_size=5), min_size=4, max_size=4), min_size=1, max_size=8
    )
)
def test_nothing_else_is_touched(rows: list[list[str | None]]) -> None:
    expected = [[r[0], None if r[2] is None else hashed(r[2]), r[3]] for r in rows]
    frames = [insert(VEILED, row) for row in rows]
    assert [row["values"] for row in decode(*frames)] == expected
    assert decode_rows([memoryview(frame) for frame in frames], RELATIONS).equals(
        decode_rows(frames, RELATIONS)
    )
    assert isinstance(decode_rows(frames, RELATIONS), pa.RecordBatch)


def test_a_message_cut_anywhere_is_refused_or_says_nothing() -> None:
    whole = update(VEILED, ["1", SECRET, SECRET, "x"], ["1", SECRET, SECRET, "y"], b"O")
    for size in range(30, len(whole)):
        with pytest.raises(MalformedMessage) as refused:
            decode(whole[:size])
        assert SECRET not in str(refused.value)
    with pytest.raises(MalformedMessage):
        decode(insert(VEILED, ["1", SECRET, SECRET]))
    with pytest.raises(MalformedMessage):
        decode(whole + b"\0")


def test_the_relation_says_what_is_hashed_by_which_key_and_what_is_left_out() -> None:
    relation = relation_from(0, VEILED, "veiled", 4).relation
    concealed = RULE.conceal_relation(relation)
    marks = [column.hashed_by for column in concealed.columns]
    assert marks == [None, mark_key(KEY), None]
    assert concealed.left_out == (2,)
    assert KEY.decode() not in str(concealed)
    other = Concealment(RULE.treatments, b"another key").conceal_relation(relation)
    assert other.version != concealed.version != relation.version
    # What was left out is still known once the rule is gone.
    assert relation.after(concealed).left_out == (2,)
    assert relation.after(relation) == relation


def test_a_column_that_the_catalog_no_longer_shows_may_have_had_any_number_in_its_place() -> None:
    relation = relation_from(0, VEILED, "veiled", 4).relation

    def forget(*indexes: int, width: int | None) -> Relation:
        columns = [
            replace(column, attnum=None) if index in indexes else column
            for index, column in enumerate(relation.columns)
        ]
        return replace(relation, columns=tuple(columns), width=width)

    assert RULE.conceal_relation(forget(1, width=9)).left_out == (2,)
    # Another one was left out in its place before, and is not the same.
    older = replace(forget(1, 2, width=9), left_out=(3,))
    assert RULE.conceal_relation(older).left_out == (2, 3)
    # A column that is added later has a larger number.
    assert RULE.conceal_relation(forget(1, 2, 3, width=6)).left_out == (2, 3, 4, 5, 6)
    assert RULE.conceal_relation(forget(1, 2, 3, width=None)).left_out == (0,)
