from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ohsandbox.errors import UsageError
from ohsandbox.settings import Settings
from ohsandbox.tool import register_tool, unregister_tool
from ohsandbox.tool_flags import ToolFlags
from ohsandbox.tools.think import make_think_tool

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT = (
    "execute_bash", "file_editor", "file_read", "file_write", "glob", "grep", "execute_ipython_cell", "task_tracker",
    "think", "finish",
)  # fmt: skip
ALL = (
    "execute_bash", "file_read", "file_write", "glob", "grep", "execute_ipython_cell", "edit_file",
    "web_read", "browser", "delegate_to_browsing_agent", "delegate", "task_tracker", "request_condensation",
    "ask_human", "think", "finish",
)  # fmt: skip
FAMILIES = [name for name in ToolFlags.model_fields if name.startswith("enable_")]


def test_names_stand_in_a_fixed_order() -> None:
    assert ToolFlags().names() == DEFAULT
    assert ToolFlags(**dict.fromkeys(FAMILIES, True)).names() == ALL
    assert ToolFlags(**dict.fromkeys(FAMILIES, False)).names() == ()


@pytest.mark.parametrize("flag", FAMILIES)
def test_each_flag_switches_something(flag: str) -> None:
    assert set(ToolFlags(**{flag: True}).names()) > set(ToolFlags(**{flag: False}).names()) - {"file_editor"}


def test_two_editors_are_never_offered_together() -> None:
    for flags in (ToolFlags(enable_llm_editor=True), ToolFlags(also=("edit_file",))):
        assert {"edit_file", "file_editor"} & {*flags.names()} == {"edit_file"}
    assert "file_editor" in ToolFlags(enable_llm_editor=True, without=("edit_file",)).names()


def test_flags_are_switched_by_short_or_long_name_and_off_wins() -> None:
    flags = ToolFlags().switched(on=["browsing", "enable_web_read", "plan-mode"], off=["cmd", "browsing"])
    assert flags == ToolFlags(enable_web_read=True, enable_cmd=False)


def test_single_tools_are_switched_by_name_and_off_wins() -> None:
    flags = ToolFlags().switched(on=["browser", "grep"], off=["file_write", "grep"])
    assert flags.names() == (*(name for name in DEFAULT if name not in {"file_write", "grep"}), "browser")
    assert flags.switched(on=["file_write", "grep"], off=["browser"]).names() == DEFAULT


def test_own_tool_is_given_beside_those_that_ship() -> None:
    register_tool("my_own", make_think_tool())
    try:
        assert ToolFlags().switched(on=["my_own"]).names() == (*DEFAULT, "my_own")
        assert ToolFlags(also=("my_own", "think")).names() == (*DEFAULT, "my_own")
    finally:
        unregister_tool("my_own")


@pytest.mark.parametrize("alias", ["terminal", "BashTool"])
def test_tool_is_left_out_by_each_of_its_names(alias: str) -> None:
    assert "execute_bash" not in ToolFlags().switched(off=[alias]).names()
    assert "execute_bash" not in ToolFlags(without=(alias,)).names()
    assert ToolFlags().switched(on=[alias]).names() == DEFAULT


@pytest.mark.parametrize(
    ("flags", "on"),
    [(ToolFlags(), ["brower"]), (ToolFlags(also=("brower",)), []), (ToolFlags(without=("brower",)), [])],
)
def test_unknown_name_is_answered_with_tools_and_families(flags: ToolFlags, on: list[str]) -> None:
    with pytest.raises(UsageError, match=r"No tools 'brower' to switch\. There are: cmd, .*Registered are: .*glob"):
        flags.switched(on=on)


def test_settings_have_a_section_of_flags(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"tools": {"enable_jupyter": False}}))
    settings = Settings.load(path, model="a/b")
    assert settings.tools == ToolFlags(enable_jupyter=False)
    assert settings.with_flags(tools=settings.tools.switched(on=["jupyter"])).tools == ToolFlags()


@pytest.mark.parametrize(
    ("section", "fact"),
    [
        ({"enable_magic": True}, "unknown key 'tools.enable_magic'. Known keys: enable_cmd, enable_editor"),
        ({"enable_cmd": "perhaps"}, "key 'tools.enable_cmd' is wrong"),
        ([], "key 'tools' is wrong"),
    ],
)
def test_fault_in_the_section_is_told_with_its_keys(tmp_path: Path, section: object, fact: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"tools": section}))
    with pytest.raises(UsageError) as caught:
        Settings.load(path)
    assert fact in str(caught.value)
