"""What `dstream bench --json` prints: a versioned document, and its strict reader.

A field is added, removed or changed in meaning only with a new :data:`SCHEMA`. ``docs/bench.md``
has the table of fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from dstream.diagnose.prices import Prices
from dstream.errors import InvalidInputError

SCHEMA = "dstream.bench/3"

Run = TypeVar("Run")


class Stage(StrEnum):
    """A step on the way of a clip that can be measured alone."""

    LIST = "list"
    FETCH = "fetch"
    CACHE = "cache"
    DECODE = "decode"
    CONVERT = "convert"
    COLLATE = "collate"
    COPY = "copy"
    CONSUMER = "consumer"


class Cause(StrEnum):
    """What sets the pace of a run."""

    DELAY = "delay"
    """Round trips to the store: too few requests are under way."""
    BANDWIDTH = "bandwidth"
    """The link to the store is full."""
    THROTTLING = "throttling"
    """The store asks to slow down."""
    DISK = "slow-disk"
    """Reading the node's cache."""
    LONG_GOPS = "long-gops"
    """Many more frames are decoded than delivered."""
    DECODE_THREADS = "decode-threads"
    """Fewer decoding threads than the machine could run."""
    NVDEC = "nvdec"
    """The engines of the GPU that decode."""
    CPU = "cpu"
    """All CPUs decode or convert."""
    COLLATE = "collate"
    """Handing batches over, in the consumer's thread."""
    COPY = "copy"
    """Copying to the device."""
    CONSUMER = "consumer"
    """The training step: the loader keeps up."""
    QUEUE = "queue"
    """Every stage is faster than the whole: too little is prefetched to hide its jitter."""
    UNKNOWN = "unknown"
    """Not enough was measured."""
    FAILED = "failed"
    """None: an error ended the run, and what was counted until then is told."""
    INTERRUPTED = "interrupted"
    """None: somebody ended the bench, and what was measured until then is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRate:
    """One stage alone, on the run's own clips, and how busy it was in the whole run."""

    name: Stage
    clips_per_second: float | None
    """With ``threads`` threads and nothing else to wait for; None: not measured."""
    own_rate: float | None
    """The same in ``own_unit``."""
    own_unit: str
    """``MB/s``, ``frames/s``, ``requests/s``, ``batches/s`` ..."""
    busy_share: float | None
    """Of its threads' time in the whole run; None where it has no threads of its own."""
    threads: int
    why_not: str = ""
    """Why it was not measured."""

    @property
    def measured(self) -> bool:
        """There is a rate."""
        return self.clips_per_second is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The run: all stages together."""

    clips: int
    clips_per_second: float
    """After the first batch."""
    efficiency: float | None
    """``clips_per_second`` over the slowest limit; stages that share threads have one together.
    Above 1 that limit was measured too low. None where no stage was measured, and after
    an interruption."""
    stall_share: float
    """The share of the time after the first batch that the consumer waited for the loader."""
    first_batch_s: float
    wall_s: float
    """From the first request for a batch to the end of the consumer's last step."""
    explained_share: float
    """The share of the threads' time that stages and waits account for: of fetching threads, of
    decoding threads or of the consumer, whichever has the least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why the run is not faster, and what to do."""

    cause: Cause
    sentence: str
    """All of what follows, for people."""
    evidence: str
    """The measured values that name the cause."""
    setting: str | None
    """An argument of ``Clips.loader`` or an option of ``dstream bench``; None: no setting helps,
    the sentence says what does."""
    new_value: str | None
    expected_gain: float
    """Clips/s afterwards over clips/s now, by the next limit; 1 where nothing is to be gained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePoint:
    """What happened in one step of time."""

    start_s: float
    """Since the first request for a batch."""
    clips: int
    """Delivered in it."""
    bytes: int
    """Media bytes that arrived in it."""
    queue_ready_share: float
    """Of the prefetched batches, those that were ready."""
    fetchers: int
    """Clips that may be fetched at the same time."""
    wait_s: float
    """Of the consumer for the loader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How long something took, in fixed bins."""

    edges_s: tuple[float, ...]
    """Rising."""
    counts: tuple[int, ...]
    """One more than edges: below the first, from each to below the next, from the last on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the run's requests and bytes cost."""

    requests: int
    bytes: int
    dollars: float
    prices: Prices = field(default_factory=Prices)
    """At which prices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchDocument:
    """One measured run of a loader."""

    target: str
    settings: Mapping[str, Any]
    """What was asked for: frames, batch_size, step_ms and so on."""
    versions: Mapping[str, Any]
    """``dstream``, ``python``, ``av``, ``torch`` (or null), ``cpus``."""
    stages: tuple[StageRate, ...]
    """In the order of a clip's way; empty for a loader that cannot be taken apart."""
    whole: Whole
    verdict: Verdict
    timeline: tuple[TimelinePoint, ...] = ()
    latencies: Mapping[str, Histogram] = field(default_factory=dict)
    """By stage, of one clip each."""
    repeats: tuple[float, ...] = ()
    """Clips/s of each repetition of the whole."""
    cost: Cost | None = None
    report: Mapping[str, Any] | None = None
    """:class:`~dstream.loader.report.LoaderReport`; None for a loader of another make."""
    skipped: tuple[Mapping[str, Any], ...] = ()
    """``sample_key``, ``reason`` and ``message`` of the first skipped clip of each file."""
    dropped_spans: int = 0
    """Those that the trace lacks, where one was asked for."""
    schema: str = SCHEMA

    def as_json(self) -> dict[str, Any]:
        """The document as JSON types."""
        return document_json(self)

    @classmethod
    def parse(cls, document: str | Mapping[str, Any]) -> BenchDocument:
        """Read what :meth:`as_json` gave.

        Raises:
            InvalidInputError: it is no such document, or one of another version.
        """
        parsed: BenchDocument = read_document(cls, SCHEMA, document)
        return parsed


