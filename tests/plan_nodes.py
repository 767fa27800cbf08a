"""One node of a job as a process of its own: reads its part through its own cache directory."""

import json
import sys

import dstream


def main() -> None:
    """Print what was read, for one rank a node."""
    task = json.loads(sys.argv[1])
    repo = dstream.open(task["repo"], cache=task["cache"], cache_bytes=1 << 30)
    clips = repo.clips("d", frames=task["frames"], array="numpy")
    slots: list[list[int]] = [[], []]
    missed = [0, 0]
    with clips.loader(
        task["batch_size"],
        rank=task["rank"],
        world_size=task["world_size"],
        shuffle=task["shuffle"],
        partitions=task["partitions"],
        epochs=1,
        workers=1,
        fetchers=1,
        last="short",
    ) as loader:
        for epoch in (0, 1):
            for batch in loader:
                slots[epoch] += batch.slots.tolist()
            missed[epoch] = loader.report().cache_bytes_missed - sum(missed)
    repo.close()
    print(json.dumps({"slots": slots, "missed": missed}))


if __name__ == "__main__":
    main()
