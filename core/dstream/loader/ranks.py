"""Which of how many ranks this process is: told, or found in what its launcher left. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dstream.errors import InvalidInputError
from dstream.loader.plan import whole


@dataclass(frozen=True, slots=True)
class Place:
    """One rank of several, and how that is known."""

    rank: int
    world_size: int
    origin: str

    def __str__(self) -> str:
        return f"{self.origin}: rank {self.rank} of {self.world_size}"

    def agrees(self, other: Place) -> bool:
        """Whether both say the same."""
        return (self.rank, self.world_size) == (other.rank, other.world_size)


ALONE = Place(0, 1, "no launcher")

# Names of (rank, world size). Open MPI's: its mpirun(1). PMI's: MPICH's Hydra, Intel MPI, and
# srun --mpi=pmi2.
_MPI = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
_BY_HAND = "give rank= and world_size= to say which"


def place_of(
    rank: int | None,
    world_size: int | None,
    environment: Mapping[str, str],
    group: tuple[int, int] | None,
) -> Place:
    """The rank to be: the arguments if they are given, else the first of these that there is.

    1. The group of ``torch.distributed``, where it is initialised.
    2. ``RANK`` and ``WORLD_SIZE``: torchrun.
    3. ``OMPI_COMM_WORLD_RANK`` or ``PMI_RANK`` and their sizes: MPI.
    4. ``SLURM_PROCID`` and ``SLURM_STEP_NUM_TASKS``: a step of srun. A batch script that runs
       Python itself is no step: it is one process, however many tasks the job asked for.

    torchrun under srun and mpirun under srun are one launcher in another; the inner one counts.
    Where nothing explains it that two sources disagree, it is an error.

    Args:
        rank: which of the ranks, or None.
        world_size: how many there are, or None.
        environment: variables of the process.
        group: rank and size of the group of torch.distributed.

    Raises:
        InvalidInputError: only one of the arguments is given, or a variable is missing or no
            number, or two sources contradict each other.
    """
    if (rank is None) != (world_size is None):
        raise InvalidInputError(
            f"give rank and world_size, or neither: got rank={rank}, world_size={world_size}",
            rank=rank,
            world_size=world_size,
        )
    if rank is not None and world_size is not None:
        return Place(whole("rank", rank), whole("world_size", world_size), "arguments")
    torchrun = _pair(environment, "RANK", "WORLD_SIZE")
    if group is not None:
        found = Place(*group, "torch.distributed")
        return _agreeing(found, torchrun)
    mpi = next((p for names in _MPI if (p := _pair(environment, *names))), None)
    slurm = _slurm(environment)
    if torchrun is not None:
        if "TORCHELASTIC_RUN_ID" in environment:
            return torchrun  # whatever started torchrun counts its agents
        return _agreeing(torchrun, mpi or slurm)
    return mpi or slurm or ALONE


# Names of the number of ranks on this node: torchrun, Open MPI's mpirun(1), MPICH's Hydra.
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def node_count(environment: Mapping[str, str], world_size: int) -> int:
    """On how many nodes the ranks run, as far as their launcher tells; else 1.

    >>> node_count({"LOCAL_WORLD_SIZE": "8"}, 32), node_count({}, 32)
    (4, 1)
    """
    for name in _LOCAL_SIZES:
        text = environment.get(name, "")
        if text.isascii() and text.isdecimal() and int(text):
            return -(-world_size // int(text))
    text = environment.get("SLURM_STEP_NUM_NODES", "")
    return min(int(text) or 1, world_size) if text.isascii() and text.isdecimal() else 1


def node_ranks(environment: Mapping[str, str], rank: int, world_size: int) -> range:
    """The ranks on this one's node, which are consecutive; itself alone where nobody tells.

    >>> node_ranks({"LOCAL_WORLD_SIZE": "4"}, 5, 8), node_ranks({}, 5, 8)
    (range(4, 8), range(5, 6))
    """
    nodes = node_count(environment, world_size)
    is_told = nodes > 1 or any(environment.get(name) == str(world_size) for name in _LOCAL_SIZES)
    each = -(-world_size // nodes) if is_told else 1
    first = rank // each * each
    return range(first, min(first + each, world_size))


def _agreeing(found: Place, other: Place | None) -> Place:
    if other is not None and not found.agrees(other):
        raise InvalidInputError(
            f"two sources say which rank this is, and contradict each other ({found}; {other}): "
            f"{_BY_HAND}",
            one=str(found),
            other=str(other),
        )
    return found


def _slurm(environment: Mapping[str, str]) -> Place | None:
    if "SLURM_STEP_NUM_TASKS" in environment:
        return _pair(environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    return None


def _pair(environment: Mapping[str, str], rank: str, size: str) -> Place | None:
    texts = environment.get(rank), environment.get(size)
    if texts == (None, None):
        return None
    numbers = []
    for name, text in zip((rank, size), texts, strict=True):
        if text is None or not text.isascii() or not text.isdecimal():
            told = "is not set" if text is None else f"is {text[:40]!r}, no number"
            raise InvalidInputError(
                f"which rank is this? {name} {told}, while {rank}={texts[0]!r:.40} and "
                f"{size}={texts[1]!r:.40}: {_BY_HAND}",
                variable=name,
            )
        numbers.append(int(text))
    if numbers[0] >= numbers[1]:
        raise InvalidInputError(
            f"{rank}={numbers[0]} is no rank of {size}={numbers[1]}: {_BY_HAND}", variable=rank
        )
    return Place(numbers[0], numbers[1], f"{rank}, {size}")
