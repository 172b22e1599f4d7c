// Sends the same chat completions as main.go with the npm client and prints the same lines.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const [base, cases] = process.argv.slice(2);

// recorder returns a fetch that keeps a copy of the body that the client reads.
function recorder(result) {
  const chunks = [];
  const recording = async (url, init) => {
    const response = await fetch(url, init);
    result.engine = response.headers.get("x-kvmesh-engine") ?? "";
    const copy = new TransformStream({
      transform(chunk, out) {
        chunks.push(Buffer.from(chunk));
        out.enqueue(chunk);
      },
    });
    return new Response(response.body.pipeThrough(copy), response);
  };
  return { recording, body: () => Buffer.concat(chunks).toString() };
}

function textOf(choices, usage) {
  const lines = choices.map((c) => `${c.index} ${c.finish_reason}: ${c.message.content}\n`);
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
  lines.push(`prompt ${usage?.prompt_tokens ?? 0} cached ${cached} completion ${usage?.completion_tokens ?? 0}\n`);
  return lines.join("");
}

async function streamed(client, body) {
  const choices = [];
  let usage;
  for await (const chunk of await client.chat.completions.create(body)) {
    usage = chunk.usage ?? usage;
    for (const c of chunk.choices) {
      const choice = (choices[c.index] ??= { index: c.index, message: { content: "" } });
      choice.message.content += c.delta.content ?? "";
      choice.finish_reason = c.finish_reason ?? choice.finish_reason;
    }
  }
  return textOf(choices, usage);
}

async function whole(client, body) {
  const answer = await client.chat.completions.create(body);
  return textOf(answer.choices, answer.usage);
}

for (const { name, body } of JSON.parse(readFileSync(cases, "utf8"))) {
  const result = { case: name, engine: "", body: "", text: "" };
  const record = recorder(result);
  const client = new OpenAI({ baseURL: base, apiKey: "none", maxRetries: 0, timeout: 60_000, fetch: record.recording });
  result.text = await (body.stream ? streamed(client, body) : whole(client, body));
  result.body = record.body();
  console.log(JSON.stringify(result));
}
