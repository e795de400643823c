"""Types that the settings may give a column of the lake instead of its own type.

A type holds a PostgreSQL type if the lake can give back each of its texts: from the value, or from
`_raw` if the text does not fit. A type that fits none of the texts does not hold it.
Pure values. `spark_jobs/pg_types/types.py` reads the texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MAX_PRECISION = 38
_FORM = re.compile(r"(?P<name>[a-z]+)(?:\((?P<precision>\d{1,3})(?:,(?P<scale>\d{1,3}))?\))?\Z")
_ARRAY = re.compile(r"array<(.+)>\Z")
_INTEGERS = frozenset({"smallint", "int", "bigint"})
_NAMES = frozenset({"string", "double", "decimal"}) | _INTEGERS
_EXPECTED = "string, smallint, int, bigint, double, decimal(p,s) or an array<…> of one of them"

# The oids of PostgreSQL types, each with the oid of its array type.
_WHOLE = {21: 1005, 23: 1007, 20: 1016, 26: 1028, 28: 1011, 29: 1012, 5069: 271}
_NUMERIC = {1700: 1231}
_FLOAT4 = {700: 1021}
_HOLDS = {
    "double": frozenset(_FLOAT4),
    "decimal": frozenset({*_WHOLE, *_NUMERIC}),
    **dict.fromkeys(_INTEGERS, frozenset({*_WHOLE, *_NUMERIC})),
}
_ELEMENTS = {array: oid for oid, array in (_WHOLE | _NUMERIC | _FLOAT4).items()}


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A Delta type by its name. Only a decimal has precision and scale."""

    name: str
    precision: int = 0
    scale: int = 0
    is_array: bool = False

    @classmethod
    def parse(cls, text: str) -> ColumnType:
        """Read `string`, `decimal(38,4)`, `array<bigint>`. Raises: ValueError."""
        squeezed = re.sub(r"\s", "", text.lower())
        array = _ARRAY.match(squeezed)
        match = _FORM.match(array[1] if array else squeezed)
        if match is None or match["name"] not in _NAMES:
            raise ValueError(f"expected {_EXPECTED}")
        if match["name"] != "decimal":
            if match["precision"] is not None:
                raise ValueError(f"expected {_EXPECTED}")
            return cls(match["name"], is_array=array is not None)
        precision, scale = int(match["precision"] or 0), int(match["scale"] or 0)
        if not 0 < precision <= _MAX_PRECISION or scale > precision:
            raise ValueError(
                f"expected a decimal of 1 to {_MAX_PRECISION} digits, with s from 0 to p"
            )
        return cls("decimal", precision, scale, array is not None)

    def __str__(self) -> str:
        """The type as Spark spells it."""
        name = f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name
        return f"array<{name}>" if self.is_array else name

    def holds(self, type_oid: int) -> bool:
        """Whether the type holds a PostgreSQL type. For a domain, pass the oid of its base type."""
        if self.name == "string" and not self.is_array:
            return True
        element = _ELEMENTS.get(type_oid) if self.is_array else type_oid
        return element is not None and (self.name == "string" or element in _HOLDS[self.name])
