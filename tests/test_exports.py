"""What a user may import: the names of these doors, described in docs/api.md. Every other module is internal."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
# to add a name here, or to take one away, is a change for users: it stands in CHANGELOG.md too
EXPORTS = {
    "ohsandbox": """
        Action Agent Build BuiltImage CLIRuntime ChatModel CommandObservation Conversation ConversationOpenError
        ConversationState ConversationStatus DockerRuntime ErrorObservation ExecResult FileConversationStore
        GlobObservation GrepObservation LLM LLMConfig MCPClient
        ModelError ModelPrice Mount Observation OhsandboxError ReplayLLM RunLimits RunResult Runtime
        SDKEvent SandboxInfo SandboxLimits SandboxPool SandboxUnavailable ScriptedLLM Secrets Service Settings
        TextObservation Tool
        ToolAnnotations ToolDefinition ToolError ToolExecutor ToolFlags ToolRegistry ToolResult UsageError
        __version__ abuild_image afind_sandbox alist_sandboxes aremove_sandbox build_image find_sandbox
        list_sandboxes open_model register_tool remove_sandbox
    """,
    "ohsandbox.compat": """
        RISK_LEVELS SECURITY_RISK_DESC TASK_TRACKER_TOOL_NAME Action ActionSecurityRisk
        AgentDelegateAction AgentFinishAction AgentThinkAction BrowseInteractiveAction BrowserTool
        CmdRunAction CodeActAgent Condensation CondensationAction CondensationRequestAction
        CondensationRequestTool ErrorObservation FileConversationStore FileEditAction FileEditSource
        FileReadAction FileReadSource FileWriteAction FinishTool FunctionCallNotExistsError
        FunctionCallValidationError IPythonRunCellAction IPythonTool LLMBasedFileEditTool MCPAction
        MCPClient MessageAction MessageToolCall NoOpEventBus TaskTrackingAction ThinkTool Tool
        ToolRegistry View check_tools condensed_history create_cmd_run_tool
        create_str_replace_editor_tool create_task_tracker_tool response_to_actions to_tool_call
    """,
    "ohsandbox.errors": """
        CallCancelledError ConversationOpenError EngineUnavailable ImageUnavailable LimitReachedError LogCorruptError
        LogWriteError ModelError OhsandboxError ProgramNotFoundError SandboxFileError SandboxFileNotFoundError
        SandboxGone SandboxIsADirectoryError SandboxNotADirectoryError SandboxPaused SandboxPermissionError
        SandboxRefused SandboxUnavailable ToolArgumentsError ToolError UnknownSessionError UnknownToolError
        UnknownUserError UsageError WorkdirError WorkdirMissingError WorkdirNotADirectoryError
    """,
    "ohsandbox.events": """
        ApprovalData ApprovalEvent ApprovalRevokedData ApprovalRevokedEvent AssistantMessageData
        AssistantMessageEvent CheckpointData CheckpointEvent CondensationData CondensationEvent ConfirmationData
        ConfirmationEvent ConversationStatus ErrorData ErrorEvent EventData ModelRetryEvent NoticeData NoticeEvent
        RetryData SDKEvent StatusUpdateData StatusUpdateEvent SystemMessageData SystemMessageEvent ToolCallData
        ToolCallEvent ToolResult ToolResultData ToolResultEvent UserMessageData UserMessageEvent
    """,
    "ohsandbox.runtime": """
        Channel Chunk CommandObservation DirEntry ExecResult ExposedPort Forward LeftOut Runtime Stream to_thread
    """,
    "ohsandbox.testing": "FakeRuntime",
    "ohsandbox.testing.conformance": "CASES THEMES Case Session case shell_case",
}


@pytest.mark.parametrize(("door", "names"), EXPORTS.items())
def test_a_door_exports_what_is_listed(door: str, names: str) -> None:
    assert sorted(importlib.import_module(door).__all__) == sorted(names.split())


@pytest.mark.parametrize("door", EXPORTS)
def test_every_exported_class_and_function_is_described(door: str) -> None:
    exported = importlib.import_module(door)
    made = [one for one in (getattr(exported, name) for name in exported.__all__) if callable(one)]
    assert [one for one in made if not inspect.getdoc(one)] == []


@pytest.mark.parametrize("door", sorted(EXPORTS.keys() - {"ohsandbox.compat"}))  # whose names are other names
def test_a_class_is_exported_under_the_name_that_it_has(door: str) -> None:
    exported = importlib.import_module(door)
    assert [name for name in exported.__all__ if getattr(getattr(exported, name), "__name__", name) != name] == []


def test_no_two_classes_of_the_package_share_a_name() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (PAGE.parents[1] / "ohsandbox").rglob("*.py")]
    classes = Counter(name for text in texts for name in re.findall(r"^ *class (\w+)", text, re.MULTILINE))
    assert [name for name, count in classes.items() if count > 1] == []


def test_the_api_reference_has_each_door_and_says_that_the_rest_is_internal() -> None:
    page = PAGE.read_text()
    assert [door for door in EXPORTS if f"## `{door}`\n" not in page] == []
    assert "every other module is internal" in page
