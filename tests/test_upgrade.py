"""What older versions wrote is read by this one: settings, logs and what lies beside them.

Each directory of `old_versions` was written by the commit in its name, never by hand: `ohsandbox demo --runtime cli`,
and its `Settings(model="scripted:demo").model_dump_json(indent=2)`, which has every key that it knew.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ohsandbox import Settings
from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.storage import list_stored
from ohsandbox.events import ConversationStatus
from tests.fakes import FakeModel, RecordingRuntime

VERSIONS = sorted(path.name for path in (Path(__file__).parent / "old_versions").iterdir())


@pytest.fixture(params=VERSIONS)
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory as the older version left it."""
    copied = tmp_path / "home"
    shutil.copytree(Path(__file__).parent / "old_versions" / request.param, copied)
    for path in (copied, *copied.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    monkeypatch.setenv("OHSANDBOX_HOME", str(copied))
    return copied


def test_every_setting_is_still_one_and_has_its_value(home: Path) -> None:
    written = json.loads((home / "settings.json").read_text())

    settings = Settings.load()

    assert settings.warnings == ()
    read = json.loads(settings.model_dump_json())
    assert {key: read[key] for key in written if written[key] is not None} == {
        key: value for key, value in written.items() if value is not None
    }


def test_a_conversation_is_listed_shown_and_goes_on_with_all_that_was_said(home: Path) -> None:
    (stored,) = list_stored(home / "conversations")
    show = [sys.executable, "-m", "ohsandbox", "conversations", "show", stored.id]
    shown = subprocess.run(show, env=os.environ, capture_output=True, text=True, check=True).stdout
    assert "Nine to twelve and one to five" in shown
    assert (stored.metadata.status, stored.metadata.steps) == (ConversationStatus.FINISHED, 7)

    model = FakeModel()
    with Conversation(
        persist_dir=home / "conversations", conversation_id=stored.id, agent=Agent(model), runtime=RecordingRuntime()
    ) as conversation:
        result = conversation.run("and now?", 20)

    assert result.status is ConversationStatus.IDLE
    roles = [message["role"] for message in model.seen[0]]
    assert roles.count("tool") >= 9
    assert [message["content"] for message in model.seen[0] if message["role"] == "user"][-1] == "and now?"
