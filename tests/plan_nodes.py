"""One node of some jobs as a process of its own: reads its part through its own cache directory."""

import json
import sys
from typing import Any

import dstream


def follow(task: dict[str, Any]) -> dict[str, Any]:
    """What one rank, alone on its node, reads in two epochs."""
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
    return {"slots": slots, "missed": missed}


if __name__ == "__main__":
    print(json.dumps([follow(task) for task in json.loads(sys.argv[1])]))
