"""DuckDB in a locked connection that may touch a few temporary files and nothing else.

The files have no name where the system allows it: they cannot outlive this process. Not for forked
workers: DuckDB does not survive a fork.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import duckdb

from dstream.errors import CorruptDataError, InvalidInputError, StorageError

_MEMORY_LIMIT = "2GiB"


@contextmanager
def _temporary_file() -> Iterator[Path]:
    """A file for one table. It has no name where the system lets an open file be opened again."""
    with tempfile.TemporaryFile(buffering=0) as nameless:
        path = Path(f"/proc/self/fd/{nameless.fileno()}")
        if path.exists():
            yield path
            return
    with tempfile.TemporaryDirectory(prefix="dstream-table-") as folder:
        yield Path(folder) / "table.parquet"


@contextmanager
def locked_connection(
    files: int = 1,
) -> Iterator[tuple[duckdb.DuckDBPyConnection, tuple[Path, ...]]]:
    """A locked DuckDB that may touch so many temporary files, gone afterwards.

    Raises:
        StorageError: a temporary file failed.
    """
    with _disk_trouble(), ExitStack() as stack:
        paths = tuple(stack.enter_context(_temporary_file()) for _ in range(files))
        connection = duckdb.connect(
            ":memory:",
            config={
                "threads": 1,
                "memory_limit": _MEMORY_LIMIT,
                "temp_directory": "",
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "allow_community_extensions": False,
            },
        )
        try:
            # Look at every row of an object array before its type is chosen.
            connection.execute("SET GLOBAL pandas_analyze_sample = 1000000000")
            connection.execute("SET enable_progress_bar = false")
            connection.execute(f"SET allowed_paths = [{', '.join(map(path_text, paths))}]")
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            yield connection, paths
        finally:
            connection.close()


@contextmanager
def _disk_trouble() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"a temporary file failed ({error.strerror or error}); free space in the folder of "
            "temporary files, or choose another by TMPDIR",
            errno=error.errno,
        ) from error


@contextmanager
def translated(
    action: str, error_class: type[CorruptDataError] | type[InvalidInputError]
) -> Iterator[None]:
    """DuckDB's errors as ours: StorageError for the environment's, else ``error_class``."""
    try:
        yield
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        if error_class is CorruptDataError and "parquet" in str(error).lower():
            raise CorruptDataError(f"cannot {action}: {error}") from error
        raise StorageError(
            f"cannot {action}: {error}; it needs a temporary file, and TMPDIR says where"
        ) from error
    except duckdb.Error as error:
        raise error_class(f"cannot {action}: {error}") from error


def quoted(name: str) -> str:
    """A column's name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def path_text(path: Path) -> str:
    """A path as a text in SQL."""
    return "'" + str(path).replace("'", "''") + "'"
