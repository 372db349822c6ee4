"""The official npm client against a running server."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from missing import skip_without

CLIENT = Path(__file__).with_name("npm_client")


@pytest.fixture
def node() -> str:
    """Node.js with OpenAI's client installed; without them the test is skipped, in CI it fails."""
    program = shutil.which("node")
    if program is None:
        skip_without("Node.js", "apt-get install nodejs npm")
    if not (CLIENT / "node_modules" / "openai").is_dir():
        skip_without("OpenAI's npm client", f"npm ci --prefix {CLIENT.relative_to(Path(__file__).parents[2])}")
    return program


def test_a_conversation_with_the_npm_client(node, shared):
    script = [node, str(CLIENT / "conversation.js"), f"{shared.url}/v1"]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said["roles"] == ["assistant"] * 4
    assert said["models"] == ["tiny"]
    assert said["finish"] in (["length"], ["stop"])
    assert 1 <= said["usage"]["completion_tokens"] <= 2
    assert said["usage"]["privacy"]["tokens_charged"] == said["usage"]["completion_tokens"]
    assert said["completion"]["usage"]["prompt_tokens"] == 3
    refused = said["refused"]
    assert {name: (error["status"], error["param"]) for name, error in refused.items()} == {
        "refusal": (400, "messages[1].refusal"),
        "image": (400, "messages[0].content[0].type"),
        "stops": (400, "stop"),
        "model": (404, "model"),
        "embeddings": (404, None),
    }
    assert "At most 4" in refused["stops"]["message"]
    assert "POST /v1/chat/completions" in refused["embeddings"]["message"]
