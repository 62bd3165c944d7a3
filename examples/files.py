"""Files in, files out: a directory is uploaded, worked on, and downloaded.

3 numbers, sum 6
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from ohsandbox import DockerRuntime

with TemporaryDirectory() as scratch, DockerRuntime(image=os.environ.get("IMAGE", "python:3.12")) as sandbox:
    inputs, outputs = Path(scratch, "in"), Path(scratch, "out")
    inputs.mkdir()
    (inputs / "numbers.txt").write_text("1\n2\n3\n")

    sandbox.upload(inputs, "/tmp/in")
    sandbox.execute("mkdir /tmp/out; awk '{ s += $1 } END { print NR, s }' /tmp/in/numbers.txt > /tmp/out/result.txt")
    sandbox.download("/tmp/out", outputs)

    count, total = (outputs / "result.txt").read_text().split()
    print(f"{count} numbers, sum {total}")
