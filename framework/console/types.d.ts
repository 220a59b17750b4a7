/** JSON of the API, as `GET /agent/openapi.json` describes it. */

export interface Problem {
  severity: "error" | "warning";
  path: string;
  line?: number;
  column?: number;
  message: string;
  hint?: string;
  /** Source line that contains the problem. */
  excerpt?: string;
  fix?: { written: string; instead: string };
}

export interface Change {
  agent: string;
  key: string;
  file_key?: string;
  before?: unknown;
  after?: unknown;
  effect: "widens" | "tightens" | "neutral";
}

export interface NoteDetail {
  id: string;
  text: string;
  scope: "agent" | "user" | "tenant";
  user: string | null;
  tenant: string | null;
  agent: string;
  run_id: string;
  conversation_id: string | null;
  untrusted: boolean;
  created_at: string;
  used_at: string;
  expires_at: string | null;
}

export interface Me {
  name: string;
  user: string | null;
  tenant: string | null;
  roles: string[];
  agents: string[] | null;
  limits: { rate: string | null; max_running: number | null };
  server: { version: string; allow_edit: boolean; stored: boolean };
}

export interface FleetProcess {
  name: string;
  alive: boolean;
  started_at: string;
  seen_at: string;
  kind: string;
  version: string;
  host: string;
  pid: number;
  works: boolean;
  running: number;
  capacity: number;
  begun_per_second: number;
  generation: number;
  problems: number;
  queues: string[] | null;
  only_agents: string[] | null;
  agents: Record<string, string>;
}

export interface WaitingRuns {
  queue: string | null;
  agent: string | null;
  count: number;
  oldest_seconds: number;
  reason: string;
  limit: string | null;
}

export interface HandedOnRun {
  run_id: string;
  reasons: Record<string, string>;
}

export interface TriggerReport {
  name: string;
  description: string;
  path: string;
  stale: boolean;
  agent: string;
  user: string;
  tenant: string | null;
  kind: "cron" | "webhook";
  when: string;
  cron: string | null;
  timezone: string | null;
  missed: string | null;
  overlap: string;
  next_at: string | null;
  last_at: string | null;
  last_run: string | null;
  note: string | null;
  paused_at: string | null;
  paused_by: string | null;
}

export interface Fleet {
  processes: FleetProcess[];
  waiting: WaitingRuns[];
  handed_on: HandedOnRun[];
  /** Number of live processes with each digest of an agent. */
  digests: Record<string, Record<string, number>>;
  paused: number;
  running: number;
}

export interface LiveConfig {
  generation: number;
  digest: string;
  environment?: string | null;
  at: string;
  trigger: string;
  /** Whether the files are ignored because of a rollback, until they change again. */
  held: boolean;
  hold?: { generation: number; digest: string; at: string } | null;
  agents: string[];
  stale: string[];
  problems: Problem[];
}

export type ConfigEvent =
  | { event: "config_reloaded"; generation: number; digest: string; added?: string[]; changed?: string[]; removed?: string[]; changes?: Change[]; problems?: Problem[] }
  | { event: "config_rejected"; generation: number; problems: Problem[] };

export interface Confirmation {
  id: string;
  kind: "tool" | "plan" | "question" | "ask_user" | "step" | "elicitation" | "client_tool" | "login";
  agent: string;
  tool: string;
  call_id?: string | null;
  idempotency_key?: string | null;
  description: string;
  arguments: Record<string, unknown>;
  /** What the call would change, such as a unified diff; absent in runs of older versions. */
  preview?: string;
  plan?: Plan | null;
  preflight?: Preflight | null;
  hash: string;
  reason: string;
  rule: string;
  risk: "low" | "medium" | "high" | "critical";
  choices: string[];
  /** JSON Schema of the values that answer it. */
  form?: Record<string, any> | null;
  /** Address that the person visits before they approve. */
  url?: string;
  expires_at?: string | null;
  on_expiry: "reject" | "cancel";
  /** How its approval can be remembered. */
  remember?: RememberOffer | null;
}

