"""Columns as a writer of tables hands them over, checked against the schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dstream.errors import InvalidInputError
from dstream.format.schema import SCHEMAS, Column, Table

_INT_LIMITS = {"INTEGER": 2**31, "BIGINT": 2**63}


def declared_columns(kind: Table, columns: Mapping[str, Any]) -> tuple[Column, ...]:
    """The schema's columns, then the labels of a sample table in order of name.

    Raises:
        InvalidInputError: a column is missing or unknown, or a label has no type of its own.
    """
    known = SCHEMAS[kind]
    names = {column.name for column in known}
    missing = sorted(names - set(columns))
    extra = sorted(set(columns) - names)
    if missing or (extra and kind is not Table.SAMPLES):
        raise InvalidInputError(
            f"{kind} table: missing columns {missing}, unknown columns {extra}", table=str(kind)
        )
    folded = {name.lower() for name in names}
    for name in extra:
        if name.lower() in folded:
            raise InvalidInputError(
                f"label {name!r} clashes with another column (case does not count): rename it",
                label=name,
            )
        folded.add(name.lower())
    return known + tuple(_label_column(name, columns[name]) for name in extra)


def _label_column(name: str, values: Sequence[Any] | NDArray[Any]) -> Column:
    kinds = {_label_type(name, value) for value in _items(values) if value is not None}
    if kinds == {"BIGINT", "DOUBLE"}:
        kinds = {"DOUBLE"}
    if len(kinds) > 1:
        raise InvalidInputError(
            f"label {name!r} mixes {sorted(kinds)}: give it one type in all samples", label=name
        )
    return Column(name, kinds.pop() if kinds else "VARCHAR", "label", nullable=True)


def _label_type(name: str, value: object) -> str:
    if isinstance(value, bool | np.bool_):
        return "BOOLEAN"
    if isinstance(value, int | np.integer):
        return "BIGINT"
    if isinstance(value, float | np.floating):
        return "DOUBLE"
    if isinstance(value, str):
        return "VARCHAR"
    raise InvalidInputError(
        f"label {name!r} holds a {type(value).__name__}; text, numbers and truth values can be "
        "stored",
        label=name,
    )


def row_count(kind: Table, columns: Mapping[str, Any]) -> int:
    """The length that all columns have; InvalidInputError where they differ."""
    lengths = {len(values) for values in columns.values()}
    if len(lengths) != 1:
        raise InvalidInputError(f"{kind} table: columns differ in length: {sorted(lengths)}")
    return lengths.pop()


def _items(values: Sequence[Any] | NDArray[Any]) -> Iterator[Any]:
    """Values one by one, None where a masked array hides one."""
    if isinstance(values, np.ma.MaskedArray):
        return iter(values.tolist())
    return iter(values)


def as_array(column: Column, values: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    """What DuckDB is handed: a numeric array as it is, all else as an object array.

    Raises:
        InvalidInputError: a value is not of the column's type.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "iufb":
        if column.type in _INT_LIMITS and values.dtype.kind != "i":
            raise InvalidInputError(f"column {column.name}: {values.dtype} is no signed integer")
        return values
    items = np.empty(len(values), dtype=object)
    for row, value in enumerate(_items(values)):
        items[row] = _checked(column, value)
    return items


def _checked(column: Column, value: Any) -> Any:
    if value is None:
        if not column.nullable:
            raise InvalidInputError(f"column {column.name}: NULL is not allowed")
        return None
    if column.is_list:
        base = Column(column.name, column.type[:-2], column.doc)
        return [_checked(base, item) for item in value]
    limit = _INT_LIMITS.get(column.type)
    if limit is not None:
        number = int(value)
        if not -limit <= number < limit:
            raise InvalidInputError(f"column {column.name}: {number} is out of range")
        return number
    if column.type == "VARCHAR":
        return _storable_text(column.name, value)
    return bool(value) if column.type == "BOOLEAN" else float(value)


def _storable_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(f"column {name}: {type(value).__name__} is no text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"column {name}: {value!r:.80} is no valid Unicode") from error
    return value
