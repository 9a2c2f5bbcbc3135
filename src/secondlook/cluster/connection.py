"""Connections to Ray: to a cluster or a Ray on this machine, without its log lines on the terminal."""

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from secondlook.extension import ClusterError, import_extra

SECONDS_TO_CONNECT = 5.0
"""How long a head node may take to answer. Ray itself waits for more than a minute."""
_HTTP_2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""The preface of a connection and empty settings (RFC 9113). A Ray head is a gRPC server: it answers with its own."""
_SETTINGS_FRAME = b"\x04"


@contextmanager
def connect(address: str | None) -> Iterator[Any]:
    """Connect to Ray and return its module; disconnect at the end, unless this process was connected before.

    None means the Ray of this process, that of RAY_ADDRESS, or one on this machine until the end of the block.
    """
    ray = import_extra("ray", feature="Computing on a Ray cluster", extra="ray")
    import_extra("ray.data", feature="Computing on a Ray cluster", extra="ray")
    if address is None or address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    with ExitStack() as at_end:
        at_end.enter_context(_quiet())
        if ray.is_initialized():
            connected = ray.get_runtime_context().gcs_address
            if address not in (None, "auto", "local", connected):
                raise ClusterError(
                    f"is another Ray cluster than {connected}, which this process is connected to",
                    argument="address",
                    value=address,
                    repair="call ray.shutdown() first, or pass no address",
                )
        else:
            _start(ray, address)
            at_end.callback(ray.shutdown)
        yield ray


def _start(ray: Any, address: str | None) -> None:
    if address not in (None, "auto", "local"):
        check_address(str(address))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL, "include_dashboard": False}
    try:
        ray.init(address=address or "local", **quiet)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ClusterError(
            f"cannot be used: {reason}; run this on a machine of a running cluster, with the same versions of Ray and"
            " Python, or pass 'host:port' of its head node",
            argument="address",
            value=address,
        ) from error


def check_address(address: str) -> None:
    """Raise `ClusterError` unless an address is 'host:port' and something like a Ray head answers there."""
    host, _, port = address.rpartition(":")
    if address.startswith("ray://"):
        fault = (
            "is a Ray Client, which cannot be used; run this on the cluster by 'ray job submit', or on one of its"
            " machines with 'host:port' of the head node (port 6379 by default)"
        )
    elif not host or not port.isdigit() or not 0 < int(port) < 65536:
        fault = "is invalid; expected 'host:port' of the head node, such as '10.0.0.1:6379', or 'auto'"
    else:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT) as connection:
                connection.sendall(_HTTP_2_GREETING)
                answer = connection.recv(9)
            if answer[3:4] == _SETTINGS_FRAME:
                return
            fault = "is not the head of a Ray cluster; pass its address (port 6379 by default, 8265 is the dashboard)"
        except OSError as error:
            reason = error.strerror or summarize_error(error)
            fault = f"is no Ray cluster: {reason}; start one with 'ray start', or pass the address of its head node"
    raise ClusterError(fault, argument="address", value=address)


def summarize_error(error: BaseException) -> str:
    """Return the type of an error and the first line of its message; of an error of Ray, those of its first cause."""
    message = str(error).strip()
    first_line = message.partition("\n")[0]
    if type(error).__module__.startswith("ray."):  # the tracebacks of other processes, causes first
        cause = re.search(r"^\s*([\w.]+(?:Error|Exception): .+)$", message, re.MULTILINE)
        return (cause.group(1) if cause else first_line).rstrip(".")
    return f"{type(error).__name__}: {first_line}".rstrip(".: ")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray and Ray Data from writing to the terminal; their log files are written as ever."""
    ray_worker: Any = import_module("ray._private.worker")
    handlers = [each for each in logging.getLogger("ray.data").handlers if hasattr(each, "stream")]
    levels = [handler.level for handler in handlers]
    # Reports about workers that died are printed whatever `log_to_driver` is; this is the switch of Ray's debugger.
    prints = ray_worker._worker_logs_enabled
    ray_worker._worker_logs_enabled = False
    for handler in handlers:
        handler.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        ray_worker.stdout_deduplicator.flush()  # would be printed later
        for handler, level in zip(handlers, levels, strict=True):
            handler.setLevel(level)
        ray_worker._worker_logs_enabled = prints


@contextmanager
def silence_native_code() -> Iterator[None]:
    """Discard what native code writes to the standard error, for a moment: it is that of the whole process."""
    saved = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
