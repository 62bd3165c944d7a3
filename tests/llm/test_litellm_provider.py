import subprocess
import sys

import pytest

SLOW = "litellm", "openai", "httpx", "fastmcp"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=240).stdout


def test_importing_the_package_imports_nothing_slow() -> None:
    assert run(f"import sys, ohsandbox.llm; print([m for m in {SLOW} if m in sys.modules])").strip() == "[]"


@pytest.mark.slow
def test_preload_returns_before_litellm_is_there() -> None:
    code = """
import sys, threading
from ohsandbox.llm import LLM, LLMConfig
LLM(LLMConfig(model="gemini/gemini-2.5-pro")).preload()
print("litellm.main" in sys.modules)
[t.join() for t in threading.enumerate() if t.name == "ohsandbox-llm-preload"]
print("litellm.main" in sys.modules)
"""
    assert run(code).split() == ["False", "True"]


def test_loading_litellm_neither_reads_a_dotenv_nor_goes_to_the_network() -> None:
    code = """
import os, socket, dotenv
socket.getaddrinfo = lambda *a, **k: print("network", a)
dotenv.load_dotenv = lambda *a, **k: print("dotenv")
from ohsandbox.llm import litellm_provider
"""
    assert run(code) == ""
