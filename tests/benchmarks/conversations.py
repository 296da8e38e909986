# SPDX-License-Identifier: GPL-3.0-or-later
"""Count the prompt tokens that real groups process in chats of ten turns, by how the gateway knows a conversation.

Three or six chats at a time go through the gateway's real HAProxy to one, two or four groups. Each group is a
llama-server with two slots over one worker on loopback. A small model of random weights is enough: the benchmark counts
the tokens of a prompt that the group has not cached, as its answer reports them. Each chat goes on as soon as it has an
answer. So six chats always want more than all slots of two groups, and a chat whose group is busy goes to the other
group.
"""

from __future__ import annotations

import http.client
import json
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.loopback import model, release
from benchmarks.measure import CACHE, asked, machine, machine_line, run_to_end, say, table
from support.api_service import KEY, NO_PAGE, running_service
from support.gateway import CLIENT_KEY, Gateway, running_gateway
from support.harness import free_port, running_worker

if TYPE_CHECKING:
    from collections.abc import Callable

TURNS, ANSWER_TOKENS = 10, 4
# Groups, and chats at a time.
CASES = ((1, 6), (2, 6), (2, 3), (4, 6))
LIMIT_S = 120
OPTIONS = (*NO_PAGE, "--ctx-size", "16384", "--cache-ram", "2048")

# How a request names its conversation: by headers, or by further keys of its body.
Ways = dict[str, "Callable[[str], tuple[dict[str, str], dict[str, str]]]"]
WAYS: Ways = {
    "its header": lambda name: ({"X-Conversation-Id": name}, {}),
    "prompt_cache_key": lambda name: ({}, {"prompt_cache_key": name}),
    "its first messages": lambda _name: ({}, {}),
    "nothing": lambda _name: ({}, {}),
}


def ask(port: int, messages: list[dict[str, str]], headers: dict[str, str], more: dict[str, str]) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        body = {"model": "noise", "messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0, **more}
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer {CLIENT_KEY}", **headers}
        )
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"A request got status {answer.status}: {text.decode()[:300]}")
        return {**json.loads(text), "group": answer.getheader("X-Llama-Group")}
    finally:
        connection.close()


def chat(port: int, way: str, name: str, turns: int) -> dict[str, float]:
    """Hold a chat; return the tokens of all prompts, the processed ones, those of the last prompt, and the moves."""
    headers, more = WAYS[way](name)
    messages = [{"role": "system", "content": f"You answer briefly. {way}. " * 3}]
    found = {"prompts": 0.0, "processed": 0.0, "last": 0.0, "moves": 0.0}
    before = None
    for turn in range(turns):
        messages.append({"role": "user", "content": f"I am {name}. What about river {turn} of the {turn * 7} rivers?"})
        answer = ask(port, messages, headers, more)
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or "-"})
        found["last"] = answer["usage"]["prompt_tokens"]
        found["prompts"] += found["last"]
        found["processed"] += answer["timings"]["prompt_n"]
        found["moves"] += before not in (None, answer["group"])
        before = answer["group"]
    return found


def forget(gateway: Gateway) -> None:
    """Remove the rules that lead a conversation to its group."""
    path = gateway.folder / "haproxy.cfg"
    path.write_text(re.sub(r"^    use-server .*\n", "", path.read_text(), flags=re.MULTILINE))
    gateway.reload()


def measured(gateway: Gateway, chats: int, turns: int, mark: str) -> dict[str, dict[str, float]]:
    """Return the average figures of a chat, by how the gateway knows conversations."""
    found = {}
    for way in WAYS:
        if way == "nothing":
            forget(gateway)
        with ThreadPoolExecutor(chats) as pool:
            asked_for = [pool.submit(chat, gateway.port, way, f"{mark} {way} {n}", turns) for n in range(chats)]
            done = [one.result() for one in asked_for]
        found[way] = {key: sum(one[key] for one in done) / chats for key in done[0]}
    return found


def measure(folder: Path, cases: tuple[tuple[int, int], ...], turns: int) -> dict[str, Any]:
    found, path = {}, model(smoke=True)
    with ExitStack() as stack:
        groups = []
        for number in range(max(count for count, _chats in cases)):
            own, ready = folder / f"group{number}", free_port()
            own.mkdir()
            worker = stack.enter_context(running_worker(release(), own / "worker.log"))
            serving = running_service(release(), path, [worker.endpoint], own, options=OPTIONS, ready_port=ready)
            service = stack.enter_context(serving)
            place = {"address": "127.0.0.1", "port": service.port, "ready_port": ready}
            groups.append((service, {"name": own.name, "model": "noise", "slots": 2, **place}))
        for service, _described in groups:
            service.wait_for("Serving")
        for count, chats in cases:
            case = f"{count} groups, {chats} chats"
            say(f"{case} of {turns} turns")
            own = folder / f"gateway{count}-{chats}"
            own.mkdir()
            told = [described for _service, described in groups[:count]]
            options = {"llama_gateway_group_key": KEY, "llama_gateway_queue_timeout": LIMIT_S}
            with running_gateway(own, told, **options) as gateway:
                found[case] = measured(gateway, chats, turns, case)
    return found


def main() -> int:
    args = asked(__doc__, "two groups and short chats: only that it runs", rounds=1)
    cases, turns = (((2, 2),), 2) if args.smoke else (CASES, TURNS)
    with tempfile.TemporaryDirectory(prefix="chats-") as folder:
        found = measure(Path(folder), cases, turns)
    rows = [
        (
            name, way, f"{case['processed']:.0f}", f"{case['processed'] / case['prompts']:.2f}",
            f"{case['processed'] / case['last']:.2f}", f"{case['moves']:.1f}",
        )
        for name, ways in found.items()
        for way, case in ways.items()
    ]  # fmt: skip
    head = ("", "known by", "tokens processed in a chat", "of all prompts", "of the last prompt", "moves")
    facts = machine()
    print(f"\n{machine_line(facts)}\n\n{table(head, rows)}")
    output = CACHE / "benchmarks/conversations/conversations.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"machine": facts, "turns": turns, "cases": found}, indent=2) + "\n")
    print(f"All of it: {output}")
    return 0


if __name__ == "__main__":
    run_to_end(main)
