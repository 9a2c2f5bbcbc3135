"""A real `secondlook serve` in a separate process on a fixed port, to kill and restart."""

import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

START_SECONDS = 120


class ServerProcess:
    """A service that listens on loopback; its log is beside the data folder."""

    def __init__(self, policy: Path, data_dir: Path, *options: str) -> None:
        self.port = find_free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = data_dir.with_suffix(".log")
        program = Path(sys.executable).with_name("secondlook")
        self._command = [str(program), "serve", "--policy", str(policy), "--data-dir", str(data_dir)]
        self._command += ["--port", str(self.port), *options]
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start, and do not wait."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def start(self) -> None:
        """Start, and wait until images can be decided."""
        self.launch()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until images can be decided."""
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self._running.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service does not start: {self.log[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill at once, as the kernel does when memory runs out."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ask to stop, and return the exit code."""
        return self._end(signal.SIGTERM)

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._running.pid

    @property
    def log(self) -> str:
        """All that was logged since the first start."""
        return self._log.read_text(encoding="utf-8")

    @property
    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "it was started"
        return self._process

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=10) as response:
                return bool(response.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _end(self, how: signal.Signals) -> int:
        self._running.send_signal(how)
        return self._running.wait(timeout=START_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


def find_free_port() -> int:
    """Return a port of the loopback interface that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
