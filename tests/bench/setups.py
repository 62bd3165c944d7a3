"""A ready shell whose setup is in a checkpoint, beside one of the bare image."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

from ohsandbox import DockerRuntime
from ohsandbox.runtime.docker.checkpoints import checkpoint_images
from ohsandbox.runtime.docker.engine.connection import connect
from tests.bench.rows import Row, ms

ROUNDS = 5
TARGET_S = 1.0
INSTALL = "mkdir -p ~/lib && for i in $(seq 1000); do echo $i >~/lib/$i; done"


def setup_rows(image: str) -> list[Row]:
    """One row; the setup writes 1,000 files once. Its checkpoint lies in a state directory of its own."""

    def ready(key: str | None) -> float:
        began = time.perf_counter()
        with DockerRuntime(image, setup_key=key, workspace=workspace) as runtime:
            done = runtime.execute("ls ~/lib | wc -l" if key else "true")
            took = time.perf_counter() - began
        if key and done.output.strip() != "1000":
            raise RuntimeError(f"the setup is not there: {done.output!r}")
        return took

    with (
        tempfile.TemporaryDirectory() as state,
        tempfile.TemporaryDirectory() as workspace,
        mock.patch.dict("os.environ", {"OHSANDBOX_HOME": state}),
    ):
        Path(state).chmod(0o700)
        with DockerRuntime(image, setup_key="bench", workspace=workspace) as runtime:
            runtime.execute(INSTALL, timeout_s=60)
            if why_not := runtime.keep_setup("bench"):
                raise RuntimeError(f"the setup is not kept: {why_not}")
        try:
            rounds = [(ready("bench"), ready(None)) for _ in range(ROUNDS)]
        finally:
            _forget()
    ours, bare = (statistics.median(column) for column in zip(*rounds, strict=True))
    return [
        Row("ready shell from a setup checkpoint", ms(ours), f"{ms(bare)} (bare image)", f"{ours / bare:.2f}x",
            f"<= {TARGET_S:g} s", ours <= TARGET_S)
    ]  # fmt: skip


def _forget() -> None:
    engine = connect()
    try:
        for record in checkpoint_images.records(engine):
            checkpoint_images.release(engine, record)
    finally:
        engine.close()
