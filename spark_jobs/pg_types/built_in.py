"""The object ids of the types that every server from 14 to 18 has, and of their arrays.

They never change: PostgreSQL's own source fixes them (src/include/catalog/pg_type.dat).
"""

from __future__ import annotations

# The object id of the type, and that of its array.
_BUILT_IN = {
    "bool": (16, 1000), "bytea": (17, 1001), "char": (18, 1002), "name": (19, 1003),
    "int8": (20, 1016), "int2": (21, 1005), "int4": (23, 1007), "regproc": (24, 1008),
    "text": (25, 1009), "oid": (26, 1028), "tid": (27, 1010), "xid": (28, 1011), "cid": (29, 1012),
    "json": (114, 199), "xml": (142, 143), "point": (600, 1017), "lseg": (601, 1018),
    "path": (602, 1019), "box": (603, 1020), "polygon": (604, 1027), "line": (628, 629),
    "cidr": (650, 651), "float4": (700, 1021), "float8": (701, 1022), "circle": (718, 719),
    "macaddr8": (774, 775), "money": (790, 791), "macaddr": (829, 1040), "inet": (869, 1041),
    "aclitem": (1033, 1034), "bpchar": (1042, 1014), "varchar": (1043, 1015), "date": (1082, 1182),
    "time": (1083, 1183), "timestamp": (1114, 1115), "timestamptz": (1184, 1185),
    "interval": (1186, 1187), "timetz": (1266, 1270), "bit": (1560, 1561), "varbit": (1562, 1563),
    "numeric": (1700, 1231), "refcursor": (1790, 2201), "regprocedure": (2202, 2207),
    "regoper": (2203, 2208), "regoperator": (2204, 2209), "regclass": (2205, 2210),
    "regtype": (2206, 2211), "uuid": (2950, 2951), "txid_snapshot": (2970, 2949),
    "pg_lsn": (3220, 3221), "tsvector": (3614, 3643), "tsquery": (3615, 3645),
    "gtsvector": (3642, 3644), "regconfig": (3734, 3735), "regdictionary": (3769, 3770),
    "jsonb": (3802, 3807), "int4range": (3904, 3905), "numrange": (3906, 3907),
    "tsrange": (3908, 3909), "tstzrange": (3910, 3911), "daterange": (3912, 3913),
    "int8range": (3926, 3927), "jsonpath": (4072, 4073), "regnamespace": (4089, 4090),
    "regrole": (4096, 4097), "regcollation": (4191, 4192), "int4multirange": (4451, 6150),
    "nummultirange": (4532, 6151), "tsmultirange": (4533, 6152), "tstzmultirange": (4534, 6153),
    "datemultirange": (4535, 6155), "int8multirange": (4536, 6157), "pg_snapshot": (5038, 5039),
    "xid8": (5069, 271),
}  # fmt: skip

OIDS = {name: oid for name, (oid, _) in _BUILT_IN.items()}

# The element's type by its array's type. `;` separates boxes, so arrays of boxes stay texts.
ELEMENTS = {array: oid for name, (oid, array) in _BUILT_IN.items() if name != "box"}
