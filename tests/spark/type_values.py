"""Every type that a table can have, with values at its edges, as a person would write them in SQL.

Beside our own there are values found in PostgreSQL's regression and subscription tests (float8,
002_types), and in the type tests of Debezium (AbstractRecordsProducerTest), Estuary
(datatype_test.go), Materialize (types-*.td) and supabase/etl (value_roundtrip.rs).
"""

from __future__ import annotations

import struct

import psycopg

from tests.postgres_server import Database

_DOUBLE_BITS = (
    "0000000000000001 0000008cdcdea440 000ffffffffffff0 000fffffffffffff 0010000000000000 "
    "3ddb7cdfd9d7bdba 3e45798ee2308c3a 3f1a36e2eb1c432d 3fb999999999999a 3fefffffffffffff "
    "3ff0000000000001 400921fb54442d18 40f869ffffffffff 41cdcd6500000001 430c6bf52633ffff "
    "4341c37937e08001 44ea784379d99db4 7fefffffffffffff 4350000000002e06 c35f000000000020 "
    "42dc12218377de66 41d26580b487e6b4 3ff3c0ca428c59f8 c352bd2668e077c4 4830f0cf064dd592 "
)
_DOUBLES = [repr(struct.unpack(">d", bytes.fromhex(bits))[0]) for bits in _DOUBLE_BITS.split()]

_TIMES = ["00:00:00", "24:00:00", "23:59:59.999999", "00:00:00.000001", "12:00:00.1", "04:05:06"]
_DAYS = ["1970-01-01", "0001-01-01", "1582-10-10", "1900-02-28", "2000-02-29", "9999-12-31",
         "1999-01-08", "2016-11-04", "0001-12-31 BC", "0044-03-15 BC", "10000-01-01", "infinity",
         "-infinity"]  # fmt: skip
_MOMENTS = ["1970-01-01 00:00:00", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999",
            "2016-11-04 13:51:30", "1582-10-10 00:00:00.1", "2000-02-29 23:59:59.9",
            "1969-12-31 23:59:59.999999", "2010-01-01 24:00:00", "0001-12-31 23:59:59.999999 BC",
            "4714-11-24 00:00:00 BC", "10000-01-01 00:00:00", "294276-12-31 23:59:59.999999",
            "infinity", "-infinity"]  # fmt: skip
_NUMBERS = ["0", "1", "-1", "0.0", "-0.10", "1.5", "123.456", "2E2", "0.000000000000000001",
            "9" * 20 + "." + "9" * 18, "-" + "9" * 20, "1" + "0" * 20, "1e-19", "1" + "0" * 37,
            "9" * 1000 + "." + "9" * 1000, "-1e-1000", "NaN", "Infinity", "-Infinity"]  # fmt: skip
_TEXTS = ["", " ", " padded ", "NULL", "null", "Hello, world!", 'a"b', "it's", "\\", "\\N", "{}",
          "{a,b}", "line\nend\r\n\t", "\u0001\u001f\u007f", "äöü ß", "日本語", "🐘", "\ufffe\uffff",
          "e\u0301", '\\"', "(a,b)", "[1:2]={1}", "a=>b", "x" * 9000]  # fmt: skip

