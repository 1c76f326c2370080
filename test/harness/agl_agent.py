"""An agent as Agent Lightning v1 has them: it reads the AGL_ variables alone,
asks the model through OpenAI's SDK, and posts its own reward."""

import json
import os
import urllib.request

import openai

client = openai.OpenAI(base_url=os.environ["AGL_OPENAI_BASE_URL"], api_key=os.environ["AGL_KEY"])
answer = client.chat.completions.create(
    model="any",
    messages=[
        {"role": "system", "content": "Use the tool, then say Answer: N"},
        {"role": "user", "content": os.environ["QUESTION"]},
    ],
    max_tokens=48,
)
event = {"event_type": "reward", "data": {"value": 0.5 if answer.choices[0].message.content else 0.25}}
request = urllib.request.Request(
    os.environ["AGL_EVENT_URL"],
    data=json.dumps(event).encode(),
    headers={"authorization": "Bearer " + os.environ["AGL_KEY"], "content-type": "application/json"},
)
urllib.request.urlopen(request, timeout=30).read()
