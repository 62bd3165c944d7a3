"""What goes along with a message: files that it names, and commands that the person ran."""

from __future__ import annotations

import base64

import pytest

from ohsandbox.cli.interactive.attachments import OutgoingMessage, Ran, with_attachments
from ohsandbox.content import OutputLimits
from tests.fakes import RecordingRuntime

PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=")


def attached(text: str, files: dict[str, bytes], limits: OutputLimits, *ran: Ran) -> tuple[OutgoingMessage, list[str]]:
    runtime, said = RecordingRuntime(), list[str]()
    runtime.files |= files
    return with_attachments(text, list(ran), runtime, said.append, limits=limits), said


@pytest.mark.parametrize("most", [2, 10])
def test_as_many_images_are_attached_as_the_settings_allow(most: int) -> None:
    files = {f"/{number}.png": PIXEL for number in range(12)}
    message, said = attached(" ".join(f"@{path}" for path in files), files, OutputLimits(max_images=most))
    assert len(message.images) == most
    assert said[-1].endswith(
        f"{most + 1} images, more than {most}. Send fewer in one message. The agent gets its path."
    )


@pytest.mark.parametrize(("most", "fits"), [(15_000_000, True), (13_000_000, False)])
def test_an_image_is_attached_whole_or_not_at_all(most: int, fits: bool) -> None:  # noqa: FBT001 - a row
    large = PIXEL + bytes(10_000_000)
    message, said = attached("@/a.png", {"/a.png": large}, OutputLimits(max_image_chars=most))
    assert [base64.b64decode(url.partition(",")[2]) == large for url in message.images] == [True] * fits
    assert ("Make it smaller" in said[-1]) is not fits


def test_as_much_of_a_commands_end_is_attached_as_of_a_tools_result() -> None:
    ran = Ran("make", "x" * 500 + "y" * 2000, "exit 1")
    message, _ = attached("see", {}, OutputLimits(max_chars=2000), ran)
    assert message.text == f"I ran this in the sandbox (exit 1):\n```\n$ make\n…{'y' * 2000}\n```\n\nsee"
