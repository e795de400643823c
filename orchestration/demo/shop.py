"""The shop: its tables, its first rows, and large transactions.

A sale changes several tables, so that half a transaction would show. An order's total is the sum of
its lines. The stock and the sold quantity together are the delivered quantity. A paid order has
payments of its total. PostgreSQL stores the manuals of products out of line (TOAST), so that an
update of a price does not send them.
"""

from __future__ import annotations

import psycopg

PRODUCTS = 300
CUSTOMERS = 400
# Customers who have signed up and never order: their ids are above those of the others.
NEWCOMERS = 20
# Rows of one order of the archive: the order, four lines and one payment.
_ROWS_PER_ARCHIVED = 6

_TABLES = """
create type order_status as enum ('placed', 'paid', 'shipped', 'cancelled');

create table customers (
    id bigint primary key,
    name text not null,
    email text not null unique,
    address jsonb not null,
    newsletter boolean,
    birthday date,
    spent numeric(12,2) not null default 0,
    since timestamptz not null
);
create table products (
    sku text primary key,
    name text not null,
    price numeric(12,2) not null check (price > 0),
    attributes jsonb not null,
    manual text not null,
    changed_at timestamptz not null
);
alter table products alter column manual set storage external;
create table deliveries (
    id bigint generated always as identity primary key,
    sku text not null references products on update cascade,
    quantity integer not null check (quantity > 0),
    delivered_at timestamptz not null
);
create index on deliveries (sku);
create table stock (
    sku text primary key references products on update cascade,
    on_hand integer not null check (on_hand >= 0)
);
create sequence order_numbers;
create table orders (
    id bigint primary key default nextval('order_numbers'),
    customer_id bigint not null references customers,
    status order_status not null,
    total numeric(12,2) not null,
    note text,
    placed_at timestamptz not null,
    shipped_at timestamptz
);
create index on orders (status, id);
create table order_lines (
    order_id bigint not null references orders,
    line integer not null,
    sku text not null references products on update cascade,
    quantity integer not null check (quantity > 0),
    unit_price numeric(12,2) not null,
    primary key (order_id, line)
);
create index on order_lines (sku);
create table payments (
    id uuid primary key default gen_random_uuid(),
    order_id bigint not null references orders,
    amount numeric(12,2) not null,
    method text not null,
    paid_at timestamptz not null
);
create index on payments (order_id);
"""

_PEOPLE = """
insert into customers (id, name, email, address, newsletter, birthday, since)
select i, first || ' ' || last, lower(first) || '.' || i || '@example.org',
    jsonb_build_object('street', last || ' Street ' || i %% 90, 'city', city, 'zip', 10000 + i * 7,
                       'floors', jsonb_build_array(i %% 5, null, 'left')),
    case i %% 3 when 0 then true when 1 then false end, date '1950-01-01' + i * 41,
    now() - i * interval '1 day 1 minute 0.123456 seconds'
from generate_series(1, %s) i,
    lateral (select (array['Ada', 'Björn', 'Chloé', 'Darja', 'Emil', 'Fatma', 'Grace'])[1 + i %% 7],
                    (array['Kim', 'Núñez', 'O''Neill', 'Ölmez', 'Smith'])[1 + i %% 5],
                    (array['Bern', 'Kraków', 'Lyon', 'Oslo'])[1 + i %% 4]) as p(first, last, city)
"""

# A manual has about 9 kB, which do not compress.
_GOODS = """
insert into products (sku, name, price, attributes, manual, changed_at)
select 'P-' || lpad(i::text, 5, '0'), colour || ' ' || thing,
    2 + round((random() * 200)::numeric, 2),
    jsonb_build_object('colour', colour, 'weight_kg', round((random() * 20)::numeric, 3),
                       'sizes', jsonb_build_array('S', 'M', i), 'fragile', i %% 4 = 0),
    (select string_agg(md5(i || ' ' || n || random()), ' ') from generate_series(1, 280) n),
    now()
from generate_series(1, %s) i,
    lateral (select (array['Red', 'Green', 'Blue', 'Oak', 'Silver'])[1 + i %% 5],
                    (array['kettle', 'chair', 'lamp', 'clock', 'bicycle', 'vase'])[1 + i %% 6]
            ) as p(colour, thing)
"""

_FIRST_DELIVERIES = """
with delivered as (
    insert into deliveries (sku, quantity, delivered_at)
    select sku, 200 + (random() * 400)::integer, now() from products
    returning sku, quantity
)
insert into stock (sku, on_hand) select sku, quantity from delivered
"""

# A writer that renames a product waits for the large transaction, which has read the names.
NAMES_LOCK = "select pg_advisory_xact_lock(hashtext('product names'))"

_ARCHIVE = """
create temporary table archive on commit drop as
with names as (select array_agg(sku) as skus from products)
select i as number, line, 1 + (i %% %(customers)s) as customer_id,
    names.skus[1 + floor(random() * cardinality(names.skus))::integer] as sku,
    1 + floor(random() * 3)::integer as quantity, 1 + round((random() * 80)::numeric, 2) as price
from names, generate_series(1, %(orders)s) i, generate_series(1, 4) line
"""
_ARCHIVED_ORDERS = """
create temporary table archived on commit drop as
select nextval('order_numbers') as id, number, customer_id, total,
    now() - number * interval '13 minutes 0.654321 seconds' as placed_at
from (select number, customer_id, sum(quantity * price) as total from archive group by 1, 2) sums
"""
_ARCHIVED_ROWS = (
    """
    insert into orders (id, customer_id, status, total, note, placed_at, shipped_at)
    select id, customer_id, 'shipped', total, 'from the archive', placed_at,
        placed_at + interval '2 days'
    from archived
    """,
    """
    insert into order_lines (order_id, line, sku, quantity, unit_price)
    select id, line, sku, quantity, price from archive join archived using (number)
    """,
    """
    insert into payments (order_id, amount, method, paid_at)
    select id, total, 'invoice', placed_at + interval '1 hour' from archived
    """,
    """
    insert into deliveries (sku, quantity, delivered_at)
    select sku, sum(quantity), now() from archive group by sku
    """,
    # Last, because the writers' payments wait for these rows.
    """
    update customers set spent = spent + sums.total
    from (select customer_id, sum(total) as total from archived group by 1) sums
    where id = sums.customer_id
    """,
)


def make_tables(connection: psycopg.Connection) -> None:
    """Make the shop's tables, all empty."""
    connection.execute(_TABLES)


def fill_shelves(connection: psycopg.Connection) -> None:
    """Insert customers, products and the first deliveries."""
    connection.execute(_PEOPLE, [CUSTOMERS + NEWCOMERS])
    connection.execute(_GOODS, [PRODUCTS])
    connection.execute(_FIRST_DELIVERIES)


def import_archive(connection: psycopg.Connection, *, rows: int) -> int:
    """Insert old orders in one transaction of at least `rows` rows; return the number of rows.

    The transaction also delivers the goods that it sells, so that stock does not change.
    """
    orders = -(-rows // _ROWS_PER_ARCHIVED)
    with connection.transaction():
        connection.execute(NAMES_LOCK)
        connection.execute(_ARCHIVE, {"orders": orders, "customers": CUSTOMERS})
        connection.execute(_ARCHIVED_ORDERS)
        return sum(connection.execute(statement).rowcount for statement in _ARCHIVED_ROWS)
