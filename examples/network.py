"""A sandbox that reaches one host by name, and nothing else; every decision is recorded.

example.com: 403
blocked: example.com
"""

import os

from ohsandbox import DockerRuntime

ASK = """
import urllib.error, urllib.request
try:
    urllib.request.urlopen("http://example.com/", timeout=10)
except urllib.error.HTTPError as error:
    print("example.com:", error.code)
"""

with DockerRuntime(image=os.environ.get("IMAGE", "python:3.12"), allow=["api.example.org"]) as sandbox:
    print(sandbox.run(["python3", "-c", ASK]).stdout.decode().strip())
    for decision in sandbox.network_decisions():
        print("allowed:" if decision.allowed else "blocked:", decision.host)