def of_median_rate(runs: Sequence[Run], rate: Callable[[Run], float]) -> Run:
    """The run that is judged; of an even number, the slower of the middle two.

    >>> of_median_rate([4.0, 1.0, 3.0, 2.0], float)
    2.0
    """
    return sorted(runs, key=rate)[(len(runs) - 1) // 2]


def document_json(document: Any) -> dict[str, Any]:
    """A versioned document, a dataclass, as JSON types, its schema first."""
    fields_of: dict[str, Any] = asdict(document)
    return {"schema": fields_of.pop("schema"), **fields_of}


def read_document(kind: type, schema: str, document: str | Mapping[str, Any]) -> Any:
    """A versioned document, of JSON text or types, as the dataclass ``kind``.

    Raises:
        InvalidInputError: it is no such document, or one of another version.
    """
    if isinstance(document, str):
        try:
            document = json.loads(document)
        except ValueError as error:
            raise _fault("", f"is no JSON ({error})") from error
    found = document.get("schema") if isinstance(document, Mapping) else None
    if found != schema:
        raise _fault(
            "schema",
            f"is {found!r:.60}, this dstream reads {schema!r}: run the bench again with this "
            "version, or read it with the version that wrote it",
        )
    return _read_fields(kind, document, "")


def _fault(where: str, what: str) -> InvalidInputError:
    return InvalidInputError(f"bench document: {where or 'the text'} {what}", field=where)


def _read(kind: Any, value: Any, where: str) -> Any:
    """``value``, of JSON types, as ``kind``, a type that the dataclasses above use."""
    if kind is Any:
        return value
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:  # only `X | None` above
        return (
            None
            if value is None
            else _read(next(k for k in inner if k is not NoneType), value, where)
        )
    if is_dataclass(kind):
        return _read_fields(kind, value, where)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_read(inner[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        return {name: _read(inner[1], item, f"{where}.{name}") for name, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, StrEnum) and value in list(kind):
        return kind(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is kind:
        return value
    name = getattr(kind, "__name__", str(kind))
    raise _fault(where, f"is {value!r:.60}, expected {name}")


def _read_fields(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _fault(where, f"is {value!r:.60}, expected an object")
    types = get_type_hints(kind)
    names = {spec.name for spec in fields(kind)}
    if set(value) != names:
        differs = sorted(names.symmetric_difference(map(str, value)))
        raise _fault(where, f"has other fields than {kind.__name__}: {', '.join(differs)}")
    prefix = f"{where}." if where else ""
    return kind(**{name: _read(types[name], value[name], prefix + name) for name in names})