export interface PendingConfirmation extends Confirmation {
  /** JSON Schema of the arguments by tool. */
  schemas?: Record<string, Record<string, any>>;
}

export interface PlanStep {
  id: string;
  description: string;
  tool: string | null;
  parameters: Record<string, unknown>;
  tools: string[] | null;
  depends_on: string[];
  expected: string;
  status: "open" | "running" | "done" | "failed" | "skipped";
  result: string | null;
  revision: number;
  contract: string;
  approved: boolean;
  settled: boolean;
  abandoned: boolean;
  replaced: boolean;
  bypassed: boolean;
  /** Conditions of a fixed plan, by what they are about. */
  when?: Record<string, string | number | boolean>;
  /** The list of a loop; empty without one. */
  for_each?: string;
  max_items?: number;
}

export interface Plan {
  revision: number;
  goal: string;
  steps: PlanStep[];
  replans: number;
  must_be_approved: boolean;
  /** `file:line` of a fixed plan; empty if the model wrote it. */
  source: string;
  answer: string;
  answer_goal: string;
  envelope: unknown;
}

export interface StepCheck {
  id: string;
  verdict: "allow" | "ask" | "deny" | "open";
  rule: string;
  risk: string;
  waits_for: string[];
  findings: string[];
  risks: string[];
}

export interface Preflight {
  steps: StepCheck[];
  findings: string[];
  estimate: { tool_calls: number; model_calls: number; tokens: number; cost_usd: number | null };
}

export interface Remember {
  width: string;
  for: string;
  ttl?: string | number | null;
  when?: Record<string, string[]> | null;
  at_most?: string | null;
}

export interface RememberOffer {
  widths: { width: string; when: Record<string, (string | number | boolean)[]> }[];
  scopes: string[];
  /** In seconds. */
  max_ttl: number;
  agent: string;
  contract: string;
  files: Record<string, string>;
  sources: Record<string, string>;
  names: string[];
  digest: string;
}

export type Decision =
  | { type: "approve"; remember?: Remember }
  | { type: "edit"; arguments: Record<string, unknown> }
  | { type: "reject"; reason: string }
  | { type: "respond"; text: string; values?: undefined }
  | { type: "respond"; text?: ""; values: Record<string, unknown> };

export interface MadeDecision {
  run_id: string;
  confirmation_id: string;
  decision: Decision;
  by: string | null;
  at: string;
}

export interface DecidedConfirmation {
  run_id: string;
  agent: string;
  generation: number;
  conversation_id: string | null;
  user: string | null;
  tenant: string | null;
  message: string;
  status: string;
  decision: Decision;
  by: string | null;
  at: string;
  expired: boolean;
  confirmation: Confirmation | null;
}

export interface PendingRun {
  run_id: string;
  agent: string;
  generation: number;
  digest: string;
  conversation_id: string | null;
  user: string | null;
  tenant: string | null;
  message: string;
  paused_at: string | null;
  pending: PendingConfirmation[];
}


export interface AgentSummary {
  name: string;
  description: string;
  path: string;
  model: string;
  executor: string;
  tools: number;
  stale: boolean;
}

export interface AgentList {
  generation: number;
  agents: AgentSummary[];
  next: string | null;
}

export type Verdict = "allow" | "ask" | "deny";

export interface PolicyCondition {
  verdict: Verdict;
  when: string;
  condition: string;
  rule: string;
  place: string;
  reason: string;
}

export interface ToolPolicy {
  tool: string;
  offered: boolean;
  deferred: boolean;
  verdict: Verdict;
  rule: string;
  place: string;
  reason: string;
  conditions: PolicyCondition[];
  risk: string;
  tokens: number;
}

export interface SkillUse {
  name: string;
  use: "load" | "preload" | "deny";
  rule: string;
  place: string;
  reason: string;
  description: string;
  path: string;
  digest: string;
  files: number;
  tokens: number;
  asks_for: string[];
  license: string;
  compatibility: string;
}

export interface AgentBudget {
  name: string;
  limits?: string;
  places: string[];
}

