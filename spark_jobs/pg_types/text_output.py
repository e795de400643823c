"""Writes values of the lake as the texts that they were read from, and floats as their bits.

`types.py` does the reverse. A type's `write` gives each text back that its value holds; `_raw` has
the other texts. Spark cannot always write a float's text: PostgreSQL writes the shortest text, and
Java before 19 sometimes a longer one. So to be compared, a float is written as the integer that
Java gives for its bits. The source writes its floats in the same way. `write_float` writes a text
that has the same value, in the form of PostgreSQL.
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
# PostgreSQL writes numbers below 10 to this power without an exponent.
_PLAIN_DIGITS = {"float": 6, "double": 15}
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


def write_float(kind: str) -> Write:
    """Return a function that writes a float as PostgreSQL would; it may have more digits.

    Source: PostgreSQL documentation, section 8.1.3: the shortest text that gives the value back.
    """
    largest = _PLAIN_DIGITS[kind]

    def write(value: Expression) -> Expression:
        text = value.cast("string")
        # Java writes `12.0`, `1.2E7` and `1.0E-4`. Take the sign, the digits and the exponent.
        sign = F.regexp_extract(text, r"\A(-?)", 1)
        mantissa = F.regexp_extract(text, r"\A-?([0-9.]+)", 1)
        whole = F.regexp_extract(mantissa, r"\A([0-9]+)", 1)
        given = F.regexp_extract(text, r"E(-?[0-9]+)\z", 1).try_cast("int")
        all_digits = F.regexp_replace(mantissa, r"\.", "")
        leading = F.length(F.regexp_extract(all_digits, r"\A(0*)", 1))
        digits = F.regexp_replace(all_digits, r"\A0+|0+\z", "")
        exponent = F.coalesce(given, F.lit(0)) + F.length(whole) - 1 - leading
        return (
            F.when(text.rlike("[NI]"), text)  # NaN and the infinities.
            .when(digits == "", F.concat(sign, F.lit("0")))
            .when(
                exponent.between(-4, largest - 1),
                F.concat(sign, _write_plain_digits(digits, exponent)),
            )
            .otherwise(F.concat(sign, _write_with_exponent(digits, exponent)))
        )

    return write


def _write_plain_digits(digits: Expression, exponent: Expression) -> Expression:
    """Digits with a point, if the first of them stands for 10 to the power of the exponent."""
    count = F.length(digits)
    fraction = F.concat(F.lit("0."), F.repeat(F.lit("0"), -exponent - 1), digits)
    number = F.rpad(digits, exponent + 1, "0")
    split = F.concat(
        F.substring(digits, F.lit(1), exponent + 1),
        F.lit("."),
        F.substring(digits, exponent + 2, count),
    )
    return F.when(exponent < 0, fraction).when(count <= exponent + 1, number).otherwise(split)


def _write_with_exponent(digits: Expression, exponent: Expression) -> Expression:
    """The same digits as `1.25e+20`; an exponent has a sign and at least two digits."""
    count = F.length(digits)
    rest = F.when(count > 1, F.concat(F.lit("."), F.substring(digits, F.lit(2), count))).otherwise(
        ""
    )
    power = F.abs(exponent).cast("string")
    padded = F.when(F.length(power) < 2, F.concat(F.lit("0"), power)).otherwise(power)  # noqa: PLR2004
    sign = F.when(exponent < 0, "e-").otherwise("e+")
    return F.concat(F.substring(digits, F.lit(1), F.lit(1)), rest, sign, padded)


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
