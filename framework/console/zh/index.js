/** All Chinese texts, by their English text. Texts that several areas use are in core.js. */

import agents from "./agents.js";
import approvals from "./approvals.js";
import chat from "./chat.js";
import config from "./config.js";
import core from "./core.js";
import editor from "./editor.js";
import fleet from "./fleet.js";
import memory from "./memory.js";
import runs from "./runs.js";
import shell from "./shell.js";
import usage from "./usage.js";

const pages = { ...chat, ...approvals, ...runs, ...agents, ...config, ...editor, ...fleet, ...memory, ...usage };

export default { ...core, ...shell, ...pages };