export interface AgentPolicy {
  agent: string;
  path: string;
  model: string;
  executor: string;
  stale: string[];
  tools: ToolPolicy[];
  tools_tokens: number;
  skills: SkillUse[];
  not_contacted: string[];
  unavailable: string[];
  budgets: AgentBudget[];
  limits: Record<string, any>;
  hooks: Record<string, string[]>;
}

export interface InputSpec {
  type: "string" | "integer" | "number" | "boolean" | "array" | "object";
  required: boolean;
  default?: unknown;
  description: string;
}

export interface PromptVariable {
  name: string;
  origin: "input" | "vars" | "runtime";
}

export interface AgentPrompt {
  template?: string;
  path: string;
  locales: string[];
  source: string;
  variables: PromptVariable[];
  rendered?: string;
  tokens?: number;
  problem?: string;
  details?: Problem;
}

export interface AgentRouting {
  priority: number;
  keywords: string[];
  patterns: string[];
  examples: string[];
  model?: string;
  is_default: boolean;
}

export interface AgentDetail {
  generation: number;
  digest: string;
  name: string;
  description: string;
  policy: AgentPolicy;
  fallback_models: string[];
  model_settings: Record<string, unknown>;
  plan: Record<string, any>;
  routing: AgentRouting;
  sub_agents: string[];
  handoffs: string[];
  inputs: Record<string, InputSpec>;
  prompt: AgentPrompt;
  files: string[];
  /** `file:line` of the keys that the file contains. */
  places: Record<string, string>;
  file_keys: Record<string, string>;
  problems: Problem[];
}

export interface FileChange {
  path: string;
  before?: string;
  after?: string;
  too_large: boolean;
}

export interface AgentVersion {
  generation: number;
  at: string;
  trigger: string;
  live: boolean;
  stale: boolean;
  changes: Change[];
  files: FileChange[];
}

export interface AgentHistory {
  agent: string;
  versions: AgentVersion[];
  next: string | null;
}

export interface Suggestion {
  kind: "narrow" | "deny" | "unused" | "kept";
  agent: string;
  path: string;
  /** `file:line` of the rule. */
  place: string;
  rule: string;
  tool: string;
  asked: number;
  approved: number;
  rejected: number;
  expired: number;
  people: number;
  covers: number;
  /** What the approved calls have in common, by argument. */
  when: Record<string, string>;
  becomes: string[];
  /** Why no rule can be proposed, if the kind is `kept`. */
  obstacle: "pattern" | "tool" | "max_risk" | "risk" | "later" | "values" | "file" | null;
  summary: string;
}

export interface CaseResult {
  agent: string;
  name: string;
  at: string | null;
  source: "test" | "gate" | "runs";
  digest: string;
  model: string | null;
  attempts: number;
  passed: number;
  unknown: number;
  cost_usd: number | null;
  elapsed_ms: number;
  failure: string;
  run_id: string | null;
}

export interface CaseHistory {
  /** Empty for stored runs that were scored. */
  name: string;
  attempts: number;
  passed: number;
  low: number;
  high: number;
  results: CaseResult[];
}

export interface GrantEntry {
  id: string;
  agent: string;
  tool: string;
  covers: string;
  width: "call" | "arguments" | "tool";
  when: Record<string, (string | number | boolean)[]>;
  arguments: Record<string, unknown>;
  scope: "run" | "conversation" | "user";
  scope_id: string;
  tenant: string | null;
  user: string | null;
  at_most: string | null;
  rule: string;
  run_id: string;
  by: string | null;
  created_at: string;
  expires_at: string;
  revoked_at: string | null;
  revoked_by: string | null;
  uses: number;
  last_used_at: string | null;
  state: "active" | "expired" | "revoked" | "void";
  reason: string | null;
}

export interface AgentSuggestions {
  agent: string;
  path: string;
  suggestions: Suggestion[];
  /** All edits as a unified diff; empty without any. */
  diff: string;
  digest: string;
}

export type RunStatus = "queued" | "running" | "paused" | "completed" | "stopped" | "failed" | "cancelled";

