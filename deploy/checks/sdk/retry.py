"""Sends one chat completion with the Python client as it comes, and prints what retry.go prints."""

import json
import sys

import openai

statuses = []
client = openai.OpenAI(
    base_url=sys.argv[1],
    api_key="none",
    timeout=60,
    http_client=openai.DefaultHttpxClient(
        event_hooks={"response": [lambda response: statuses.append(response.status_code)]}
    ),
)
result = {"statuses": statuses, "text": "", "error": ""}
try:
    answer = client.chat.completions.create(
        model="sim-model", max_tokens=5, messages=[{"role": "user", "content": "Are you free?"}]
    )
    result["text"] = answer.choices[0].message.content
except openai.OpenAIError as error:
    result["error"] = str(error)
print(json.dumps(result))
