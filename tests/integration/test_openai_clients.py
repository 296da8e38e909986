# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients of the API: the lines of docs/how-to/use-the-api.md, and OpenAI's Python package when requests go wrong.

The model has random weights, so its text is noise. A grammar still forces the right text.
"""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import openai
import pytest

from support.api_service import ALIAS, NO_PAGE, Service, service_over_two
from support.examples import Block, blocks
from support.harness import HANG_S, Release, completed
from support.runs import wait_for
from support.watched_worker import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.llama

SLOTS, SLOT_TOKENS = 2, 2048
# This request takes some ten seconds, unless its client leaves.
LONG: dict[str, Any] = {"model": ALIAS, "prompt": "the river", "max_tokens": 1900, "extra_body": {"ignore_eos": True}}
# The model has no template of its own, and llama.cpp's template has no tools. Calls stand between @ and #, each of
# which is one token.
TEMPLATE = """
{%- for tool in tools or [] %}tool {{ tool.function.name }}
{% endfor %}
{%- for message in messages %}<{{ message.role }}>{{ message.content or '' }}
{%- if message.tool_calls %}@{% endif %}
{%- for call in message.tool_calls or [] %}
{%- set said = call.function %}{"name": {{ said.name | tojson }}, "arguments": {{ said.arguments | tojson }}}
{%- endfor %}
{%- if message.tool_calls %}#{% endif %}
{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}
"""
QUESTION: list[Any] = [{"role": "user", "content": "knock knock"}]


@pytest.fixture(scope="module")
def service(release: Release, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    (folder / "template").write_text(TEMPLATE)
    options = (*NO_PAGE, "--chat-template-file", str(folder / "template"), "--ctx-size", str(SLOTS * SLOT_TOKENS))
    with service_over_two(release, model, folder, options) as running:
        yield running


def client_of(service: Service, **options: Any) -> openai.OpenAI:
    given = {"base_url": service.client.url, "api_key": service.client.key, "max_retries": 0, "timeout": HANG_S}
    return openai.OpenAI(**{**given, **options})


@pytest.fixture
def client(service: Service) -> Iterator[openai.OpenAI]:
    with client_of(service) as opened:
        yield opened


def busy_slots(service: Service) -> int:
    status, slots = service.request("/slots")
    assert status == 200
    return sum(slot["is_processing"] for slot in slots)


def only(value: str) -> Any:
    """Return the response format that allows only this value."""
    schema = {"type": "object", "properties": {"who": {"const": value}}, "required": ["who"]}
    return {"type": "json_schema", "json_schema": {"name": "who", "strict": True, "schema": schema}}


CLIENTS = [block for block in blocks("bash", "python") if block.page.name == "use-the-api.md"]
CURL = [block for block in CLIENTS if block.text.startswith("curl ")]
PYTHON = [block for block in CLIENTS if "import OpenAI" in block.text]


def output(service: Service, *command: str) -> str:
    """Return the output of a client that gets the API's address and key from the page's two variables."""
    done = completed(*command, OPENAI_BASE_URL=service.client.url, OPENAI_API_KEY=str(service.client.key))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_s_line_for_curl_lists_the_model_and_gets_an_answer(service: Service) -> None:
    (block,) = CURL
    said = output(service, "sh", "-euc", block.text).replace(" ", "")
    assert f'"id":"{ALIAS}"' in said
    assert '"role":"assistant"' in said


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_the_page_s_lines_for_python_print_an_answer(service: Service, block: Block) -> None:
    assert output(service, sys.executable, "-c", block.text).strip()


def test_a_stream_has_the_same_text_in_pieces(client: openai.OpenAI) -> None:
    asked: Any = {"model": ALIAS, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    pieces = [
        chunk.choices[0].delta.content
        for chunk in client.chat.completions.create(**asked, stream=True)
        if chunk.choices and chunk.choices[0].delta.content
    ]
    assert len(pieces) > 12
    assert "".join(pieces) == client.chat.completions.create(**asked).choices[0].message.content


def tokens_of_the_next_release(service: Service, before: int) -> int:
    """Wait until the server's log says that a slot is free again; return how many tokens its request came to.

    The test sends no request meanwhile: a server that answers others notices late that a client has left.
    """
    start = re.compile(r"stop processing: n_tokens = (\d+)")
    found: re.Match[str] = wait_for(lambda: start.search("".join(service.lines[before:])), HANG_S)
    return int(found[1])


def test_a_stream_that_its_client_leaves_frees_its_slot(service: Service, client: openai.OpenAI) -> None:
    before = len(service.lines)
    with client.completions.create(**LONG, stream=True) as stream:
        assert next(iter(stream))
        assert busy_slots(service) == 1
    assert tokens_of_the_next_release(service, before) < LONG["max_tokens"] / 2
    assert busy_slots(service) == 0


def test_a_wrong_key_is_refused_and_not_repeated_to_others(service: Service) -> None:
    other = client_of(service, api_key="key-of-somebody-else")
    with other, pytest.raises(openai.AuthenticationError) as refused:
        other.chat.completions.create(model=ALIAS, messages=QUESTION)
    assert refused.value.status_code == 401
    # The log reports the refusal a moment later.
    until(lambda: "Invalid API Key" in "".join(service.lines))
    assert "key-of-somebody-else" not in "".join(service.lines) + str(refused.value)


def test_twenty_clients_on_two_slots_get_each_its_own_answer(service: Service) -> None:
    def ask(number: int) -> str:
        wanted = only(f"client {number}")
        with client_of(service) as one:
            done = one.chat.completions.create(model=ALIAS, messages=QUESTION, max_tokens=120, response_format=wanted)
        return str(json.loads(done.choices[0].message.content or "")["who"])

    with ThreadPoolExecutor(20) as clients:
        assert list(clients.map(ask, range(20))) == [f"client {number}" for number in range(20)]


def cached_tokens(client: openai.OpenAI, messages: list[Any]) -> tuple[int, int]:
    """Ask once; return how many tokens of the prompt were cached, and how many it has."""
    done = client.chat.completions.create(model=ALIAS, messages=messages, max_tokens=4, temperature=0)
    messages.append({"role": "assistant", "content": done.choices[0].message.content})
    assert done.usage is not None
    assert done.usage.prompt_tokens_details is not None
    return done.usage.prompt_tokens_details.cached_tokens or 0, done.usage.prompt_tokens


def test_the_second_turn_reuses_the_first_also_with_more_clients_than_slots(client: openai.OpenAI) -> None:
    words = ("stone", "light", "tree")
    assert len(words) > SLOTS
    conversations: list[list[Any]] = [[{"role": "user", "content": f"{word} " * 100}] for word in words]
    first = [cached_tokens(client, conversation)[1] for conversation in conversations]
    for conversation in conversations:
        conversation.append({"role": "user", "content": "more"})
    for before, conversation in zip(first, conversations):
        cached, tokens = cached_tokens(client, conversation)
        assert tokens > before
        assert cached >= before - 8, f"{cached} of {before} tokens came from the cache"
