"""A small web application, run inside a sandbox, of Python alone: a page with a websocket and server-sent events."""

import base64
import hashlib
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = b"""<!doctype html><meta charset="utf-8"><title>shop</title>
<style>body{font:20px sans-serif;margin:3em}b{color:#176}</style>
<h1>Built in a sandbox</h1><p>websocket: <b id="ws">-</b></p><p>events: <b id="sse">-</b></p>
<script>
const told = (id, text) => { document.getElementById(id).textContent = text; };
const socket = new WebSocket(`ws://${location.host}/ws`);
socket.onopen = () => socket.send("x".repeat(70000));
socket.onmessage = (event) => told("ws", `echoed ${event.data.length}`);
const events = new EventSource("/events");
let count = 0;
events.onmessage = () => { told("sse", `event ${++count}`); if (count === 3) events.close(); };
</script>"""
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        {"/ws": self.echo, "/events": self.send_events, "/big": self.send_big}.get(self.path, self.send_page)()

    def send_page(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def send_big(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(32 << 20))
        self.end_headers()
        block = os.urandom(1 << 20)
        for _ in range(32):
            self.wfile.write(block)

    def send_events(self) -> None:
        """Each is sent once the client has had the one before: it would not end where they were held back."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number in range(3):
            self.wfile.write(b"data: %d\n\n" % number)
            self.wfile.flush()
        self.close_connection = False
        self.rfile.read(1)  # until the client has gone

    def echo(self) -> None:
        key = self.headers["Sec-WebSocket-Key"].encode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key + MAGIC).digest()).decode())
        self.end_headers()
        while frame := self.rfile.read(2):
            length = frame[1] & 127
            if length > 125:
                length = int.from_bytes(self.rfile.read(2 if length == 126 else 8), "big")
            mask, data = self.rfile.read(4), self.rfile.read(length)
            data = bytes(byte ^ mask[number % 4] for number, byte in enumerate(data))
            self.wfile.write(frame[:1] + b"\x7f" + length.to_bytes(8, "big") + data)
            if frame[0] & 15 == 8:
                break
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


with Server((sys.argv[1], int(sys.argv[2])), App) as server:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve_forever()
