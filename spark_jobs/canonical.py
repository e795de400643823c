"""Values of the lake as the texts that they were read from, or as the bits of a float.

The other way of `types.py`: a type's `write` gives back each text that its value holds; `_raw` has
the others. A float's text cannot be written here: PostgreSQL gives the shortest one, Java (before
19) sometimes a longer one. So a float is the number that its bits are, as Java names it, and the
source writes its own the same way.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cdc_core.comparing import CanonicalForm

Write = Callable[[Expression], Expression]

# If an element has one of these, an array's text has the element in quotes.
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
    """In which form values of a column of the lake are compared."""
    return _FORMS.get(kind.simpleString(), CanonicalForm.TEXT)


def write_plain(value: Expression) -> Expression:
    """Integers, decimals with their own scale, dates, times without a zone, texts."""
    return value.cast("string")


def write_bool(value: Expression) -> Expression:
    """`t` or `f`."""
    return F.when(value, "t").when(~value, "f")


def write_bytes(value: Expression) -> Expression:
    """Hexadecimal."""
    return F.concat(F.lit("\\x"), F.lower(F.hex(value)))


def write_moment(value: Expression) -> Expression:
    """A timestamp with its zone; the session's is UTC."""
    return F.concat(value.cast("string"), F.lit("+00"))


def write_trimmed(value: Expression) -> Expression:
    """A decimal without the zeros that end its fraction."""
    return F.regexp_replace(value.cast("string"), r"\.0*\z|(\.[0-9]*[1-9])0+\z", "$1")


def write_bits(kind: str) -> Write:
    """The number that a float's bits are."""
    place = _BITS[kind]
    return lambda value: F.when(value.isNotNull(), F.java_method(*map(F.lit, place), value))


def write_array(write_element: Write, *, is_bare: bool) -> Write:
    """An array's text; `is_bare` promises that no element needs quotes."""

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
