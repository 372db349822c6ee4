// Talks to the server at the given address with OpenAI's own client, and prints what came back as one line of JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const question = { role: "user", content: "hello" };
const asked = { model: "tiny", max_tokens: 2 };

async function statusOf(call) {
  try {
    await call();
    return { status: 200 };
  } catch (error) {
    return { status: error.status, param: error.param, message: error.message };
  }
}

const answerTo = async (messages) => {
  const answer = await client.chat.completions.create({ ...asked, messages });
  return answer.choices[0].message;
};

const message = await answerTo([question]);
const again = await answerTo([question, message, question]);
const runner = client.chat.completions.stream({ ...asked, messages: [question] });
const streamed = await runner.finalMessage();
const afterStream = await answerTo([question, streamed, question]);

const events = [];
const stream = await client.chat.completions.create({
  ...asked,
  messages: [question],
  stream: true,
  stream_options: { include_usage: true },
});
for await (const event of stream) events.push(event);

const completion = await client.completions.create({ ...asked, prompt: "abc" });
const models = await client.models.list();

const refused = {
  refusal: await statusOf(() => answerTo([question, { ...message, refusal: "no" }])),
  image: await statusOf(() =>
    answerTo([{ role: "user", content: [{ type: "image_url", image_url: { url: "data:image/png;base64,AA" } }] }]),
  ),
  stops: await statusOf(() =>
    client.completions.create({ ...asked, prompt: "abc", stop: ["a", "b", "c", "d", "e"] }),
  ),
  model: await statusOf(() => client.completions.create({ ...asked, prompt: "abc", model: "large" })),
  embeddings: await statusOf(() => client.embeddings.create({ model: "tiny", input: "abc" })),
};

console.log(
  JSON.stringify({
    roles: [message, again, streamed, afterStream].map(({ role }) => role),
    usage: events.at(-1).usage,
    finish: events.flatMap(({ choices }) => choices.map((choice) => choice.finish_reason)).filter(Boolean),
    completion,
    models: models.data.map(({ id }) => id),
    refused,
  }),
);