# By the type as a column is declared with it.
VALUES = {
    "bool": ["true", "false"],
    "int2": ["-32768", "32767", "0", "-1"],
    "int4": ["-2147483648", "2147483647", "0", "123"],
    "int8": ["-9223372036854775808", "9223372036854775807", "0", "1550166368505037572"],
    "numeric": _NUMBERS,
    "numeric(10,2)": ["12345678.90", "-0.01", "0", "1.1", "99999999.99", "NaN"],
    "numeric(1,1)": ["0.9", "-0.9", "0"],
    "numeric(38,0)": ["9" * 38, "-" + "9" * 38, "0", "NaN"],
    "numeric(38,38)": ["0." + "9" * 38, "-1e-38", "0"],
    "numeric(50,10)": ["9" * 40 + "." + "9" * 10, "9" * 28 + ".5", "-0.0000000001"],
    "numeric(60,39)": ["1", "-1e-39"],
    "numeric(1000,0)": ["9" * 1000, "9" * 38, "-1"],
    "numeric(1000,1000)": ["0." + "9" * 1000, "0"],
    "numeric(3,-2)": ["12300", "-99900", "0"],
    "numeric(2,4)": ["0.0012", "-0.0099"],
    "float4": ["0", "-0", "1", "0.1", "3.3", "-34.84", "1e-45", "1.1754944e-38", "3.4028235e38",
               "16777217", "1e6", "1e7", "123.456", "NaN", "Infinity", "-Infinity"],
    "float8": ["0", "-0", "1", "0.1", "4.44", "1004.30", "1.2345678901234e+200", "1e15", "1e-5",
               "2.2250738585072014E-308", "NaN", "Infinity", "-Infinity", *_DOUBLES],
    "money": ["-92233720368547758.08", "92233720368547758.07", "$1234.11", "0"],
    "date": [*_DAYS, "4714-11-24 BC", "5874897-12-31"],
    "time": _TIMES,
    "time(0)": _TIMES,
    "timetz": ["00:00:00+15:59", "24:00:00-15:59", "13:51:30+02:00", "23:59:59.999999+00:00:01"],
    "timestamp": _MOMENTS,
    "timestamp(3)": _MOMENTS,
    "timestamptz": [*_MOMENTS, "1991-08-31 12:34:56.111-08", "1900-01-01 00:00:00+00:17:30"],
    "timestamptz(0)": _MOMENTS,
    "interval": ["0", "178000000 years", "-178000000 years", "1 mon -1 days +00:00:01",
                 "P1Y2M3DT4H5M0S", "2 months 1 day 5 minutes 6 seconds", "-00:00:00.000001",
                 "1 year 2 month 3 day 4 hour 5 minute 6.789123 second", "2147483647 days"],
    "interval year to month": ["1 year 2 months"],
    "interval second(2)": ["1.239 seconds"],
    "bit": ["0", "1"],
    "bit(8)": ["00000000", "10101010"],
    "bit varying": ["", "1", "01" * 500],
    "bit varying(5)": ["", "10111"],
    "inet": ["192.168.100.0/24", "192.168.0.1", "2001:4f8:3:ba::/64", "::", "::ffff:1.2.3.4/128",
             "0.0.0.0/0"],
    "cidr": ["192.168.100.0/24", "2001:4f8:3:ba::/64", "0.0.0.0/0", "10"],
    "macaddr": ["08:00:2b:01:02:03", "ff:ff:ff:ff:ff:ff"],
    "macaddr8": ["08-00-2b-01-02-03-04-05", "00:00:00:00:00:00:00:00"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "0" * 32, "F" * 32],
    "json": ['{"bar": "baz"}', ' { "a" :1.0, "a": 2 } ', '"\\u0000 \\ud83d\\udc18"', "null",
             "[1e400, -0, 1.50]", '{"k": "line\\nend"}', "\n[\n]"],
    "jsonb": ['{"bar": "baz"}', '{"b": 1.50, "a": 2, "b": 3}', '"\\u0001 \\ud83d\\udc18"', "null",
              "[1e400, -0, 1.50]", "{}", '{"": [[], {"x": null}]}'],
    "jsonpath": ["$foo", '$.a[*] ? (@ > 1 && @.b like_regex "x")', "strict $"],
    "bytea": ["\\x", "\\x" + bytes(range(256)).hex(), "\\xDEADBEEF", "abc\\\\d"],
    "text": _TEXTS,
    "varchar": _TEXTS[:10],
    "varchar(10)": ["foo", "", "0123456789", "äöü🐘"],
    "char(5)": ["foo", "", "abcde", "ä"],
    '"char"': ["", "a", "\\"],
    "name": ["", "a b", "x" * 63],
    "tsvector": ["a fat cat", "'a b':1A,2B 'it''s':3 'back\\\\slash'", ""],
    "tsquery": ["fat & cat", "!'a b':*AB <-> c", ""],
    "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF", "16/B374D848"],
    "oid": ["0", "4294967295", "123"],
    "xid": ["0", "4294967295"],
    "cid": ["4294967295"],
    "xid8": ["18446744073709551615", "0"],
    "tid": ["(0,0)", "(4294967295,65535)"],
    "regclass": ["pg_class", "-"],
    "regtype": ["int4", "timestamp with time zone", "-"],
    "regproc": ["now", "-"],
    "regprocedure": ["now()", "-"],
    "regoper": ["||/", "0"],
    "regoperator": ["+(int4,int4)", "0"],
    "regconfig": ["english"],
    "regdictionary": ["simple"],
    "regnamespace": ["pg_catalog"],
    "regrole": ["postgres"],
    "regcollation": ['"C"'],
    "aclitem": ["=r/postgres", "postgres=arwdDxt/postgres"],
    "refcursor": ["a cursor"],
    "int2vector": ["", "1 -2 3"],
    "oidvector": ["", "1 4294967295"],
    "txid_snapshot": ["10:20:10,14,15"],
    "pg_snapshot": ["10:20:10,14,15", "1:1:"],
    "point": ["(1,2)", "(1e300,-0)", "(NaN,Infinity)", "(0.1,1e-300)"],
    "lseg": ["[(1, 2), (3, 4)]"],
    "line": ["{1, 2, 3}", "{1,-1,0}"],
    "box": ["((1, 2), (3, 4))", "(0,0),(0,0)"],
    "path": ["[(1, 2), (3, 4), (5, 6)]", "((0,0),(1,1))"],
    "polygon": ["((0, 0), (0, 1), (1, 0))"],
    "circle": ["((1, 2), 3)", "<(0,0),0>"],
    "int4range": ["[1,10]", "empty", "(,)", "[-2147483648,2147483647)", "(,5]"],
    "int8range": ["[,]", "[-9223372036854775808,9223372036854775807)"],
    "numrange": ["(1.1,5.5]", "[1.50,1.50]", "[NaN,NaN]", "[-Infinity,)"],
    "tsrange": ["[2010-01-01 11:30,2010-01-01 15:00)", "[-infinity,infinity]"],
    "tstzrange": ["[2017-06-05 11:29:12.549426+00,)", "[2014-08-04 00:00:00+02,infinity)"],
    "daterange": ["(2010-01-01,2010-01-02]", "[4714-11-24 BC,infinity)"],
    "int4multirange": ["{}", "{[1,2],[5,9)}", "{(,)}"],
    "int8multirange": ["{[1,2)}"],
    "nummultirange": ["{[1.1,2.20],(3,)}"],
    "tsmultirange": ["{[2010-01-01 11:30,2010-01-01 15:00)}"],
    "tstzmultirange": ["{[2010-01-01 11:30+02,2010-01-01 15:00+00)}"],
    "datemultirange": ["{[2010-01-01,2010-01-02],(2020-01-01,)}"],
    "mood": ["sad", 'o"k', "ha,ppy", "added later"],
    "pair": ["(1,a)", "(,)", '(-5,"quoted "" \\\\ , text")'],
    "nest": ['("(1,a)","{x,NULL,""y z""}",sad)', "(,,)"],
    "floatrange": ["[0.1,1e300)", "empty", "[-0,NaN]"],
    "floatmultirange": ["{[0.1,1e300)}", "{}"],
    "price": ["12345678.90", "NaN"],
    "net_price": ["12345678.90", "-0.01"],
    "prices": ["{1.50,NULL}", "{NaN}", "[0:0]={1}"],
}  # fmt: skip
ADDED_LATER = "alter type mood add value 'added later'"
_USER_TYPES = (
    """create type mood as enum ('sad', 'o"k', 'ha,ppy')""",
    "create type pair as (a int, b text)",
    "create type nest as (p pair, q text[], r mood)",
    "create type floatrange as range (subtype = float8, multirange_type_name = floatmultirange)",
    "create domain price as numeric(10,2)",
    "create domain net_price as price",
    "create domain prices as numeric(10,2)[]",
)
_EXTENSIONS = {
    "hstore": {
        "hstore": ['"a"=>"1"', '"yellow horse"=>"moaned", "x y"=>NULL', "", '"q\\""=>"\\\\"'],
    },
    "citext": {"citext": ["MiXed", "", "NULL"]},
    "ltree": {
        "ltree": ["Top.Collections.Pictures.Astronomy.Galaxies", ""],
        "lquery": ["Top.*{1,2}.!a"],
    },
    "cube": {"cube": ["(1,2,3)", "(0),(1e300)"]},
    "isn": {"isbn": ["978-0-393-04002-9"]},
    "seg": {"seg": ["1.50 .. 2", "< 3"]},
    "vector": {"vector(3)": ["[1,2.5,-3]"], "sparsevec(5)": ["{1:1,3:2}/5"]},
}  # fmt: skip
_XML = ["<foo>bar</foo><foo>bar</foo>", "text &amp; more", "<foo>bar &gt; baz</foo>",
        '<?xml version="1.0"?><a b="c"/>', ""]  # fmt: skip


