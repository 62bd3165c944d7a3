from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ohsandbox.agent import Agent
from ohsandbox.conversation import Conversation
from ohsandbox.conversation.storage.metadata import FileConversationStore
from ohsandbox.errors import UsageError
from ohsandbox.events import ConversationStatus
from tests.fakes import FakeModel, RecordingRuntime, answer, call, data_of

if TYPE_CHECKING:
    from pathlib import Path


def _talk(root: Path, *models: FakeModel) -> Conversation:
    return Conversation(Agent(models[0], ["execute_bash"]), RecordingRuntime(), root, conversation_id="c")


def test_compact_asks_the_model_for_a_summary_that_stands_for_the_older_messages(tmp_path: Path) -> None:
    model = FakeModel(*(answer(f"answer {number}") for number in range(3)), answer("SUMMARY"), answer("last"))
    with _talk(tmp_path, model) as conversation:
        for word in ("one", "two", "three"):
            conversation.run(word)
        conversation.compact()
        assert conversation.wait().status is ConversationStatus.IDLE
        (condensed,) = data_of(conversation.events(), "condensation")
        assert (condensed["summary"], condensed["reason"]) == ("SUMMARY", "by the user")
        assert conversation.context.tokens == 0
        conversation.run("four")
    contents = [message["content"] for message in model.seen[-1]]
    assert "one" in contents
    assert "answer 0" not in contents
    assert any("SUMMARY" in content for content in contents)


def test_compact_says_where_there_is_nothing_to_leave_out(tmp_path: Path) -> None:
    with _talk(tmp_path, FakeModel(answer("hi"))) as conversation:
        conversation.run("hello")
        conversation.compact()
        conversation.wait()
        assert data_of(conversation.events(), "condensation") == []
        assert [one["code"] for one in data_of(conversation.events(), "notice")] == ["NothingToCondense"]


def test_compact_is_refused_while_a_call_waits_for_a_person(tmp_path: Path) -> None:
    with _talk(tmp_path, FakeModel(answer("", call("execute_bash", {"command": "ls"})))) as conversation:
        conversation.confirmation = "always"  # type: ignore[assignment]
        conversation.run("go")
        with pytest.raises(UsageError, match="waits for an answer"):
            conversation.compact()
        assert len(conversation.pending) == 1


def test_a_model_that_fails_to_sum_up_ends_the_run_with_its_error(tmp_path: Path) -> None:
    from ohsandbox.errors import ModelError  # noqa: PLC0415 - of the model's package

    model = FakeModel(answer("a"), answer("b"), ModelError("no credit"))
    with _talk(tmp_path, model) as conversation:
        conversation.run("one")
        conversation.run("two")
        conversation.compact()
        assert conversation.wait().status is ConversationStatus.ERROR
        assert str(conversation.error) == "no credit"


def test_another_model_answers_from_the_next_request_on_and_the_metadata_say_so(tmp_path: Path) -> None:
    first, second = FakeModel(answer("by the first")), FakeModel(answer("by the second"))
    second.name = "other"
    with _talk(tmp_path, first) as conversation:
        conversation.run("one")
        conversation.use_model(second)
        assert conversation.run("two").answer == "by the second"
        assert [message["content"] for message in second.seen[0][1:]] == ["one", "by the first", "two"]
        assert [turn.models for turn in conversation.cost.turns] == [("fake",), ("other",)]
    metadata = FileConversationStore(tmp_path).load("c")
    assert metadata is not None
    assert metadata.model == "other"


def test_a_model_that_is_chosen_last_is_the_conversations_also_before_it_is_asked(tmp_path: Path) -> None:
    from ohsandbox.conversation.storage import read_stored  # noqa: PLC0415 - beside its one use

    other = FakeModel()
    other.name = "other"
    with _talk(tmp_path, FakeModel(answer("hi"))) as conversation:
        conversation.run("one")
        conversation.use_model(other)
    assert read_stored(tmp_path / "c").metadata.model == "other"


def test_no_other_model_while_the_conversation_runs(tmp_path: Path) -> None:
    model = FakeModel()
    model.turns = [model.hang]
    with _talk(tmp_path, model) as conversation:
        conversation.send_message("go")
        assert model.asked.wait(60)
        with pytest.raises(UsageError, match="runs"):
            conversation.use_model(FakeModel())
        with pytest.raises(UsageError, match="runs"):
            conversation.compact()


def test_a_notice_is_read_with_the_next_request_and_runs_nothing(tmp_path: Path) -> None:
    model = FakeModel(answer("a"), answer("b"))
    with _talk(tmp_path, model) as conversation:
        conversation.run("one")
        conversation.notify_model("The network is open.")
        assert len(model.seen) == 1
        conversation.run("two")
    said = model.seen[1][-2]["content"]
    assert "The network is open." in said
    assert "not a word of the user" in said


def test_an_image_goes_to_the_model_with_the_message_and_what_is_none_is_refused(tmp_path: Path) -> None:
    url = "data:image/png;base64,aGVsbG8="
    model = FakeModel(answer("I see."))
    with Conversation(Agent(model), RecordingRuntime(), tmp_path) as conversation:
        no_url, no_image, large = "https://example.org/a.png", "data:image/svg+xml;base64,aGVs", url + "A" * 6_000_000
        for wrong in ([no_url], [no_image], [large], [url] * 9):
            with pytest.raises(UsageError):
                conversation.send_message("see", wrong)
        conversation.send_message("see", [url])
        conversation.wait(60)
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}]
    assert model.seen[0][-1]["content"] == parts
