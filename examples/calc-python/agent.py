"""The calc agent of ../calc/agent on OpenAI's official Python SDK.

Alone it answers QUESTION and prints the answer. With -worker it stays up and
takes rollouts from standard input, one JSON line each, because importing the
SDK costs more than a hundred rollouts:

    in   {"v":1,"rollout_id":"…","env":{"QUESTION":"…","OPENAI_BASE_URL":"…",…},…}
    out  {"v":1,"rollout_id":"…","ok":true,"error":null}
"""

import json
import os
import re
import sys

import openai

SYSTEM = "Use the tool, then say Answer: N"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calc",
            "description": "one operation per call",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]
BAD_CALL = "error: bad call"
MAX_CALLS = 12
MAX_TOKENS = 48


def calc(expression: str) -> str:
    """One operation on two whole numbers."""
    m = re.fullmatch(r"(-?[0-9]{1,6})([-+*/])(-?[0-9]{1,6})", expression.replace(" ", ""))
    if m is None:
        return "error: one operation"
    a, op, b = int(m[1]), m[2], int(m[3])
    if op == "+":
        return str(a + b)
    if op == "-":
        return str(a - b)
    if op == "*":
        return str(a * b)
    if b == 0 or a % b != 0:
        return "error: not whole"
    return str(a // b)


def result(name: str, arguments: str) -> str:
    if name != "calc":
        return "error: no such tool"
    try:
        expression = json.loads(arguments)["expression"]
    except (ValueError, KeyError, TypeError):
        return BAD_CALL
    return calc(expression) if isinstance(expression, str) else BAD_CALL


def feedback(message) -> list[dict]:
    """What the agent answers a message: tool results, or nothing when it is final."""
    if message.tool_calls:
        return [
            {"role": "tool", "content": result(c.function.name, c.function.arguments), "tool_call_id": c.id}
            for c in message.tool_calls
        ]
    if "<tool_call>" in (message.content or ""):
        return [{"role": "user", "content": BAD_CALL}]
    return []


def run(client: openai.OpenAI, model: str, question: str) -> str:
    """Holds the conversation and returns the model's last message."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    for n in range(1, MAX_CALLS + 1):
        completion = client.chat.completions.create(
            model=model, messages=messages, tools=TOOLS, max_tokens=MAX_TOKENS
        )
        message = completion.choices[0].message
        more = feedback(message)
        if not more or n == MAX_CALLS:
            return message.content or ""
        messages.append(message.to_dict())
        messages.extend(more)
    raise AssertionError("the loop ends inside")


def answer(client: openai.OpenAI, env) -> str:
    question = env.get("QUESTION")
    if not question:
        raise ValueError("QUESTION is not set: it holds the story to answer")
    base_url, key = env.get("OPENAI_BASE_URL"), env.get("OPENAI_API_KEY")
    if not base_url:
        raise ValueError("OPENAI_BASE_URL is not set: give the base URL of an OpenAI-compatible server")
    # Shares the connections of client, so that a worker keeps them over its rollouts.
    return run(client.with_options(base_url=base_url, api_key=key or "none"), env.get("OPENAI_MODEL") or "calc", question)


def worker(client: openai.OpenAI) -> None:
    # Standard output is the protocol's alone: whatever else prints goes to the log.
    protocol, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        task = json.loads(line)
        if task.get("v") != 1:
            raise ValueError(f"want a JSON line of version 1, got {line.strip()}")
        done = {"v": 1, "rollout_id": task["rollout_id"], "ok": True, "error": None}
        try:
            print(f"{task['rollout_id']}: {answer(client, {**os.environ, **(task.get('env') or {})})}", flush=True)
        except (openai.OpenAIError, ValueError) as e:
            done.update(ok=False, error=f"{type(e).__name__}: {e}")
            print(f"{task['rollout_id']}: {done['error']}", flush=True)
        protocol.write(json.dumps(done) + "\n")
        protocol.flush()


def main() -> int:
    client = openai.OpenAI(base_url="http://unset.invalid/v1", api_key="none", max_retries=4)
    if sys.argv[1:] == ["-worker"]:
        worker(client)
        return 0
    try:
        print(answer(client, os.environ))
    except (openai.OpenAIError, ValueError) as e:
        print(f"calc: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