export interface RunSummary {
  run_id: string;
  status: RunStatus;
  finish_reason: string;
  agent: string;
  generation: number;
  digest: string;
  /** The beginning of the user's message. */
  message: string;
  created_at: string;
  updated_at: string;
  conversation_id: string | null;
  turn: number;
  user: string | null;
  tenant: string | null;
  trace_id: string | null;
  steps: number;
  tokens: number;
  /** Null if unknown. */
  cost_usd: number | null;
  /** Active time, without the time it waited for a person. */
  elapsed_ms: number;
  expires_at: string | null;
  orphaned: boolean;
  priority: number;
  /** Until it begins or continues: `conversation`, `capacity`, `handed_on` or a limit. */
  waits_for: string | null;
  rating: Rating | null;
  /** The run that it is a copy of, as a turn of a forked conversation. */
  copied_from: string | null;
}

/** A person's rating of the answer of a run. */
export interface Rating {
  value: "up" | "down";
  comment: string;
  by: string | null;
  at: string;
}

export interface TokenUsage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  cached_tokens: number;
  cost_usd: number | null;
}

export interface ChatMessage {
  role: "system" | "user" | "assistant" | "tool";
  content: string;
  tool_calls: { id: string; tool: string; arguments: Record<string, unknown> }[];
  tool_call_id: string | null;
  reasoning: { text: string } | null;
  status: string | null;
  parts: { type: string; media_type?: string; text?: string; name?: string | null }[];
}

export interface TraceEntry {
  step: number;
  agent: string;
  call_id: string;
  thought: string;
  action: { type: "tool" | "final"; tool: string | null; args: Record<string, unknown> | null };
  observation: string | null;
  tool_output: unknown;
  elapsed_ms: number;
  /** When the call ended. */
  timestamp: string;
  error: string | null;
  repairs: string[];
}

export interface Decided {
  confirmation_id: string;
  decision: Decision;
  by: string | null;
  at: string;
}

export interface RunDetail {
  /** Number of its last event. */
  seq: number;
  run_id: string;
  status: RunStatus;
  finish_reason: string;
  output: string;
  data: unknown;
  plan: unknown;
  messages: ChatMessage[];
  /** Messages at the beginning of `messages` that are from earlier turns. */
  earlier_messages: number;
  steps: number;
  tool_calls: unknown[];
  tool_stats: Record<string, { count: number; total_ms: number }>;
  usage: TokenUsage;
  agent: string;
  generation: number;
  digest: string;
  conversation_id: string | null;
  trace_id: string | null;
  trace: TraceEntry[];
  pending: PendingConfirmation[];
  error: { code: string; message: string; retryable: boolean } | null;
  stopped_by: { limit: string; used: number; allowed: number; place: string } | null;
  truncated: boolean;
  incomplete: { id: string; description: string; status: "failed" | "skipped"; reason: string }[];
  warnings: { code: string; message: string }[];
  elapsed_ms: number;
  user: string | null;
  tenant: string | null;
  created_at: string;
  updated_at: string;
  paused_at: string | null;
  orphaned: boolean;
  priority: number;
  waits_for: string | null;
  executor: string;
  limits: Record<string, number | null>;
  decisions: Decided[];
  rating: Rating | null;
  /** The run that it is a copy of, as a turn of a forked conversation. */
  copied_from: string | null;
}

/** A finished span; times are Unix nanoseconds, as exact as a number is. */
export interface Span {
  name: string;
  span_id: string;
  parent_id: string | null;
  start_ns: number;
  end_ns: number;
  attributes: Record<string, any>;
  error: string | null;
  events: { name: string; at_ns: number; attributes: Record<string, any> }[];
}

export interface RunFile {
  path: string;
  kind: "agent" | "template";
  change: "same" | "changed" | "removed" | "added";
  text?: string;
  live?: string;
}

export interface RunFiles {
  run_id: string;
  generation: number;
  digest: string;
  live_generation: number;
  live_digest: string;
  stored: boolean;
  files: RunFile[];
}

export interface ReplayResult {
  run_id: string;
  generation: number;
  digest: string;
  differences: { what: string; subject: string; before: string; after: string }[];
}

