// Uses an agent with the AI SDK. Argument: the base URL. Prints one JSON object with what each call returned.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, isStepCount, jsonSchema, Output, streamText, tool } from "ai";

globalThis.AI_SDK_LOG_WARNINGS = false;
const baseURL = process.argv[2];
const openai = createOpenAI({ baseURL, apiKey: "none" });
const compatible = createOpenAICompatible({ name: "agentsd", baseURL, supportsStructuredOutputs: true });
const plain = createOpenAICompatible({ name: "agentsd", baseURL }); // asks for a JSON object, whatever the schema
const models = { responses: openai("one"), chat: openai.chat("one"), compatible: compatible("one") };
const city = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

async function whole(model) {
  const { text, finishReason, usage, toolCalls } = await generateText({ model, prompt: "what time is it?" });
  return { text, finishReason, tokens: usage.totalTokens, toolCalls };
}

async function streamed(model, headers = {}) {
  const result = streamText({ model, prompt: "what time is it?", headers, onError() {} });
  const seen = { text: "", reasoning: "", pieces: 0, finishReason: null, errors: [] };
  for await (const part of result.fullStream) {
    if (part.type === "text-delta") {
      seen.text += part.text;
      seen.pieces += 1;
    }
    if (part.type === "reasoning-delta") seen.reasoning += part.text;
    if (part.type === "finish") seen.finishReason = part.finishReason;
    if (part.type === "error") seen.errors.push(String(part.error?.message ?? part.error));
    if (part.type.startsWith("tool")) seen.errors.push(part.type);
  }
  return seen;
}

async function structured(model) {
  const { output } = await generateText({
    model,
    prompt: "which city?",
    output: Output.object({ schema: jsonSchema(city) }),
  });
  return output;
}

const tools = { city: tool({ description: "Shows a city.", inputSchema: jsonSchema(city) }) };

async function withTools(model) {
  const { text, finishReason, response } = await generateText({ model, tools, prompt: "what time is it?" });
  return { text, finishReason, ignored: response.headers["x-agentsd-ignored"] };
}

/** The call of a tool that must be called, whole and streamed, and the answer to a conversation with its result. */
async function called(model, providerOptions) {
  const request = { model, tools, prompt: "which city?", toolChoice: "required", providerOptions };
  const first = await generateText(request);
  const streamed = streamText({ ...request, toolChoice: { type: "tool", toolName: "city" } });
  const [call] = first.toolCalls;
  const output = { type: "text", value: "shown" };
  const result = { type: "tool-result", toolCallId: call.toolCallId, toolName: "city", output };
  const messages = [
    { role: "user", content: "which city?" },
    ...(first.responseMessages ?? first.response.messages),
    { role: "tool", content: [result] },
  ];
  return {
    whole: [call.toolName, call.input, first.finishReason],
    streamed: [(await streamed.toolCalls)[0].input, await streamed.finishReason],
    afterwards: (await generateText({ model, messages, providerOptions })).text,
  };
}

async function conversation(model, providerOptions) {
  const first = await generateText({ model, prompt: "hello", providerOptions });
  const messages = [{ role: "user", content: "hello" }, ...first.responseMessages ?? first.response.messages];
  messages.push({ role: "user", content: "what time is it?" });
  return (await generateText({ model, messages, providerOptions })).text;
}

const own = { shown: tool({ inputSchema: jsonSchema(city), execute: ({ city }) => `${city} shown` }) };

/** Tools that the SDK executes, whole and streamed, and an object of an agent that allows them. */
async function roundTrip(model, providerOptions) {
  const request = { model, tools: own, prompt: "use yours", stopWhen: isStepCount(5), providerOptions };
  const first = await generateText(request);
  const streamed = streamText(request);
  return {
    whole: [first.text, first.steps.map((step) => step.finishReason)],
    streamed: await streamed.text,
    object: (await generateObject({ model, prompt: "which city?", schema: jsonSchema(city), providerOptions })).object,
  };
}

async function failure(model) {
  try {
    await generateText({ model, prompt: "fail" });
  } catch (error) {
    const last = error.lastError ?? error;
    return { name: last.name, status: last.statusCode, body: last.responseBody };
  }
}

const allowing = { responses: openai("two"), chat: openai.chat("two"), compatible: compatible("two") };
const found = {};
for (const [name, model] of Object.entries(models)) {
  found[name] = {
    whole: await whole(model),
    streamed: await streamed(model),
    events: await streamed(model, { "X-Agentsd-Events": "1" }),
    structured: await structured(model),
    failure: await failure(model),
    conversation: await conversation(model, { openai: { store: false } }),
    tools: await withTools(model),
    called: await called(model, { openai: { store: false } }),
    roundTrip: await roundTrip(allowing[name], { openai: { store: false } }),
  };
}
found.stored = await roundTrip(allowing.responses, {});
found.plain = await structured(plain("one"));
console.log(JSON.stringify(found));
