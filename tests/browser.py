"""A headless Chromium that opens pages from loopback, and tells what a script of a test found."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from s3_services import absent

_SHELL = """<!doctype html><meta charset="utf-8"><title>test</title>
<style>iframe {{ width: 1100px; height: 900px; border: 0 }}</style>
<iframe id="page" src="{page}"></iframe>
<script type="module">
const frame = document.getElementById("page");
const until = async (found) => {{
  for (;;) {{
    const value = found();
    if (value) return value;
    await new Promise((later) => setTimeout(later, 50));
  }}
}};
const tell = (got) => fetch("/told", {{ method: "POST", body: JSON.stringify(got) }});
try {{
  await until(() => frame.contentDocument?.readyState === "complete"
    && frame.contentDocument.URL !== "about:blank");
  tell({{ found: await (async () => {{ {script} }})() }});
}} catch (error) {{
  tell({{ error: String(error) + error.stack }});
}}
</script>"""

_OPTIONS = [
    "--headless",
    "--no-sandbox",  # tests may run as root
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--enable-logging=stderr",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


@dataclass(frozen=True)
class Visit:
    """What a script found on a page, and what the browser logged on its console."""

    found: Any
    console: list[str]


class _Handler(SimpleHTTPRequestHandler):
    def __init__(
        self, *arguments: Any, files: Mapping[str, bytes], told: queue.Queue[Any], **options: Any
    ) -> None:
        self._files, self._told = files, told
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        data = self._files.get(self.path.split("?")[0])
        if data is None:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(self.path.split("?")[0]))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        self._told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def visit(
    page: str, script: str, files: Mapping[str, bytes], folder: Path, *, timeout_s: float = 120
) -> Visit:
    """Open a page in a frame, and run a script beside it.

    Args:
        page: path of it.
        script: body of an async function of JavaScript that returns what was found; ``frame`` is
            the page's frame, ``until(f)`` waits for a true value.
        files: what is served, by path.
        folder: served besides; the browser's own files go elsewhere.
        timeout_s: for the script's answer.
    """
    browser = shutil.which("chromium")
    if browser is None:
        absent("chromium", "there is no chromium on PATH")
    told: queue.Queue[Any] = queue.Queue()
    shell = _SHELL.format(page=page, script=script).encode()
    handler = partial(
        _Handler, files={**files, "/shell.html": shell}, told=told, directory=str(folder)
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/shell.html"
    log: list[str] = []
    try:
        with (
            # It leaves its locks behind when it is ended.
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own,
            subprocess.Popen(
                [browser, *_OPTIONS, f"--user-data-dir={own}/profile", url],
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "TMPDIR": own},
                start_new_session=True,
            ) as process,
        ):
            assert process.stderr is not None
            reader = threading.Thread(target=log.extend, args=(process.stderr,), daemon=True)
            reader.start()
            try:
                answer = told.get(timeout=timeout_s)
            finally:
                process.terminate()
                reader.join(30)
                with suppress(ProcessLookupError):  # a page that hangs outlives its browser
                    os.killpg(process.pid, signal.SIGKILL)
    finally:
        server.shutdown()
        server.server_close()
    assert "error" not in answer, answer["error"]
    return Visit(answer["found"], [line for line in log if "CONSOLE" in line])
