"""The official SDKs, openai and anthropic, against `fulgur serve`, as their users
call them: streamed and not, with tools called in parallel. The model behind
follows a script: without tools it says ASIDE; with them it calls `add` twice at
once, and then says the sum.

GATEWAY, KEY: the server, and an attempt's credential. The argument names the
parts to run; each that passed prints a line.
"""

import json
import os
import sys

import anthropic
import openai

GATEWAY, KEY, MODEL = (os.environ[k] for k in ("GATEWAY", "KEY", "MODEL"))
ASIDE, SUM = "A title, say.", "The sum is 7."
ARGUMENTS = [{"a": 1, "b": 2}, {"a": 3, "b": 1}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
ASK = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 2, and 3 + 1?"}]

oai = openai.OpenAI(base_url=GATEWAY + "/openai/v1", api_key=KEY, max_retries=0, timeout=30)
claude = anthropic.Anthropic(base_url=GATEWAY + "/anthropic", api_key=KEY, max_retries=0, timeout=30)


def same(got, want):
    assert got == want, f"{got!r} is not {want!r}"


def usage_is_right(prompt, completion, total=None):
    assert prompt > 0 and completion > 3 and (total is None or total == prompt + completion), (prompt, completion, total)


def chat():
    r = oai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=100)
    same((r.choices[0].message.content, r.choices[0].finish_reason), (ASIDE, "stop"))
    usage_is_right(r.usage.prompt_tokens, r.usage.completion_tokens, r.usage.total_tokens)
    chunks = list(oai.chat.completions.create(model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": True}))
    same("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), ASIDE)
    usage_is_right(chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens)
    assert not any(c.usage for c in oai.chat.completions.create(model=MODEL, messages=ASK, stream=True)), "usage that nobody asked for"


def chat_tools():
    tools = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": SCHEMA}}]

    def stream(**k):
        with oai.chat.completions.stream(**k) as s:
            for _ in s:
                pass
            return s.get_final_completion()

    for create in (oai.chat.completions.create, stream):
        messages = list(ASK)
        one = create(model=MODEL, messages=messages, tools=tools, parallel_tool_calls=True).choices[0]
        same((one.finish_reason, one.message.content), ("tool_calls", "I add."))
        same([(c.type, c.function.name, json.loads(c.function.arguments)) for c in one.message.tool_calls], [("function", "add", a) for a in ARGUMENTS])
        ids = [c.id for c in one.message.tool_calls]
        assert all(ids) and ids[0] != ids[1], ids
        messages.append({"role": "assistant", "content": one.message.content, "tool_calls": [
            {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}} for c in one.message.tool_calls]})
        messages += [{"role": "tool", "tool_call_id": c.id, "content": str(sum(json.loads(c.function.arguments).values()))} for c in one.message.tool_calls]
        two = create(model=MODEL, messages=messages, tools=tools).choices[0]
        same((two.finish_reason, two.message.content, two.message.tool_calls or None), ("stop", SUM, None))


def completions():
    r = oai.completions.create(model=MODEL, prompt="1 + 2 is", max_tokens=100)
    same((r.choices[0].text, r.choices[0].finish_reason, r.object), (ASIDE, "stop", "text_completion"))
    usage_is_right(r.usage.prompt_tokens, r.usage.completion_tokens, r.usage.total_tokens)
    same("".join(c.choices[0].text for c in oai.completions.create(model=MODEL, prompt="1 + 2 is", max_tokens=100, stream=True) if c.choices), ASIDE)


def responses():
    r = oai.responses.create(model=MODEL, instructions="Add.", input="1 + 2?", max_output_tokens=100)
    same((r.output_text, r.status), (ASIDE, "completed"))
    usage_is_right(r.usage.input_tokens, r.usage.output_tokens, r.usage.total_tokens)
    tools = [{"type": "function", "name": "add", "description": "adds", "parameters": SCHEMA, "strict": False}]

    def stream(**k):
        with oai.responses.stream(**k) as s:
            for _ in s:
                pass
            return s.get_final_response()

    same(stream(model=MODEL, input="1 + 2?").output_text, ASIDE)
    for create in (oai.responses.create, stream):
        history = [{"role": "user", "content": "1 + 2, and 3 + 1?"}]
        one = create(model=MODEL, instructions="Add.", input=history, tools=tools, parallel_tool_calls=True, store=False)
        calls = [o for o in one.output if o.type == "function_call"]
        same((one.output_text, one.status, [(c.name, json.loads(c.arguments)) for c in calls]), ("I add.", "completed", [("add", a) for a in ARGUMENTS]))
        assert calls[0].call_id and calls[0].call_id != calls[1].call_id, calls
        history += [o.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for o in one.output]
        history += [{"type": "function_call_output", "call_id": c.call_id, "output": str(sum(json.loads(c.arguments).values()))} for c in calls]
        two = create(model=MODEL, instructions="Add.", input=history, tools=tools, store=False)
        same((two.output_text, [o.type for o in two.output]), (SUM, ["message"]))


def messages():
    ask = dict(model=MODEL, max_tokens=200, system="Add.", messages=[{"role": "user", "content": "1 + 2?"}])
    r = claude.messages.create(**ask)
    same((r.content[0].type, r.content[0].text, r.stop_reason, r.model), ("text", ASIDE, "end_turn", MODEL))
    usage_is_right(r.usage.input_tokens, r.usage.output_tokens)
    tools = [{"name": "add", "description": "adds", "input_schema": SCHEMA}]

    def stream(**k):
        with claude.messages.stream(**k) as s:
            for _ in s:
                pass
            return s.get_final_message()

    s = stream(**ask)
    same((s.content[0].text, s.stop_reason), (ASIDE, "end_turn"))
    usage_is_right(s.usage.input_tokens, s.usage.output_tokens)
    for create in (claude.messages.create, stream):
        history = list(ask["messages"])
        one = create(**{**ask, "messages": history}, tools=tools)
        same(([b.type for b in one.content], one.stop_reason, one.content[0].text), (["text", "tool_use", "tool_use"], "tool_use", "I add."))
        same([(b.name, b.input) for b in one.content[1:]], [("add", a) for a in ARGUMENTS])
        assert one.content[1].id and one.content[1].id != one.content[2].id, one.content
        history += [{"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in one.content]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": b.id, "content": str(sum(b.input.values()))} for b in one.content[1:]]}]
        two = create(**{**ask, "messages": history}, tools=tools)
        same(([b.type for b in two.content], two.stop_reason, two.content[0].text), (["text"], "end_turn", SUM))