export interface ShownStep {
  id: string;
  description: string;
  tool?: string | null;
  parameters: Record<string, unknown>;
  depends_on: string[];
  status: "open" | "running" | "done" | "failed" | "skipped";
  result?: string | null;
  when?: Record<string, string | number | boolean>;
  for_each?: string;
  max_items?: number;
  /** Revision that added the step, if it is not the first. */
  added?: number;
  /** Revision that took the step away. */
  removed?: number;
}

/** One thing that a run shows; which fields there are depends on `kind`. */
export interface RunItem {
  /** Unique in the run, and the same in every session. */
  key: string;
  kind: "thought" | "text" | "call" | "sub" | "plan" | "notice" | "ask" | string;
  /** Id of the message, call, step or confirmation. */
  id: string;
  path: string[];
  /** Number of the first event about it; 0 while a text is in progress. */
  seq: number;
  text?: string;
  /** Whether the text is about to arrive again. */
  stale?: boolean;
  tool?: string;
  arguments?: Record<string, unknown>;
  /** Of a call: pending, running, waiting, success, error, denied, cancelled. Of a question: open, decided. */
  status?: string;
  progress?: number;
  message?: string;
  result?: string;
  error?: string;
  ms?: number;
  /** Items of the sub-run that it began. */
  items?: RunItem[];
  code?: string;
  goal?: string;
  hash?: string;
  revision?: number;
  preflight?: any;
  steps?: ShownStep[];
  confirmation?: Confirmation;
}

export interface PastConfig {
  generation: number;
  digest: string;
  at: string;
  trigger: "startup" | "watch" | "api" | "rollback" | "source";
  live: boolean;
  changes: Change[];
  unusable: string[];
}

export interface GenerationDetail extends PastConfig {
  previous?: number;
  agents: string[];
  problems: Problem[];
  files: FileChange[];
  /** What a rollback to it would change now. */
  rollback: Change[];
}

export interface CheckedConfig {
  outcome: "applied" | "partial" | "rejected" | "unchanged";
  held: boolean;
  digest: string;
  agents: string[];
  changes: Change[];
  problems: Problem[];
}

export interface ProjectFile {
  path: string;
  kind: "agent" | "cases" | "template" | "plugin" | "sources" | "skill" | "settings";
  size: number;
  digest?: string;
  state: "live" | "changed" | "invalid" | "deleted";
  editable: boolean;
  reason?: string;
  agents: string[];
}

export interface FileContent extends ProjectFile {
  text?: string;
  live?: string;
  problems: Problem[];
  variables: { name: string; description: string; agents: string[] }[];
}

export interface AppliedEdit {
  path: string;
  digest: string;
  outcome: "applied" | "partial" | "rejected" | "unchanged" | "pending";
  generation: number;
  widens: boolean;
  changes: Change[];
  problems: Problem[];
}

/** Figures of some runs. Of a model: tokens, cost and steps are its own, the rest is that of the runs using it. */
export interface UsageFigures {
  runs: number;
  statuses: Record<string, number>;
  errors: Record<string, number>;
  tokens: { total: number; input: number; output: number; cached: number };
  /** Null if no price is known. */
  cost_usd: number | null;
  unknown_cost: number;
  steps: number;
  tool_calls: number;
  latency: { p50_ms: number | null; p95_ms: number | null };
}

export interface GroupFigures extends UsageFigures {
  key: string | null;
  generation: number | null;
  over_time: { runs: number[]; failed: number[]; tokens: number[]; cost_usd: (number | null)[] } | null;
}

export interface StepFigures extends UsageFigures {
  at: string;
}

/** `GET /agent/usage`. */
export interface UsageSummary {
  since: string;
  until: string;
  by: "agent" | "model" | "generation" | "user" | "status";
  step: "1h" | "3h" | "1d";
  total: UsageFigures;
  previous: UsageFigures;
  over_time: StepFigures[];
  groups: GroupFigures[];
  more_groups: number;
  generations: { generation: number; digest: string; at: string }[];
}
