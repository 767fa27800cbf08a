"""A filter over samples: one SQL expression from outside, made safe to evaluate.

DuckDB parses the text (`json_serialize_sql`, https://duckdb.org/docs/stable/data/json/sql_to_and_from_json);
only nodes and functions listed here are taken, and what is evaluated is written anew from them,
so nothing that was not understood reaches the database. All listed functions are pure and give
results no longer than their arguments, so an expression costs what its length and the rows cost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import duckdb

from dstream.errors import InvalidInputError

MAX_EXPRESSION_CHARS = 4000
_MAX_DEPTH = 100

_COMPARISONS = {
    "COMPARE_EQUAL": "=", "COMPARE_NOTEQUAL": "<>", "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">", "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=", "COMPARE_DISTINCT_FROM": "IS DISTINCT FROM",
    "COMPARE_NOT_DISTINCT_FROM": "IS NOT DISTINCT FROM",
}  # fmt: skip
_CONJUNCTIONS = {"CONJUNCTION_AND": "AND", "CONJUNCTION_OR": "OR"}
_SUFFIXES = {"OPERATOR_IS_NULL": "IS NULL", "OPERATOR_IS_NOT_NULL": "IS NOT NULL"}
_TYPES = {
    "BOOL": "BOOLEAN", "BOOLEAN": "BOOLEAN", "INT": "INTEGER", "INTEGER": "INTEGER",
    "BIGINT": "BIGINT", "DOUBLE": "DOUBLE", "FLOAT": "DOUBLE", "REAL": "DOUBLE",
    "VARCHAR": "VARCHAR", "TEXT": "VARCHAR", "STRING": "VARCHAR",
}  # fmt: skip
_OPERATORS = frozenset("+ - * / % // ~~ !~~ ~~* !~~* ^@ ||".split())
_PATTERNS = frozenset(("regexp_matches", "regexp_full_match"))
"""The second argument must be a constant: RE2 matches in linear time, but compiling is not free."""
FUNCTIONS = _PATTERNS | frozenset(
    (
        "abs", "ceil", "ceiling", "contains", "ends_with", "exp", "floor", "greatest", "if",
        "isfinite", "isinf", "isnan", "least", "left", "length", "like_escape", "ln", "log10",
        "lower", "ltrim", "md5", "nullif", "position", "right", "round", "rtrim", "sign", "sqrt",
        "starts_with", "strlen", "strpos", "substr", "substring", "trim", "upper",
    )
)  # fmt: skip
"""The functions that an expression may call."""

_NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Where:
    """A filter that was understood."""

    text: str
    """As the user wrote it."""
    node: Mapping[str, Any]
    columns: frozenset[str]
    """The names it uses, as :attr:`Scope` has them: in small letters, parts joined by a dot."""

    def sql(self, names: Mapping[str, str]) -> str:
        """The expression in SQL, with what stands for each of ``columns``."""
        return _Writer(self.text, names).sql(self.node)


def parse_where(text: object) -> Where:
    """What a filter says.

    Raises:
        InvalidInputError: it is no SQL expression, or has a part that may not be there; the
            message names the part.
    """
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise InvalidInputError(f"where= must be the text of a SQL expression, got {text!r:.200}")
    if len(text) > MAX_EXPRESSION_CHARS:
        raise InvalidInputError(
            f"where= has {len(text)} characters, the limit is {MAX_EXPRESSION_CHARS}; "
            "put long lists into a label column instead"
        )
    node = _expression(text, _serialized(text))
    writer = _Writer(text, None)
    writer.sql(node)
    return Where(text, node, frozenset(writer.columns))


def _serialized(text: str) -> dict[str, Any]:
    """The syntax tree of ``SELECT <text>`` as DuckDB gives it."""
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute(f"SET max_expression_depth TO {_MAX_DEPTH}")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        try:
            # A line end, so that a comment cannot hide what follows.
            found = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {text}\n"])
            document: dict[str, Any] = json.loads(found.fetchall()[0][0])
        except (duckdb.Error, RecursionError, UnicodeError) as error:
            raise InvalidInputError(f"where={text!r:.200} cannot be parsed: {error}") from error
    if document.get("error"):
        raise InvalidInputError(
            f"where={text!r:.200} is no SQL expression: {document.get('error_message')}"
        )
    return document


def _expression(text: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The one expression of a plain SELECT."""
    statements = document.get("statements", ())
    if len(statements) != 1:
        _refuse(text, f"{len(statements)} statements")
    node = statements[0]["node"]
    if node.get("type") != "SELECT_NODE":
        _refuse(text, "a set operation (UNION, EXCEPT, INTERSECT)")
    if node.get("from_table", {}).get("type") != "EMPTY":
        _refuse(text, "FROM")
    clauses = {
        "modifiers": "DISTINCT, ORDER BY or LIMIT", "where_clause": "WHERE", "having": "HAVING",
        "group_expressions": "GROUP BY", "group_sets": "GROUP BY", "sample": "SAMPLE",
        "qualify": "QUALIFY",
    }  # fmt: skip
    for name, words in clauses.items():
        if node.get(name):
            _refuse(text, words)
    if node.get("cte_map", {}).get("map"):
        _refuse(text, "WITH")
    if len(node["select_list"]) != 1:
        _refuse(text, f"{len(node['select_list'])} expressions, not one")
    found: Mapping[str, Any] = node["select_list"][0]
    if found.get("alias"):
        _refuse(text, f"a name for the result ({found['alias']})")
    return found


def _refuse(text: str, what: str) -> NoReturn:
    raise InvalidInputError(
        f"where={text!r:.200}: {what} is not allowed; write one condition over the samples' "
        "columns, such as \"width >= 1280 and split = 'train'\"",
        part=what,
    )