def count_tokens():
    short = claude.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "1 + 2?"}])
    long = claude.messages.count_tokens(model=MODEL, system="Add.", messages=[{"role": "user", "content": "1 + 2? " * 10}],
                                        tools=[{"name": "add", "input_schema": SCHEMA}])
    assert 3 < short.input_tokens < long.input_tokens, (short, long)
    said = claude.messages.create(model=MODEL, max_tokens=100, messages=[{"role": "user", "content": "1 + 2?"}])
    same(said.usage.input_tokens, short.input_tokens)


def models():
    ids = [m.id for m in oai.models.list()]
    assert ids, "no model is listed"
    same(oai.models.retrieve(ids[0]).id, ids[0])
    same([m.id for m in claude.models.list()], ids)
    same(claude.models.list().data[0].type, "model")


def errors():
    """What can't be done is a clear 400 in the API's own shape; a wrong key is a 401."""
    calls = [
        (openai, lambda c: c.chat.completions.create(model=MODEL, messages=ASK, n=2)),
        (openai, lambda c: c.chat.completions.create(model=MODEL, messages="no list")),
        (openai, lambda c: c.responses.create(model=MODEL, input="x", previous_response_id="resp_unknown")),
        (anthropic, lambda c: c.messages.create(model=MODEL, max_tokens=5, messages=[{"role": "user", "content": 5}])),
    ]
    for sdk, call in calls:
        try:
            call(oai if sdk is openai else claude)
            raise AssertionError("an error was expected")
        except sdk.BadRequestError as e:
            body = e.body if sdk is openai else e.body["error"]
            assert body["type"] in ("invalid_request_error", "BadRequestError") and len(body["message"]) > 10, body  # the second is the upstream's
    wrong = [(openai, openai.OpenAI(base_url=GATEWAY + "/openai/v1", api_key="wrong", max_retries=0)),
             (anthropic, anthropic.Anthropic(base_url=GATEWAY + "/anthropic", api_key="wrong", max_retries=0))]
    for sdk, client in wrong:
        try:
            (calls[0] if sdk is openai else calls[3])[1](client)
            raise AssertionError("a wrong key was taken")
        except sdk.AuthenticationError as e:
            assert e.status_code == 401


if __name__ == "__main__":
    failed = False
    for name in sys.argv[1].split():
        try:
            globals()[name]()
            print("ok:", name, flush=True)
        except Exception as e:  # every part is tried
            failed = True
            import traceback
            traceback.print_exc()
            print("failed:", name, repr(e), flush=True)
    sys.exit(failed)
