"""What may happen to a table, or to how it is published, while its changes are replicated.

`{t}` is the table, `{s}` its schema, `{n}` its name, `{p}` a publication of this mode's own. A
table holds row 1 when it happens; statements run one by one, each a transaction unless they say
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = "(id int primary key, v text)"
WIDE = "(id int primary key, v text, w text)"
# Why a table halts whose publication changed.
PUBLISHED = "the publication of the table changed"


@dataclass(frozen=True, slots=True)
class Change:
    """One case: a table, how it is published, what happens, and the reason of its halt.

    No reason: the table equals the source's. `named` is what publishes it: nothing where it is a
    table of a published schema. So many statements are `followed` while capture streams; none where
    it runs again only afterwards.
    """

    row: str
    name: str
    happens: str
    reason: str | None = None
    columns: str = PLAIN
    named: str | None = None
    is_filled: bool = True
    is_left: bool = False
    followed: int = 0


CHANGES = (
    Change(
        "f17",
        "added",
        """begin; insert into {t} values (2, 'b'); alter table {t} add column c int default 7;
        insert into {t} values (3, 'c', 8); alter table {t} add column d text;
        update {t} set d = 'x' where id = 1; insert into {t} values (4, 'd'); commit""",
    ),
    Change(
        "f17",
        "added_without_its_default",
        """begin; alter table {t} add column c int default 7; alter table {t} alter c drop default;
        insert into {t} values (2, 'b'); commit""",
    ),
    Change(
        "f17",
        "rolled_back",
        """begin; insert into {t} values (2, 'b'); savepoint s; alter table {t} add column c int;
        insert into {t} values (3, 'c', 1); rollback to s; insert into {t} values (4, 'd');
        commit""",
    ),
    Change("f17", "beside_the_retyped", "select 1"),
    Change(
        "f17",
        "rewritten",
        """begin; insert into {t} values (2, 'b'); alter table {t} add c float8 default random();
        insert into {t} values (3, 'c'); commit""",
        "does not show its default",
    ),
    Change(
        "f17",
        "dropped_column",
        """begin; insert into {t} values (2, 'b'); alter table {t} drop v;
        insert into {t} values (3); commit""",
        "column v was dropped",
    ),
    Change(
        "f17",
        "renamed_column",
        """begin; insert into {t} values (2, 'b'); alter table {t} rename v to w;
        insert into {t} values (3, 'c'); commit""",
        "column v was renamed to w",
    ),
    Change(
        "f17",
        "retyped",
        """begin; insert into {t} values (2, 'b');
        insert into {s}.beside_the_retyped values (2, 'b');
        alter table {t} alter v type int using id; insert into {t} values (3, 7);
        insert into {s}.beside_the_retyped values (3, 'c'); commit""",
        "the type of column v changed to integer",
    ),
    Change(
        "f17",
        "narrowed",
        """begin; insert into {t} values (2, 'b'); alter table {t} alter v type varchar(5);
        insert into {t} values (3, 'c'); commit""",
        "the type of column v changed to character varying(5)",
    ),
    Change(
        "f17",
        "retyped_to_its_own",
        """begin; insert into {t} values (2, 'b'); alter table {t} alter v type text using upper(v);
        insert into {t} values (3, 'c'); commit""",
        "the table was rewritten by ALTER COLUMN",
    ),
    Change(
        "f17",
        "rewritten_and_left_as_it_was",
        "insert into {t} values (2, 'b'); vacuum full {t}; insert into {t} values (3, 'c')",
    ),
    Change(
        "f17",
        "made_again_column",
        """begin; insert into {t} values (2, 'b'); alter table {t} drop v;
        alter table {t} add v text; insert into {t} values (3, 'c'); commit""",
        "column v was dropped and added again",
    ),
    Change(
        "f17",
        "short_lived_column",
        """begin; alter table {t} add c int default 1; insert into {t} values (2, 'b', 5);
        alter table {t} drop c; insert into {t} values (3, 'c'); commit""",
        "new column c was renamed or dropped since it was announced",
    ),
    Change(
        "f17",
        "other_key",
        """begin; insert into {t} values (2, 'b'); alter table {t} drop constraint {n}_pkey;
        alter table {t} add primary key (v); insert into {t} values (3, 'c'); commit""",
        "the key changed to (v)",
    ),
    Change(
        "f18",
        "made_again",
        """begin; insert into {t} values (2, 'b'); drop table {t};
        create table {t} (id int primary key, v text); insert into {t} values (9, 'z'); commit""",
        "the table was dropped and made again",
    ),
    Change(
        "f18",
        "made_again_otherwise",
        """drop table {t}; create table {t} (w int, id int primary key);
        insert into {t} values (9, 9)""",
        "the table was dropped and made again",
    ),
    Change(
        "f18",
        "replaced",
        """begin; alter table {t} rename to {n}_before;
        create table {t} (id int primary key, v text); insert into {t} values (9, 'z'); commit""",
        "the table was dropped and made again",
    ),
    Change(
        "f23",
        "left_and_back",
        """alter publication named drop table {t}; delete from {t};
        alter publication named add table {t}; insert into {t} values (2, 'b')""",
        PUBLISHED,
        named="named",
    ),
    Change(
        "f23",
        "changed_left_and_back",
        """insert into {t} values (2, 'b'); alter publication named drop table {t};
        delete from {t} where id = 2; alter publication named add table {t};
        insert into {t} values (3, 'c')""",
        PUBLISHED,
        named="named",
        followed=1,
    ),
    Change(
        "f23",
        "left",
        "alter publication named drop table {t}; insert into {t} values (2, 'b')",
        named="named",
        is_left=True,
    ),
    Change(
        "f23",
        "came",
        "alter publication named add table {t}; insert into {t} values (1, 'a')",
        named="",
        is_filled=False,
    ),
    Change(
        "f23",
        "filtered_otherwise",
        """alter publication named drop table {t};
        alter publication named add table {t} where (id < 9); insert into {t} values (7, 'b')""",
        PUBLISHED,
        named="named where (id < 5)",
    ),
    Change(
        "f23",
        "more_columns",
        """alter publication named drop table {t}; alter publication named add table {t} (id, v, w);
        insert into {t} values (2, 'b', 'x')""",
        "column w",
        columns=WIDE,
        named="named (id, v)",
    ),
    Change(
        "f23",
        "all_columns",
        """alter publication named drop table {t}; alter publication named add table {t};
        insert into {t} values (2, 'b', 'x')""",
        PUBLISHED,
        columns=WIDE,
        named="named (id, v)",
    ),
    Change(
        "f23",
        "fewer_columns",
        """alter publication named drop table {t}; alter publication named add table {t} (id, v);
        insert into {t} values (2, 'b', 'x')""",
        "column w was dropped",
        columns=WIDE,
        named="named (id, v, w)",
    ),
    Change(
        "f23",
        "not_deleted",
        """alter publication {p}_operations set (publish = 'insert, update'); delete from {t};
        alter publication {p}_operations set (publish = 'insert, update, delete, truncate');
        insert into {t} values (2, 'b')""",
        PUBLISHED,
        named="{p}_operations",
    ),
    Change(
        "f23",
        "set_and_set_again",
        """alter publication {p}_set set table {s}.set_as_it_was; delete from {t};
        alter publication {p}_set set table {s}.set_as_it_was, {t};
        insert into {t} values (2, 'b')""",
        PUBLISHED,
        named="{p}_set",
    ),
    Change("f23", "set_as_it_was", "insert into {t} values (2, 'b')", named="{p}_set"),
    Change(
        "f23",
        "published_anew",
        """begin; drop publication {p}_anew; create publication {p}_anew for table {t}; commit;
        insert into {t} values (2, 'b')""",
        PUBLISHED,
        named="{p}_anew",
    ),
)
