"""One module a peer. Each runs in its peer's own environment, as ``python -m``.

The server that some peers' workers are forked from starts here, before the adapter's own imports:
both import torch at the same time, on a core each.
"""

import multiprocessing
import os
from multiprocessing import forkserver

PRELOAD = "DSTREAM_PEERS_PRELOAD"
"""Names the modules that the server imports, by commas. Workers do not see it."""

if _modules := os.environ.pop(PRELOAD, ""):
    multiprocessing.set_forkserver_preload(_modules.split(","))
    forkserver.ensure_running()
