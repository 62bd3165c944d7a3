import os

import pytest
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from ohsandbox import DockerRuntime

pytestmark = [
    pytest.mark.docker,
    pytest.mark.one_engine,
    # testcontainers keeps docker-py's session for the whole process
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


def test_a_container_that_testcontainers_started_can_be_joined_and_outlives_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)  # `with` removes it; the reaper is one more image
    image = os.environ.get("OHSANDBOX_TEST_IMAGE", "ohsandbox-base:debian")
    with DockerContainer(image).with_command("sleep infinity") as started:
        with DockerRuntime(attach=started.get_wrapped_container().id) as runtime:
            runtime.write_bytes("/tmp/hello", b"hello\n")
            assert runtime.execute("cat /tmp/hello").output == "hello\n"
        assert started.exec(["cat", "/tmp/hello"]).output == b"hello\n"
