// Runs AG-UI's own client. Reads one JSON command per line, and prints one JSON line with what the client made of it:
// {"events": [...]} feeds a recorded stream to a client; {"url": ..., "thread": ..., "message"?, "resume"?, ...} runs
// an agent over HTTP. A client keeps its messages and state from command to command; a thread can have several clients,
// and each owner has clients of its own.
import { createInterface } from "node:readline";
import { AbstractAgent, HttpAgent } from "@ag-ui/client";
import { from } from "rxjs";

class Recorded extends AbstractAgent {
  run() {
    return from(this.recorded);
  }
}

const agents = new Map();
console.warn = () => {};
console.error = () => {};

function agentOf(command) {
  const name = `${command.owner}/${command.client ?? command.thread}`;
  const known = agents.get(name);
  if (known) return known;
  const options = { threadId: command.thread, headers: command.headers ?? {}, url: command.url };
  const agent = command.events ? new Recorded(options) : new HttpAgent(options);
  agents.set(name, agent);
  return agent;
}

async function execute(command) {
  const agent = agentOf(command);
  agent.recorded = command.events;
  if (command.message) agent.addMessage({ id: crypto.randomUUID(), role: "user", content: command.message });
  if (command.messages) agent.setMessages(command.messages);
  const seen = [];
  let error = null;
  const watcher = {
    onEvent({ event }) {
      seen.push(event);
      if (command.abortAt && event.type === command.abortAt) agent.abortRun();
    },
    onRunFailed({ error: failure }) {
      error = { message: failure.message, status: failure.status, payload: failure.payload };
    },
  };
  let result = null;
  try {
    ({ result } = await agent.runAgent({ runId: command.run, ...command.parameters }, watcher));
  } catch (failure) {
    error ??= { message: failure.message };
  }
  const { messages, state, pendingInterrupts } = agent;
  return { events: seen, result, error, messages, state, interrupts: pendingInterrupts };
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await execute(JSON.parse(line))) + "\n");
}
