"""Serves its own directory at port 8000, and three addresses that no file can be."""

import functools
import http.server
import pathlib
import time


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/slow":
            self._begin("text/html", 10_000)
            self.wfile.write(b"<title>Slow</title><p>the first half</p>" + b" " * 2000)
            self.wfile.flush()
            time.sleep(60)
        elif self.path == "/never":
            time.sleep(60)
        elif self.path == "/download":
            self._begin("application/octet-stream", 5, ("Content-Disposition", 'attachment; filename="../-x;y.bin"'))
            self.wfile.write(b"hello")
        else:
            super().do_GET()

    def _begin(self, kind: str, length: int, *headers: tuple[str, str]) -> None:
        self.send_response(200)
        for name, value in (("Content-Type", kind), ("Content-Length", str(length)), *headers):
            self.send_header(name, value)
        self.end_headers()


directory = str(pathlib.Path(__file__).parent)
http.server.ThreadingHTTPServer(("", 8000), functools.partial(Handler, directory=directory)).serve_forever()
