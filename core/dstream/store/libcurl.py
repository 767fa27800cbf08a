"""libcurl as pycurl's wheel brings it, called so that Python's lock is free for a whole answer.

pycurl itself hands every 16 KiB to a Python callback. Here libcurl writes with its own default,
C's ``fwrite``, into a stream that C keeps over a buffer of ours: no Python runs between the bytes.
``curl_easy_setopt(3)`` (CURLOPT_WRITEDATA), ``libcurl-multi(3)``, ``fmemopen(3)``.
"""

from __future__ import annotations

import ctypes as c
import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from dstream.units import KIB

OK, TIMED_OUT = 0, 28
"""Results of transfers, like those below, by their numbers in ``libcurl-errors(3)``."""
TOO_LONG = (23, 63)
"""Write error, and file size exceeded: more came than there is room for."""
TLS_FAILURES = (35, 53, 54, 58, 59, 60, 64, 66, 77, 80, 82, 83, 90, 91, 98)
NO_SOCKET = -1
ABORT = 1
"""What CURLOPT_PREREQFUNCTION returns to end a transfer."""
HEAD_BYTES = 64 * KIB
"""Longest head of an answer."""
RECEIVE_BYTES = 512 * KIB
"""libcurl's buffer of a connection."""
_IONBF = 2
_OPTIONS = (
    "BUFFERSIZE", "CAINFO", "CLOSESOCKETFUNCTION", "CONNECTTIMEOUT_MS", "HEADERDATA",
    "HTTP09_ALLOWED", "HTTPHEADER", "HTTP_VERSION", "MAXAGE_CONN", "MAXFILESIZE_LARGE",
    "NOPROXY", "NOSIGNAL", "OPENSOCKETFUNCTION", "PREREQFUNCTION", "PROXY", "PROXYPASSWORD",
    "PROXYUSERNAME", "RANGE", "REQUEST_TARGET", "SUPPRESS_CONNECT_HEADERS", "TCP_KEEPALIVE",
    "TIMEOUT_MS", "URL", "WRITEDATA",
)  # fmt: skip
HTTP_1_1 = 2


class SocketAddress(c.Structure):
    """``struct curl_sockaddr``, without the address itself."""

    _fields_ = [("family", c.c_int), ("kind", c.c_int), ("protocol", c.c_int)]


OpenSocket = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int, c.POINTER(SocketAddress))
"""CURLOPT_OPENSOCKETFUNCTION: gives a socket, or :data:`NO_SOCKET`."""
CloseSocket = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int)
"""CURLOPT_CLOSESOCKETFUNCTION: 0 when it is closed."""
BeforeRequest = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_void_p, c.c_int, c.c_int)
"""CURLOPT_PREREQFUNCTION, called when there is a connection: 0 to go on."""


class _Option(c.Structure):
    _fields_ = [("name", c.c_char_p), ("id", c.c_int), ("type", c.c_int), ("flags", c.c_uint)]


class _Message(c.Structure):
    # The third member is a union of a pointer and the result.
    _fields_ = [("kind", c.c_int), ("easy", c.c_void_p), ("result", c.c_int), ("rest", c.c_int)]


class Libcurl:
    """The functions used here. Those that may wait or work for long let go of Python's lock.

    Raises:
        OSError, AttributeError: the library lacks one of them, or an option.
    """

    def __init__(self, path: str) -> None:
        # ctypes lets go of the lock around every call of the first, and holds it for the second.
        free, held = c.CDLL(path), c.PyDLL(path)
        pointer, number = c.c_void_p, c.c_int
        self.easy_init = _typed(held.curl_easy_init, pointer)
        self.easy_cleanup = _typed(free.curl_easy_cleanup, None, pointer)
        self.multi_init = _typed(held.curl_multi_init, pointer)
        self.multi_cleanup = _typed(free.curl_multi_cleanup, number, pointer)
        self.multi_add = _typed(held.curl_multi_add_handle, number, pointer, pointer)
        self.multi_remove = _typed(free.curl_multi_remove_handle, number, pointer, pointer)
        self.easy_perform = _typed(free.curl_easy_perform, number, pointer)
        running = c.POINTER(number)
        self.multi_perform = _typed(free.curl_multi_perform, number, pointer, running)
        self.poll = _typed(
            free.curl_multi_poll, number, pointer, pointer, c.c_uint, number, running
        )
        self.slist_append = _typed(held.curl_slist_append, pointer, pointer, c.c_char_p)
        self.slist_free = _typed(held.curl_slist_free_all, None, pointer)
        self._read_message = _typed(
            held.curl_multi_info_read, c.POINTER(_Message), pointer, running
        )
        self._set = _typed(held.curl_easy_setopt, number, pointer, number)
        self._info = _typed(held.curl_easy_getinfo, number, pointer, number)
        self._strerror = _typed(held.curl_easy_strerror, c.c_char_p, number)
        by_name = _typed(held.curl_easy_option_by_name, c.POINTER(_Option), c.c_char_p)
        self._options = {name: _option(by_name, name) for name in _OPTIONS}

    def set(self, easy: int, option: str, value: int | bytes | None) -> None:
        """Set an option by its name. A number goes as C's ``long``, bytes are copied."""
        given = c.c_long(value) if isinstance(value, int) else c.c_char_p(value)
        self._call(easy, option, given)

    def point(self, easy: int, option: str, value: Any) -> None:
        """Set an option to a pointer, which has to live as long as it is set."""
        given = c.c_void_p(value) if value is None or isinstance(value, int) else value
        self._call(easy, option, given)

    def limit(self, easy: int, size_bytes: int) -> None:
        """Refuse longer bodies by their Content-Length; 0 refuses none."""
        self._call(easy, "MAXFILESIZE_LARGE", c.c_int64(size_bytes))

    def _call(self, easy: int, option: str, given: Any) -> None:
        if self._set(easy, self._options[option], given) != OK:
            raise ValueError(f"libcurl does not take the option {option}")

    def result(self, multi: int) -> int:
        """How the transfer of ``multi`` ended."""
        found = self._read_message(multi, c.byref(c.c_int()))
        return int(found[0].result)

    def system_error(self, easy: int) -> int:
        """The system's ``errno`` of a failed transfer, where there was one."""
        found = c.c_long(0)
        self._info(easy, 0x200000 + 25, c.byref(found))  # CURLINFO_OS_ERRNO
        return found.value

    def text(self, result: int) -> str:
        """What a result means; a constant, without anything of the request."""
        return str(self._strerror(result).decode())


