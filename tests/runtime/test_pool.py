"""A pool of sandboxes, without an engine: what is handed out, when, and what is left."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Self

import anyio
import pytest

from ohsandbox import SandboxPool
from ohsandbox.errors import CallCancelledError, EngineUnavailable, SandboxGone, SandboxUnavailable, UsageError
from ohsandbox.runtime import pool as pools
from ohsandbox.secrets import Secrets
from ohsandbox.testing import FakeRuntime
from tests.aio import on_each

if TYPE_CHECKING:
    from collections.abc import Callable

    from ohsandbox import Runtime


class Maker:
    """Makes runtimes, and knows all of them."""

    def __init__(self, errors: list[Exception] | None = None) -> None:
        self.made: list[FakeRuntime] = []
        self.errors = errors or []
        self.may_start = threading.Event()
        self.may_start.set()

    def __call__(self) -> Runtime:
        maker = self

        class Recorded(FakeRuntime):
            def start(self) -> Self:
                maker.may_start.wait(60)
                if maker.errors:
                    raise maker.errors.pop(0)
                return super().start()

        self.made.append(Recorded())
        return self.made[-1]

    @property
    def alive(self) -> int:
        return sum(one.is_alive() for one in self.made)


def test_a_sandbox_is_handed_out_once_with_a_ready_shell_and_another_takes_its_place() -> None:
    maker = Maker()
    with SandboxPool(make=maker, size=2) as pool:
        assert pool.wait_full(30)
        with pool.get() as first, pool.get() as second:
            assert first is not second
            assert first.list_sessions() == ["main"]
            assert first.execute("echo $0; X=1").exit_code == 0
            assert pool.wait_full(30)
            assert pool.ready == 2
        assert not first.is_alive()
        third = pool.get()
        assert third.execute("echo $X").output == "\n"
    assert third.is_alive()  # it is its user's, and only what nobody took goes with the pool
    assert maker.alive == 1
    third.close()


def test_one_that_ended_or_lost_its_shell_meanwhile_is_never_handed_out() -> None:
    maker = Maker()
    with SandboxPool(make=maker, size=3) as pool:
        assert pool.wait_full(30)
        gone, shell_less, good = maker.made[:3]
        gone.break_down(SandboxGone("Somebody removed it."))
        shell_less.close_session("main")
        with pool.get() as taken:
            assert taken is not gone
            assert taken is not shell_less
            assert taken.execute("echo 1").output == "1\n"
            assert good.is_alive()
    assert maker.alive == 0


def test_a_sandbox_is_looked_at_before_the_engine_is_asked_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    happened, maker = list[str](), Maker()
    with SandboxPool(make=maker, size=1) as pool:
        assert pool.wait_full(30)
        look, begin = maker.made[0].is_alive, pools._in_background

        def looked() -> bool:
            happened.append("looked")
            return look()

        def begun(work: Callable[[], None]) -> threading.Thread:
            happened.append("next")
            return begin(work)

        monkeypatch.setattr(maker.made[0], "is_alive", looked)
        monkeypatch.setattr(pools, "_in_background", begun)
        with pool.get():
            assert pool.wait_full(30)
    assert happened[:2] == ["looked", "next"]


@pytest.mark.slow
def test_more_callers_than_sandboxes_each_get_their_own() -> None:
    maker, taken = Maker(), list[Any]()
    with SandboxPool(make=maker, size=1) as pool:

        def take() -> None:
            taken.append(pool.get())

        callers = [threading.Thread(target=take) for _ in range(8)]
        for one in callers:
            one.start()
        for one in callers:
            one.join(60)
        assert len({id(one) for one in taken}) == 8
        for one in taken:
            one.close()
    assert maker.alive == 0


def test_an_engine_that_fails_is_told_and_not_asked_again_by_each_caller() -> None:
    maker = Maker([EngineUnavailable("No engine answers.")] * 100)
    with SandboxPool(make=maker, size=4) as pool:
        for _ in range(50):
            with pytest.raises(EngineUnavailable, match="No engine answers"):
                pool.get()
        assert len(maker.made) <= pools.MAX_FAILURES + pools.STARTS_AT_ONCE
        assert pool.ready == 0


def test_a_pool_recovers_once_sandboxes_can_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "FIRST_PAUSE_S", 0.01)
    maker = Maker([EngineUnavailable("No engine answers.")] * 2)
    with SandboxPool(make=maker, size=1) as pool:
        taken = None
        while taken is None:
            try:
                taken = pool.get()
            except EngineUnavailable:
                continue
        taken.close()
        assert pool.wait_full(30)


def test_a_wrong_option_that_only_the_engine_knows_is_not_tried_again() -> None:
    maker = Maker([UsageError("The engine has no runtime 'x'.")] * 100)
    with SandboxPool(make=maker, size=1) as pool:
        for _ in range(3):
            with pytest.raises(UsageError, match="no runtime 'x'"):
                pool.get()
        assert len(maker.made) <= pools.STARTS_AT_ONCE


def test_a_wait_ends_after_its_time_with_its_caller_s_cancellation_and_with_the_pool() -> None:
    maker = Maker()
    maker.may_start.clear()
    pool = SandboxPool(make=maker, size=1).start()
    with pytest.raises(SandboxUnavailable, match=r"within 0\.05 s"):
        pool.get(timeout_s=0.05)
    assert not pool.wait_full(0.05)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(CallCancelledError):
        pool.get(cancel=cancel)
    told = list[BaseException]()

    def wait() -> None:
        try:
            pool.get()
        except SandboxGone as error:
            told.append(error)
            maker.may_start.set()  # the start in progress goes on until the pool is closed

    waiting = threading.Thread(target=wait)
    waiting.start()
    pool.close()
    waiting.join(60)
    assert "pool of sandboxes is closed" in str(told[0])
    assert maker.alive == 0
    with pytest.raises(SandboxGone):
        pool.get()
    pool.close()


@on_each
async def test_a_cancelled_wait_takes_no_sandbox_with_it() -> None:
    maker = Maker()
    async with SandboxPool(make=maker, size=1) as pool:
        maker.may_start.clear()
        with anyio.move_on_after(0.05):
            await pool.aget()
        maker.may_start.set()
        async with await pool.aget() as sandbox:
            assert (await sandbox.aexecute("echo 1")).output == "1\n"
    assert maker.alive == 0


def test_secrets_and_options_of_a_session_reach_the_shell_that_was_ready_before() -> None:
    with SandboxPool(make=Maker(), size=1) as pool, pool.get() as sandbox:
        sandbox.give_secrets(Secrets({"TOKEN": "topsecretvalue"}))
        assert sandbox.execute('[ "$TOKEN" = topsecretvalue ] && echo has it').output == "has it\n"
    with SandboxPool(make=Maker(), size=1) as pool, pool.get() as sandbox:
        sandbox.open_session("main", env={"X": "1"})
        assert sandbox.execute("echo $X").output == "1\n"


def test_each_sandbox_is_prepared_before_anybody_has_it() -> None:
    def prepare(sandbox: Runtime) -> None:
        sandbox.execute("cd /tmp; X=prepared")

    with SandboxPool(make=Maker(), size=1, prepare=prepare) as pool, pool.get() as sandbox:
        assert sandbox.execute("echo $X in $PWD").output == "prepared in /tmp\n"


def test_what_prepare_raises_reaches_who_asks_and_no_start_follows_another() -> None:
    maker = Maker()

    def prepare(_sandbox: Runtime) -> None:
        raise KeyError("no such package")

    with SandboxPool(make=maker, size=2, prepare=prepare) as pool:
        for _ in range(50):
            with pytest.raises(KeyError, match="no such package"):
                pool.get()
        assert len(maker.made) <= pools.MAX_FAILURES + pools.STARTS_AT_ONCE
    assert maker.alive == 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SandboxPool(size=0), "size 0. Give a number from 1 to"),
        (lambda: SandboxPool(size="2"), "size='2'"),  # type: ignore[arg-type]
        (lambda: SandboxPool("x", make=FakeRuntime), "make= makes the sandboxes, so image= has no effect"),
        (lambda: SandboxPool("no image", 2), "not an image name"),
        (lambda: SandboxPool("x", workspace="/tmp"), "workspace= is not for a pool"),
        (lambda: SandboxPool("x", name="a"), "name= is not for a pool"),
    ],
)
def test_wrong_arguments_are_told_before_anything_starts(make: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()


def test_a_forked_process_is_handed_none_of_its_parent_s_sandboxes_and_ends_none() -> None:
    maker = Maker()
    with SandboxPool(make=maker, size=1) as pool:
        assert pool.wait_full(30)

        def in_child() -> bool:
            try:
                pool.get(timeout_s=30)
            except SandboxGone as error:
                pool.close()
                return "before the fork" in str(error)
            except BaseException:  # noqa: BLE001 - nothing of the test may go on in the child
                return False
            return False

        if not (child := os.fork()):
            os._exit(0 if in_child() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pool.get().is_alive()
