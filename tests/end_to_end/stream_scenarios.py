"""What a stream can carry, as SQL: tables, and the steps of a history, parted by empty lines.

The steps of all scenarios are taken by turns. A step's own BEGIN and COMMIT count.
"""

from __future__ import annotations

from dataclasses import dataclass

PUBLICATION = """
create publication walgate for table filtered where (amount > 10), table leaving, table part,
  tables in schema events with (publish_via_partition_root = true)
"""
# Tables of the schema are all published; the others by name.
COMMON = """
create schema events

create table leaving (id int primary key, v text)
"""


@dataclass(frozen=True)
class Scenario:
    """`receive` makes the subscriber's tables where they differ from the source's."""

    tables: tuple[str, ...]
    make: str
    happens: str
    receive: str = ""


def split_steps(text: str) -> list[str]:
    """Give the steps in order."""
    return [step.strip() for step in text.split("\n\n") if step.strip()]


TRUNCATES = Scenario(
    ("events.parent", "events.child", "events.other"),
    """
create table events.parent (id serial primary key, v text)

create table events.child (id serial primary key, parent int references events.parent)

create table events.other (id int primary key, v text)
""",
    """
insert into events.parent (v) values ('a'), ('b')

insert into events.child (parent) values (1), (2)

insert into events.other values (1, 'a'), (2, 'b')

begin;
insert into events.parent (v) values ('c');
truncate events.parent restart identity cascade;
insert into events.parent (v) values ('d');
insert into events.child (parent) values (1);
truncate events.other, events.child;
insert into events.other values (1, 'again');
commit

insert into events.child (parent) values (1)

begin; truncate events.other; rollback
""",
)
SAVEPOINTS = Scenario(
    ("events.saved",),
    "create table events.saved (id int primary key, v text)",
    """
do $$ begin for i in 1..40 loop
  begin
    insert into events.saved select i * 1000 + g, repeat('x', 100) from generate_series(1, 60) g;
    if i % 3 = 0 then raise exception 'no'; end if;
  exception when raise_exception then null;
  end;
end loop; end $$

begin;
insert into events.saved values (1, 'kept');
savepoint s;
update events.saved set v = 'lost' where id = 1;
rollback to s;
delete from events.saved where id = 1001;
release s;
commit

begin; insert into events.saved values (2, 'never'); rollback
""",
)
PREPARED = Scenario(
    ("events.prepared",),
    "create table events.prepared (id int primary key, v text)",
    """
begin; insert into events.prepared values (1, 'first'); prepare transaction 'one'

begin; insert into events.prepared values (2, 'never'); prepare transaction 'two'

insert into events.prepared values (3, 'between')

commit prepared 'one'

rollback prepared 'two'

update events.prepared set v = 'after' where id = 1
""",
)
KEYS = Scenario(
    ("events.moving", "events.swapped"),
    """
create table events.moving (id int primary key, v text, big text)

alter table events.moving alter big set storage external

create table events.swapped (id int primary key deferrable initially deferred, v text)

alter table events.swapped replica identity full
""",
    """
insert into events.moving select i, i::text, repeat('b' || i, 2000) from generate_series(1, 5) i

begin;
update events.moving set id = 10 where id = 1;
update events.moving set id = 11 where id = 10;
update events.moving set id = 1, v = 'home' where id = 11;
commit

begin;
update events.moving set id = 20 where id = 2;
insert into events.moving values (2, 'new', null);
commit

update events.moving set v = 'touched' where id in (3, 20)

delete from events.moving where id = 4

insert into events.swapped values (1, 'one'), (2, 'two'), (3, 'three')

begin; update events.swapped set id = 3 - id where id < 3; commit

update events.swapped set v = 'moved', id = 9 where id = 3
""",
)
PARTITIONS = Scenario(
    ("public.part",),
    """
create table part (id int, place text, v text, primary key (id, place)) partition by list (place)

create table part_n partition of part for values in ('north')

create table part_s partition of part for values in ('south')

create table part_w (v text, place text not null, id int not null, primary key (id, place))
""",
    """
insert into part values (1, 'north', 'a'), (2, 'south', 'b'), (3, 'north', 'c'), (5, 'north', 'e')

update part set place = 'south' where id = 1

alter table part attach partition part_w for values in ('west')

insert into part values (4, 'west', 'd')

update part set place = 'west', v = 'moved' where id = 3

begin; delete from part where place = 'north'; alter table part detach partition part_n; commit

update part set v = v || '!'
""",
    receive="create table part (id int, place text, v text, primary key (id, place))",
)
FILTER = Scenario(
    ("public.filtered",),
    """
create table filtered (id int primary key, amount int, v text)

alter table filtered replica identity full
""",
    """
insert into filtered values (1, 5, 'low'), (2, 15, 'high'), (3, 20, 'high')

update filtered set amount = 50 where id = 1

update filtered set amount = 1 where id = 2

update filtered set v = 'seen' where id = 3

delete from filtered where id = 2
""",
)
# Of the subscriber `twice` is a plain column, which shows what was sent.
GENERATED = Scenario(
    ("events.generated",),
    """
create table events.generated
  (id int primary key, a int, twice int generated always as (a * 2) stored)
""",
    """
insert into events.generated values (1, 10), (2, 20)

update events.generated set a = 11 where id = 1
""",
    receive="create table events.generated (id int primary key, a int, twice int)",
)
OTHERS = Scenario(
    ("events.plain",),
    "create table events.plain (id int primary key, v text)",
    """
begin;
select pg_logical_emit_message(true, 'other', 'theirs');
insert into events.plain values (1, 'a');
select pg_logical_emit_message(false, 'other', 'theirs');
insert into events.plain values (3, 'b');
commit

begin; select pg_logical_emit_message(false, 'walgate', 'not ours'); rollback

select pg_replication_origin_create('stream_scenarios');
select pg_replication_origin_session_setup('stream_scenarios');
begin;
select pg_replication_origin_xact_setup('0/ABCD', now());
insert into events.plain values (2, 'from elsewhere');
commit
""",
)
SCENARIOS = (TRUNCATES, SAVEPOINTS, PREPARED, KEYS, PARTITIONS, FILTER, GENERATED, OTHERS)