def _typed(function: Any, result: Any, *arguments: Any) -> Callable[..., Any]:
    function.restype, function.argtypes = result, list(arguments)
    typed: Callable[..., Any] = function
    return typed


def _option(by_name: Callable[..., Any], name: str) -> int:
    found = by_name(name.encode())
    if not found:
        raise AttributeError(f"this libcurl has no option {name}")
    return int(found[0].id)


class _C:
    """What is needed of C's streams over memory."""

    def __init__(self) -> None:
        held = c.PyDLL(None)
        pointer, size = c.c_void_p, c.c_size_t
        self.fmemopen = _typed(held.fmemopen, pointer, pointer, size, c.c_char_p)
        self.open_memstream = _typed(
            held.open_memstream, pointer, c.POINTER(pointer), c.POINTER(size)
        )
        self.setvbuf = _typed(held.setvbuf, c.c_int, pointer, pointer, c.c_int, size)
        self.ftell = _typed(held.ftell, c.c_long, pointer)
        self.rewind = _typed(held.rewind, None, pointer)
        self.fclose = _typed(held.fclose, c.c_int, pointer)
        self.free = _typed(held.free, None, pointer)
        new = c.pythonapi.PyBytes_FromStringAndSize
        self.new_bytes = _typed(new, c.py_object, pointer, c.c_ssize_t)
        self.address = _typed(c.pythonapi.PyBytes_AsString, pointer, c.py_object)


@lru_cache(maxsize=1)
def _c() -> _C:
    return _C()


class Room:
    """Memory of a known size that C writes and Python reads: a stream over it.

    The last byte of it is for C's own NUL.
    """

    def __init__(self, address: int, size_bytes: int) -> None:
        self.stream = _c().fmemopen(address, size_bytes + 1, b"wb")
        if not self.stream:
            raise MemoryError
        _c().setvbuf(self.stream, None, _IONBF, 0)

    @property
    def received_bytes(self) -> int:
        """So much was written."""
        return int(_c().ftell(self.stream))

    def clear(self) -> None:
        """Write from the beginning again."""
        _c().rewind(self.stream)

    def close(self) -> None:
        """Nothing is written any more."""
        _c().fclose(self.stream)


class Exact:
    """The bytes object that a read gives, filled in place: nothing is copied afterwards."""

    def __init__(self, size_bytes: int) -> None:
        # C's interface lets a new object be filled as long as nobody else has seen it.
        self._data: bytes = _c().new_bytes(None, size_bytes)
        self._room = Room(_c().address(self._data), size_bytes)
        self.stream = self._room.stream

    def take(self) -> bytes:
        """What was written; ends the writing."""
        received = self._room.received_bytes
        self._room.close()
        if received > len(self._data):
            return self._data + b"\0"  # a byte more came, in C's room: the length is wrong
        return self._data if received == len(self._data) else self._data[:received]


class Growing:
    """A body of any length, copied when it is there."""

    def __init__(self) -> None:
        self._start, self._size = c.c_void_p(), c.c_size_t()
        self.stream = _c().open_memstream(c.byref(self._start), c.byref(self._size))
        if not self.stream:
            raise MemoryError

    def take(self) -> bytes:
        """What was written; ends the writing."""
        _c().fclose(self.stream)
        data = c.string_at(self._start.value or 0, self._size.value) if self._size.value else b""
        _c().free(self._start)
        return data


@lru_cache(maxsize=1)
def load() -> Libcurl | str:
    """libcurl of the installed pycurl, or why it cannot be used: ``no_pycurl``, ``unusable``."""
    try:
        importlib.import_module("pycurl")  # makes libcurl ready, once a process
        module = importlib.import_module("pycurl._pycurl")
    except ImportError:
        return "no_pycurl"
    try:
        _c()
        return Libcurl(str(module.__file__))
    except (OSError, AttributeError):
        return "unusable"
