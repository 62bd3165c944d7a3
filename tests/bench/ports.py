"""A forwarded port against the raw stream of an exec, and against a server of this machine."""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.bench.rows import Row

if TYPE_CHECKING:
    from ohsandbox.runtime import Runtime

MIB, ROUNDS = 200, 3
SERVER = f"""
import socket, threading
def serve(peer):
    if peer.recv(1) == b"d":
        piece = bytes(1 << 20)
        for _ in range({MIB}): peer.sendall(piece)
        return peer.close()
    while data := peer.recv(100): peer.send(data)
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True: threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


def port_rows(runtime: Runtime) -> list[Row]:
    """Throughput out of the sandbox, and the time of one byte there and back; the image has Python."""
    runtime.write_bytes("/tmp/ports.py", SERVER.encode())
    with runtime.open_channel(["python3", "/tmp/ports.py"]) as inside:
        said = inside.read(10) or []
        with runtime.forward(int(said[0].data)) as forward:
            raw, ours = zip(*[(_raw(runtime), _download(forward.port)) for _ in range(ROUNDS)], strict=True)
            there = _echo(forward.port)
        inside.kill()
    here = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE)
    try:
        assert here.stdout is not None
        on_host = _echo(int(here.stdout.readline()))
    finally:
        here.kill()
        here.communicate()
    speed, stream = statistics.median(ours), statistics.median(raw)
    told, other = f"{speed:.0f} MB/s", f"{stream:.0f} MB/s"
    return [
        Row(
            "forward, throughput / raw exec stream",
            told,
            other,
            f"{speed / stream:.2f}x",
            ">= 0.5x",
            speed / stream >= 0.5,
        ),
        Row(
            "  one byte and its echo / loopback",
            f"{there:.3f} ms",
            f"{on_host:.3f} ms",
            f"{there / on_host:.1f}x",
            "",
            None,
        ),
    ]


def _raw(runtime: Runtime) -> float:
    began, count = time.perf_counter(), 0
    with runtime.open_channel(["head", "-c", f"{MIB}M", "/dev/zero"]) as channel:
        while chunks := channel.read():
            count += sum(len(chunk.data) for chunk in chunks)
    return count / 1e6 / (time.perf_counter() - began)


def _download(port: int) -> float:
    began, count, buffer = time.perf_counter(), 0, bytearray(1 << 18)
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(b"d")
        while got := peer.recv_into(buffer):
            count += got
    return count / 1e6 / (time.perf_counter() - began)


def _echo(port: int) -> float:
    """Milliseconds, the median of 300."""
    times = []
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(b"e")
        for _ in range(300):
            began = time.perf_counter()
            peer.sendall(b"x")
            peer.recv(1)
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000