def make_types(database: Database) -> dict[str, list[str]]:
    """Make all types that the server can have; give each one's values."""
    for statement in _USER_TYPES:
        database.execute(statement)
    values = dict(VALUES)
    available = {name for (name,) in database.query("select name from pg_available_extensions")}
    for name, kinds in _EXTENSIONS.items():
        if name in available:
            database.execute(f"create extension {name}")
            values |= kinds
    try:
        database.query("select '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        pass
    else:
        values["xml"] = _XML
    if database.server.version >= 17:
        values["interval"] = [*values["interval"], "infinity", "-infinity"]
    return values


def make_arrays(kind: str, values: list[str]) -> list[str]:
    """Arrays of these values: all of them, each of the first, none, NULLs, nested, other bounds."""
    comma = ";" if kind == "box" else ","
    quoted = ['"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values]
    first, last = quoted[0], quoted[-1]
    return [
        "{" + comma.join(quoted) + "}",
        "{" + comma.join(quoted[:6]) + "}",
        "{" + first + "}",
        "{" + comma.join(["NULL", last, "NULL"]) + "}",
        "{}",
        "{NULL}",
        "{{" + first + comma + "NULL}" + comma + "{" + last + comma + first + "}}",
        "{{{" + first + "}}}",
        "[0:1]={" + first + comma + "NULL}",
        "[-5:-4][7:7]={{" + first + "}" + comma + "{" + last + "}}",
    ]
