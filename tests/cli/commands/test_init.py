"""`ohsandbox init`, and the key that a run asks for: at a pseudo-terminal, against a model server of the test."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest

from ohsandbox.cli.prompts.remembered import is_remembered_model
from ohsandbox.cli.settings.model_check import check_model_name, is_listed, models_of, providers
from ohsandbox.cli.settings.model_setup import USUAL_MODELS
from ohsandbox.llm import ModelNotFoundError
from ohsandbox.settings import Settings
from ohsandbox.testing.provider import FakeProvider, Reply, calls, error, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Answer, Invoke, Recorded, Start

pytestmark = pytest.mark.usefixtures("no_engine")
KEY = "sk-canary-0123456789"


@pytest.fixture
def file(home: Path) -> Path:
    return home / ".ohsandbox" / "settings.json"


def address(provider: FakeProvider) -> str:
    return str(provider.config().base_url)


def stored(file: Path) -> dict[str, object]:
    values: dict[str, object] = json.loads(file.read_text())
    return values


# --- at a terminal ------------------------------------------------------------------------------------


def test_a_new_user_is_asked_once_for_each_thing_and_the_key_is_never_shown(
    at_terminal: Callable[..., Recorded], file: Path
) -> None:
    with FakeProvider(text("ready"), calls(("ready", {}))) as provider:
        answers: list[tuple[bytes, Answer]] = [
            (b"Provider [", address(provider).encode() + b"\n"),
            (b"Key for", KEY.encode() + b"\n"),
            (b"Model", b"good\n"),
            (b"it answers, and calls tools.", b""),
            (b"Image", b"node:22\n"),
            (b"Network", b"open\n"),
            (b"Write it? [Y/n] ", b"\n"),
        ]
        recorded = at_terminal("init", answers=answers)
        assert [one.headers["authorization"] for one in provider.requests] == [f"Bearer {KEY}"] * 2
        assert provider.requests[0].body["model"] == "good"
        kept = next((file.parent / "keys").iterdir())
        assert stored(file) == {
            "model": "openai/good",
            "base_url": address(provider),
            "api_key": f"file:{kept}",
            "image": "node:22",
            "network": "open",
            "native_tool_calling": True,
        }
    assert recorded.code == 0
    assert KEY.encode() not in recorded.raw
    assert kept.read_text() == f"{KEY}\n"
    assert (stat.S_IMODE(kept.stat().st_mode), stat.S_IMODE(file.stat().st_mode)) == (0o600, 0o600)
    assert Settings.load().resolved_api_key() == KEY


@pytest.mark.slow
def test_a_wrong_key_and_an_unknown_model_are_one_line_each_and_asked_again(
    at_terminal: Callable[..., Recorded], file: Path
) -> None:
    with FakeProvider(error(401, "bad key"), error(404, "no such model"), text("ready")) as provider:
        answers: list[tuple[bytes, Answer]] = [
            (b"Provider [", address(provider).encode() + b"\n"),
            (b"Key for", b"sk-wrong\n"),
            (b"Model", b"god\n"),
            (b"refused the key", b""),
            (b"Key for", KEY.encode() + b"\n"),
            (b"was not found", b""),
            (b"Model", b"good\n"),
            (b"Image", b"\n"),
            (b"Network", b"\n"),
            (b"Write it?", b"\n"),
        ]
        recorded = at_terminal("init", answers=answers)
        assert [(one.headers["authorization"], one.body["model"]) for one in provider.requests] == [
            ("Bearer sk-wrong", "god"),
            (f"Bearer {KEY}", "god"),
            *[(f"Bearer {KEY}", "good")] * 2,
        ]
    assert recorded.code == 0
    assert stored(file)["model"] == "openai/good"


def test_a_server_that_does_not_answer_can_be_kept_unchecked(at_terminal: Callable[..., Recorded], file: Path) -> None:
    with FakeProvider() as provider:
        gone = address(provider)
    answers: list[tuple[bytes, Answer]] = [
        (b"Provider [", gone.encode() + b"\n"),
        (b"Key for", b"\n"),
        (b"Model", b"good\n"),
        (b"no server listens there", b""),
        (b"k keeps it unchecked", b"k\n"),
        (b"Image", b"\n"),
        (b"Network", b"\n"),
        (b"Write it?", b"\n"),
    ]
    assert at_terminal("init", answers=answers).code == 0
    assert stored(file) == {"model": "openai/good", "base_url": gone}


@pytest.mark.parametrize("answer", [b"n\n", b"\x03"])
def test_nothing_is_written_without_a_yes(
    at_terminal: Callable[..., Recorded], file: Path, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    answers: list[tuple[bytes, Answer]] = [
        (b"OPENAI_API_KEY? [Y/n] ", b"\n"),
        (b"Image", b"\n"),
        (b"Network", b"\n"),
        (b"Write it?", answer),
    ]
    recorded = at_terminal("init", "--model", "openai/gpt-5.1", "--no-check", answers=answers)
    assert recorded.code in {1, 130}
    assert not file.exists()
    assert not (file.parent / "keys").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "before",
    [
        [],
        [(b"Provider [", b"server\n"), (b"Its address", b"")],
        [(b"Provider [", b"anthropic\n"), (b"Key for", b"")],
    ],
    ids=["provider", "address", "key"],
)
def test_the_end_of_input_leaves_and_takes_no_default(
    at_terminal: Callable[..., Recorded], file: Path, before: list[tuple[bytes, Answer]]
) -> None:
    *answered, (question, _) = before or [(b"Provider [", b"")]
    recorded = at_terminal("init", answers=[*answered, (question, b"\x04")])
    assert recorded.code == 130
    assert not file.exists()


def test_an_unknown_provider_is_told_with_the_nearest_one(at_terminal: Callable[..., Recorded]) -> None:
    answers: list[tuple[bytes, Answer]] = [
        (b"Provider [anthropic]", b"antropic\n"),
        (b"Did you mean 'anthropic'?", b""),
        (b"Provider [", lambda process, _: process.kill()),
    ]
    assert b"Unknown provider 'antropic'." in at_terminal("init", answers=answers).raw


# --- without one --------------------------------------------------------------------------------------


def test_a_script_says_all_by_options_and_what_the_file_holds_is_kept(
    invoke: Invoke, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    file.parent.mkdir(mode=0o700)
    file.write_text('{"max_iterations": 7, "api_key": "old", "network": "open"}')
    file.chmod(0o600)
    with FakeProvider(text("ready")) as provider:
        url = address(provider)
        ended = invoke("init", "--provider", url, "--model", "good", "--key-from", "env:A_KEY", "--yes")
        assert provider.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert ended.code == 0
    assert KEY not in ended.out + ended.err
    assert stored(file) == {
        "max_iterations": 7,
        "network": "open",
        "model": "openai/good",
        "base_url": url,
        "api_key": "env:A_KEY",
    }


@pytest.mark.parametrize(
    ("reply", "told"),
    [(calls(("ready", {})), {"native_tool_calling": True}), (text("ready"), {}),
     (error(400, "this model does not support tools"), {"native_tool_calling": False})],
)  # fmt: skip
def test_a_model_that_the_list_lacks_is_tried_with_one_tool(
    invoke: Invoke, file: Path, reply: Reply, told: dict[str, bool]
) -> None:
    with FakeProvider(text("ready"), reply) as provider:
        where = ("--base-url", address(provider), "--model", "own")
        assert invoke("init", "--provider", "server", *where, "--yes").code == 0
        assert len(provider.requests) == 2
    assert {name: value for name, value in stored(file).items() if name == "native_tool_calling"} == told


def test_a_key_is_piped_in_and_stored(start: Start, file: Path) -> None:
    process = start("init", "--provider", "mistral", "--key-from", "-", "--no-check", "--yes", stdin=-1)
    out, err = process.communicate(f"{KEY}\n".encode(), timeout=60)
    assert process.returncode == 0, err
    assert KEY.encode() not in out + err
    assert stored(file)["model"] == f"mistral/{USUAL_MODELS['mistral']}"
    assert Settings.load().resolved_api_key() == KEY


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--yes"], "No model is named"),
        (["--model", "openai/gpt-5.1", "--no-check"], "Use --yes"),
        (["--provider", "antropic", "--yes"], "Did you mean 'anthropic'?"),
        (["--provider", "server", "--model", "x", "--yes"], "--base-url"),
        (["--model", "openai/gpt-5.1", "--key-from", KEY, "--yes"], "--key-from says where the key is"),
        (["--model", "openai/gpt-5.1", "--key-from", "env:NOT_SET", "--yes"], "'NOT_SET', which is not set"),
        (["--model", "openai/gpt-5.1", "--network", "opn", "--yes"], "'opn'"),
    ],
)
def test_without_a_terminal_what_is_missing_or_wrong_is_one_line(
    invoke: Invoke, file: Path, arguments: list[str], told: str
) -> None:
    ended = invoke("init", *arguments)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert told in ended.err
    assert KEY not in ended.err
    assert not file.exists()


@pytest.mark.parametrize(("reply", "told"), [(error(401, "x"), "refused the key"), (error(404, "x"), "was not found")])
def test_without_a_terminal_a_model_that_does_not_answer_writes_nothing(
    invoke: Invoke, file: Path, reply: object, told: str
) -> None:
    with FakeProvider(reply) as provider:  # type: ignore[arg-type] # a reply
        ended = invoke("init", "--provider", address(provider), "--model", "m", "--yes")
    assert (ended.code, ended.err.count("\n")) == (5, 1)
    assert told in ended.err
    assert not file.exists()


# --- names --------------------------------------------------------------------------------------------


def test_each_model_that_is_offered_is_on_the_list() -> None:
    assert [name for provider, name in USUAL_MODELS.items() if not is_listed(f"{provider}/{name}")] == []
    assert set(USUAL_MODELS) <= providers()
    assert models_of("anthropic")


@pytest.mark.parametrize(
    ("model", "near"),
    [("antropic/claude-sonnet-4-5", "'anthropic/claude-sonnet-4-5'"), ("gpt-5o", "'gpt-5'")],
)
def test_a_slip_in_a_name_is_known_before_a_sandbox_starts(invoke: Invoke, model: str, near: str) -> None:
    ended = invoke("run", "x", "--model", model, "--api-key", KEY, "--runtime", "cli")
    assert ended.code == 5
    assert f"Did you mean {near}?" in ended.err
    assert "This host" not in ended.err + ended.out


def test_a_model_that_the_provider_does_not_have_is_told_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeProvider(error(404, "no such model")) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", address(provider))
        with pytest.raises(ModelNotFoundError, match=r"Did you mean 'openai/gpt-5\.1'\?"):
            check_model_name(Settings(model="openai/gtp-5.1", api_key=KEY))
        assert len(provider.requests) == 1


@pytest.mark.parametrize("model", ["anthropic/claude-sonnet-4-5", "gpt-5.1", "scripted:demo", "replay:x"])
def test_a_name_on_the_list_costs_no_request(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeProvider(models=[]) as provider:
        for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
            monkeypatch.setenv(name, address(provider))
        assert check_model_name(Settings(model=model, api_key=KEY)) == ""
        assert provider.requests == []


@pytest.mark.parametrize("model", ["openai/own-8b", "anthropic/own-8b"])
def test_a_model_that_its_server_lists_is_asked_about_once_and_costs_no_turn(model: str) -> None:
    with FakeProvider(models=["other", "own-8b"]) as provider:
        base_url = address(provider) if model.startswith("openai") else address(provider).removesuffix("/v1")
        settings = Settings(model=model, api_key=KEY, base_url=base_url)
        assert check_model_name(settings) == ""
        assert provider.requests == []
    assert check_model_name(settings) == ""  # with nobody there to ask
    assert is_remembered_model(model, base_url)


def test_a_model_that_its_server_lacks_is_known_before_a_sandbox_starts(invoke: Invoke) -> None:
    with FakeProvider(error(404, "no such model"), models=["qwen3-coder-30b", "other"]) as provider:
        where = ("--base-url", address(provider), "--api-key", KEY, "--runtime", "cli")
        ended = invoke("run", "x", "--model", "openai/qwen-coder-30b", *where)
        assert len(provider.requests) == 1
    assert ended.code == 5
    assert "Did you mean 'openai/qwen3-coder-30b'?" in ended.err
    assert "This host" not in ended.err + ended.out


def test_a_model_that_answers_though_its_server_does_not_list_it_is_taken() -> None:
    with FakeProvider(text("ready"), models=["llama3:latest"]) as provider:
        settings = Settings(model="openai/llama3", api_key=KEY, base_url=address(provider))
        assert [check_model_name(settings), check_model_name(settings)] == ["", ""]
        assert len(provider.requests) == 1


@pytest.mark.parametrize("reply", [text("ready"), error(400, "max_tokens is too small"), error(500, "loading")])
def test_a_server_without_a_list_is_asked_for_a_word_and_works_whatever_it_says(reply: Reply) -> None:
    with FakeProvider(reply, models=None) as provider:
        settings = Settings(model="openai/own-8b", api_key=KEY, base_url=address(provider))
        assert check_model_name(settings) == ""
        assert len(provider.requests) == 1
        assert is_remembered_model("openai/own-8b", settings.base_url) is (reply.status < 500)


def test_a_server_without_a_list_may_know_no_such_model() -> None:
    with FakeProvider(error(404, "no such model"), models=None) as provider, pytest.raises(ModelNotFoundError):
        check_model_name(Settings(model="openai/own-8b", api_key=KEY, base_url=address(provider)))


@pytest.mark.parametrize(("model", "told"), [("opnai/own-8b", "Did you mean 'openai/own-8b'?"), ("own-8b", "own-8b")])
def test_a_provider_that_nobody_knows_is_refused_at_a_server_of_ones_own_too(model: str, told: str) -> None:
    with FakeProvider() as provider, pytest.raises(ModelNotFoundError) as refused:
        check_model_name(Settings(model=model, api_key=KEY, base_url=address(provider)))
    assert told in str(refused.value)


def test_a_slip_is_told_where_the_provider_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")
    settings = Settings(model="anthropic/claude-sonet-4-5", api_key=KEY)
    assert "Did you mean 'anthropic/claude-sonnet-4-5'?" in check_model_name(settings)
    assert not is_remembered_model("anthropic/claude-sonet-4-5", None)


# --- the key that a run lacks -------------------------------------------------------------------------


def test_a_key_of_another_provider_is_saved_beside_and_found_again(
    at_terminal: Callable[..., Recorded], invoke: Invoke, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.parent.mkdir(mode=0o700)
    before = '{"model": "anthropic/claude-sonnet-4-5", "api_key": "sk-of-anthropic", "price": [1, 2]}'
    file.write_text(before)
    file.chmod(0o600)
    with FakeProvider(text("ready"), text("One."), text("Two.")) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", address(provider))
        answers: list[tuple[bytes, Answer]] = [
            (b"Key for openai/gpt-5.1 (not shown): ", KEY.encode() + b"\n"),
            (b"Save the key? [Y/n] ", b"\n"),
            (b"One.", b""),
        ]
        command = ("run", "x", "--model", "openai/gpt-5.1", "--runtime", "cli")
        assert at_terminal(*command, answers=answers).code == 0
        assert file.read_text() == before
        assert invoke(*command, "--no-tui").code == 0
        assert {one.headers["authorization"] for one in provider.requests} == {f"Bearer {KEY}"}


@pytest.mark.parametrize(("answer", "is_saved"), [(b"\n", True), (b"n\n", False)])
def test_a_key_that_a_run_asked_for_is_checked_and_saved_after_a_yes(
    at_terminal: Callable[..., Recorded],
    file: Path,
    answer: bytes,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_saved: bool,
) -> None:
    with FakeProvider(error(401, "bad key"), text("ready"), text("Done.")) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", address(provider))
        answers: list[tuple[bytes, Answer]] = [
            (b"Key for openai/gpt-5.1 (not shown): ", b"sk-wrong\n"),
            (b"refused the key", b""),
            (b"Key for", KEY.encode() + b"\n"),
            (b"Save the key, and openai/gpt-5.1 as your model? [Y/n] ", answer),
            (b"Done.", b""),
        ]
        recorded = at_terminal("run", "x", "--model", "openai/gpt-5.1", "--runtime", "cli", answers=answers)
    assert recorded.code == 0
    assert KEY.encode() not in recorded.raw
    assert file.exists() is is_saved
    if is_saved:
        assert stored(file) == {"model": "openai/gpt-5.1", "api_key": f"file:{file.parent / 'keys' / 'openai'}"}
        assert Settings.load().resolved_api_key() == KEY
