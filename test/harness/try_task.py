"""An agent that asks once by each API, by nothing but the usual variables."""

import os

import anthropic
import openai

model, ask = os.environ["OPENAI_MODEL"], [{"role": "user", "content": "Say a title."}]
oai, claude = openai.OpenAI(max_retries=0), anthropic.Anthropic(max_retries=0)
print(oai.chat.completions.create(model=model, messages=ask).choices[0].message.content)
print(oai.responses.create(model=model, input="Say a title.").output_text)
print(claude.messages.create(model=os.environ["ANTHROPIC_MODEL"], max_tokens=100, messages=ask).content[0].text)
with claude.messages.stream(model=model, max_tokens=100, messages=ask) as s:
    print("".join(s.text_stream))
