"""Writes values of the lake as the texts that they were read from, and floats as their bits.

`types.py` does the reverse. A type's `write` gives each text back that its value holds; `_raw` has
the other texts. Spark cannot write a float's text: PostgreSQL writes the shortest text, and Java
before 19 sometimes a longer one. So a float is written as the integer that Java gives for its bits.
The source writes its floats in the same way.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cdc_core.comparing import CanonicalForm

Write = Callable[[Expression], Expression]

# PostgreSQL puts an array's element in quotes if it has one of these characters.
_QUOTED = r"[ \t\n\r\x0b\f{}\",\\]"
_BITS = {
    "float": ("java.lang.Float", "floatToIntBits"),
    "double": ("java.lang.Double", "doubleToLongBits"),
}
_FORMS = {
    "float": CanonicalForm.FLOAT4,
    "double": CanonicalForm.FLOAT8,
    "array<float>": CanonicalForm.FLOAT4_ARRAY,
    "array<double>": CanonicalForm.FLOAT8_ARRAY,
}


def choose_form(kind: T.DataType) -> CanonicalForm:
    """Choose the form in which values of a column of the lake are compared."""
    return _FORMS.get(kind.simpleString(), CanonicalForm.TEXT)


def write_plain(value: Expression) -> Expression:
    """Write an integer, a decimal of its own scale, a date, a timestamp without zone or a text."""
    return value.cast("string")


def write_bool(value: Expression) -> Expression:
    """Write a boolean as `t` or `f`."""
    return F.when(value, "t").when(~value, "f")


def write_bytes(value: Expression) -> Expression:
    """Write bytes in PostgreSQL's hex form."""
    return F.concat(F.lit("\\x"), F.lower(F.hex(value)))


def write_moment(value: Expression) -> Expression:
    """Write a timestamp with time zone. The time zone of the session must be UTC."""
    return F.concat(value.cast("string"), F.lit("+00"))


def write_trimmed(value: Expression) -> Expression:
    """Write a decimal without the zeros that end its fraction."""
    return F.regexp_replace(value.cast("string"), r"\.0*\z|(\.[0-9]*[1-9])0+\z", "$1")


def write_bits(kind: str) -> Write:
    """Return a function that writes a float as the integer that has its bits."""
    place = _BITS[kind]
    return lambda value: F.when(value.isNotNull(), F.java_method(*map(F.lit, place), value))


def write_array(write_element: Write, *, is_bare: bool) -> Write:
    """Return a function that writes an array. If `is_bare`, no element may need quotes."""

    def write(value: Expression) -> Expression:
        def write_one(element: Expression) -> Expression:
            word = write_element(element)
            return F.when(element.isNull(), "NULL").otherwise(word if is_bare else _quote(word))

        words = F.array_join(F.transform(value, write_one), ",")
        return F.concat(F.lit("{"), words, F.lit("}"))

    return write


def _quote(word: Expression) -> Expression:
    needs = (word == "") | (F.upper(word) == "NULL") | word.rlike(_QUOTED)
    escaped = F.regexp_replace(word, r'([\\"])', r"\\$1")
    return F.when(needs, F.concat(F.lit('"'), escaped, F.lit('"'))).otherwise(word)