class _Writer:
    """Writes an expression anew from its tree, and notes the columns it uses.

    Args:
        text: for messages.
        names: SQL for each column; None where the columns are not known yet.
    """

    def __init__(self, text: str, names: Mapping[str, str] | None) -> None:
        self._text = text
        self._names = names
        self._depth = 0
        self.columns: set[str] = set()

    def sql(self, node: Mapping[str, Any]) -> str:
        """One node, in brackets where it is more than a word."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            _refuse(self._text, f"nesting deeper than {_MAX_DEPTH}")
        kind, name = str(node.get("class")), str(node.get("type"))
        write = getattr(self, f"_{kind.lower()}", None)
        if write is None:
            _refuse(self._text, _called(kind))
        written: str = write(node, name)
        self._depth -= 1
        return written

    def _column_ref(self, node: Mapping[str, Any], name: str) -> str:
        column = ".".join(str(part) for part in node["column_names"]).lower()
        self.columns.add(column)
        return "NULL" if self._names is None else self._names[column]

    def _constant(self, node: Mapping[str, Any], name: str) -> str:
        literal = node.get("literal", {})
        kind, text = literal.get("kind"), str(literal.get("text", ""))
        if kind == "STRING":
            return "'" + text.replace("'", "''") + "'"
        if kind in ("INTEGER", "NUMERIC") and _NUMBER.fullmatch(text):
            return f"({text})" if text.startswith("-") else text
        if kind == "BOOLEAN" and text in ("true", "false"):
            return text
        if kind == "NULL_LITERAL":
            return "NULL"
        _refuse(self._text, f"the constant {text!r:.40} ({str(kind).lower()})")

    def _comparison(self, node: Mapping[str, Any], name: str) -> str:
        sign = _COMPARISONS.get(name) or self._unknown(name)
        return f"({self.sql(node['left'])} {sign} {self.sql(node['right'])})"

    def _conjunction(self, node: Mapping[str, Any], name: str) -> str:
        word = _CONJUNCTIONS.get(name) or self._unknown(name)
        return "(" + f" {word} ".join(self.sql(child) for child in node["children"]) + ")"

    def _between(self, node: Mapping[str, Any], name: str) -> str:
        if name != "COMPARE_BETWEEN":
            self._unknown(name)
        value, lower, upper = (self.sql(node[part]) for part in ("input", "lower", "upper"))
        return f"({value} BETWEEN {lower} AND {upper})"

    def _operator(self, node: Mapping[str, Any], name: str) -> str:
        first, *rest = (self.sql(child) for child in node["children"])
        if name in _SUFFIXES:
            return f"({first} {_SUFFIXES[name]})"
        if name == "OPERATOR_NOT":
            return f"(NOT {first})"
        if name == "COMPARE_IN":
            return f"({first} IN ({', '.join(rest)}))"
        if name == "OPERATOR_COALESCE":
            return f"coalesce({', '.join((first, *rest))})"
        self._unknown(name)

    def _case(self, node: Mapping[str, Any], name: str) -> str:
        checks = "".join(
            f" WHEN {self.sql(check['when_expr'])} THEN {self.sql(check['then_expr'])}"
            for check in node["case_checks"]
        )
        return f"(CASE{checks} ELSE {self.sql(node['else_expr'])} END)"

    def _cast(self, node: Mapping[str, Any], name: str) -> str:
        wanted = node.get("type_expr", {})
        kind = _TYPES.get(str(wanted.get("type_name")).upper())
        if kind is None or wanted.get("children") or wanted.get("schema"):
            _refuse(self._text, f"a cast to {wanted.get('type_name')}")
        cast = "TRY_CAST" if node.get("try_cast") else "CAST"
        return f"{cast}({self.sql(node['child'])} AS {kind})"

    def _function(self, node: Mapping[str, Any], name: str) -> str:
        function = str(node["function_name"]).lower()
        plain = not any(node.get(word) for word in ("schema", "catalog", "distinct", "filter"))
        path = node.get("qualified_name", {}).get("path", [function])
        arguments = node["arguments"]
        if any(argument.get("name") for argument in arguments) or len(path) != 1:
            plain = False
        if not plain or node.get("order_bys", {}).get("orders"):
            _refuse(self._text, f"this form of {function}()")
        if function in _PATTERNS and _class_of(arguments[1:2]) != "CONSTANT":
            _refuse(self._text, f"{function}() with a pattern that is no constant")
        if function not in FUNCTIONS and function not in _OPERATORS:
            _refuse(self._text, f"{function}()")
        written = [self.sql(argument["expression"]) for argument in arguments]
        if function not in _OPERATORS:
            return f"{function}({', '.join(written)})"
        if len(written) == 1 and function in ("+", "-"):
            return f"({function} {written[0]})"
        if len(written) != 2:
            self._unknown(function)
        return f"({written[0]} {_LIKES.get(function, function)} {written[1]})"

    def _unknown(self, name: str) -> NoReturn:
        _refuse(self._text, name.lower().replace("_", " "))


_LIKES = {"~~": "LIKE", "!~~": "NOT LIKE", "~~*": "ILIKE", "!~~*": "NOT ILIKE"}
_NAMES = {
    "SUBQUERY": "a subquery", "WINDOW": "a window function",
    "STAR": "* or COLUMNS()", "PARAMETER": "a parameter", "COLLATE": "COLLATE",
}  # fmt: skip


def _called(kind: str) -> str:
    return _NAMES.get(kind, kind.lower().replace("_", " "))


def _class_of(arguments: list[Mapping[str, Any]]) -> str:
    return str(arguments[0]["expression"].get("class")) if arguments else ""
