// Sends one chat completion with the npm client as it comes, and prints what retry.go prints.
import OpenAI from "openai";

const statuses = [];
const client = new OpenAI({
  baseURL: process.argv[2],
  apiKey: "none",
  timeout: 60_000,
  fetch: async (url, init) => {
    const response = await fetch(url, init);
    statuses.push(response.status);
    return response;
  },
});
const result = { statuses, text: "", error: "" };
try {
  const answer = await client.chat.completions.create({
    model: "sim-model",
    max_tokens: 5,
    messages: [{ role: "user", content: "Are you free?" }],
  });
  result.text = answer.choices[0].message.content;
} catch (error) {
  result.error = String(error);
}
console.log(JSON.stringify(result));
