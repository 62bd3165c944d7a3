"""A web server of the sandbox, seen from this machine; the sandbox has no network at all.

200 hello from the sandbox
"""

import os
import time
import urllib.request

from ohsandbox import DockerRuntime

PORT = 8000

with DockerRuntime(image=os.environ.get("IMAGE", "python:3.12"), network="none") as sandbox:
    sandbox.execute("mkdir -p /tmp/site && cd /tmp/site && echo hello from the sandbox > index.html")
    sandbox.execute(f"python3 -m http.server {PORT} >/dev/null 2>&1 &")
    while PORT not in sandbox.listening_ports():
        time.sleep(0.1)
    with sandbox.forward(PORT) as port, urllib.request.urlopen(port.url) as answer:
        print(answer.status, answer.read().decode().strip())
