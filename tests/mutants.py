"""The important lines, each with a change that breaks it and the test file that must notice: `make mutants`."""

from __future__ import annotations

import sys

from tests.support.mutants import Mutant, try_all

POLICY, BUDGET = "engine/context/policy", "engine/context/policy"
POLICY_TEST, BUDGET_TEST = "engine/context/test_policy", "engine/context/test_budget"
CALL, GATE = "engine/tool_call/call", "engine/tool_call/call"
JOURNAL, JOURNAL_TEST = "engine/context/events", "engine/context/test_journal"
HUB, HUB_TEST = "engine/context/events", "engine/context/test_event_hub"
STREAM, STREAM_TEST = "engine/context/events", "engine/context/test_stream"
LEDGER, LEDGER_TEST = "engine/context/policy", "engine/context/test_budget_ledger"
DEFERRED_TEST = "engine/tool_call/test_deferred_tools"
PINNING_TEST = "engine/context/test_pinning"
FILES_TEST, LOST_TEST = "engine/test_files", "llm/test_lost_connections"
WRITES_TEST, CANCEL_TEST = "store/test_writes", "engine/runtime/test_cancelling"
RECORD, STORE_TEST = "store/record", "store/test_protocol"
WAITING, WAITING_TEST = "store/queue", "store/test_queue"
CATALOG, CATALOG_TEST = "config/generations/catalog", "config/generations/test_catalog"
V1, V1_TEST = "server/openai_", "server/openai/test_exchange"
PREFLIGHT, PREFLIGHT_TEST = "engine/plan/planner", "engine/plan/test_preflight"
FILE_PLAN_TEST = "engine/plan/test_file_plan"
FOLLOW, FOLLOW_TEST = "engine/runtime/follow", "engine/runtime/test_follow"
QUEUE, SUBMIT_TEST = "engine/runtime/queue", "engine/runtime/test_submit"
PLACES = "engine/runtime/background"
WRITE = "            await self._record.write(self._state, events, spans, last=self._is_ending, uses=uses)\n"
EMIT = "            for event in events:\n                self._hub.put(event)\n"
WRITTEN = "            self._written = covered\n"

MUTANTS = (
    Mutant(POLICY, "return max(verdicts, key", "return min(verdicts, key", POLICY_TEST),
    Mutant(POLICY, "yield from self._withdrawals()", "yield from ()", POLICY_TEST),
    Mutant(POLICY, "            yield current, tool", "            pass", POLICY_TEST),
    Mutant(POLICY, "for parent in self.parents:", "for parent in ():", POLICY_TEST),
    Mutant(POLICY, "RISKS.index(tool.risk) > RISKS.index(ceiling)", "RISKS.index(tool.risk) < 0", POLICY_TEST),
    Mutant(POLICY, "if tool.name not in agent.toolset.offered and", "if False and", POLICY_TEST),
    Mutant(POLICY, "if tool.confirm:", "if False:", POLICY_TEST),
    Mutant("tools/toolset", "(name in searchable or name in on_demand)", "True", DEFERRED_TEST),
    Mutant("llm/client", "if tool.name != self.settings.tool_choice}", "}", "llm/test_anthropic"),
    Mutant(POLICY, "RISKS.index(tool.risk) >= RISKS.index(threshold)", "False", POLICY_TEST),
    Mutant(BUDGET, "budget.state.tool_calls >= limit:", "budget.state.tool_calls > limit:", BUDGET_TEST),
    Mutant(BUDGET, "count > limit:", "count > limit + 1:", BUDGET_TEST),
    Mutant(BUDGET, "self.state.corrections >= self.", "self.state.corrections > self.", BUDGET_TEST),
    Mutant(BUDGET, "used >= allowed:", "used > allowed:", BUDGET_TEST),
    Mutant(BUDGET, "used + expected > limit:", "used > limit:", "engine/model_call/test_turn"),
    Mutant(BUDGET, "any(budget.limits.max_total_tokens is not None", "any(False", "engine/model_call/test_turn"),
    Mutant(BUDGET, "return self, *self.above", "return (self,)", BUDGET_TEST),
    Mutant(BUDGET, "used >= _WARNING_SHARE * limit", "used > limit", BUDGET_TEST),
    Mutant(
        CALL,
        "    if record.result is not None:\n        return ()",
        "    if False:\n        return ()",
        "engine/runtime/test_crash",
    ),
    Mutant(
        GATE,
        "if len(seen := policy_views(tool, call.arguments, bound)) > 1:",
        "if len(seen := ()) > 1:",
        "tools/test_canonical",
    ),
    Mutant(
        GATE,
        "return record.started > 0 and not (tool.idempotent or is_known)",
        "return False",
        "engine/runtime/test_resume",
    ),
    Mutant(GATE, '(verdict.kind != "ask" and not in_doubt)', "not in_doubt", POLICY_TEST),
    Mutant(CALL, "if isinstance(evaluate_call(run, call, tool, Approve()), RefusedCall):", "if False:", PINNING_TEST),
    Mutant("tools/child_processes", "if code := await process.wait():", "if code := 0:", "tools/test_command_hooks"),
    Mutant(
        CALL,
        "if isinstance(ruling := evaluate_call(",
        "if None and isinstance(ruling := evaluate_call(",
        PINNING_TEST,
    ),
    Mutant(CALL, "seen_by_hooks = call\n            continue\n", "seen_by_hooks = call\n", PINNING_TEST),
    Mutant(CALL, "if new and not fitting:", "if False:", BUDGET_TEST),
    Mutant(
        CALL,
        "if refused := await results.before_tool(run, call):",
        "if refused := None:",
        "engine/tool_call/test_hooks",
    ),
    Mutant(CALL, "while fresh in used:", "while False:", "engine/tool_call/test_call_names"),
    Mutant(
        GATE,
        "if record.asked and record.asked != content_digest(",
        "if False and record.asked != content_digest(",
        "hostile/test_tools",
    ),
    Mutant(JOURNAL, WRITE + WRITTEN + EMIT, EMIT + WRITE + WRITTEN, JOURNAL_TEST),
    Mutant(JOURNAL, "self._outbox, self._spans, self._state.uncounted = events, spans, [*uses]", "pass", CANCEL_TEST),
    Mutant(JOURNAL, "self._timer.cancel()", "pass", JOURNAL_TEST),
    Mutant(JOURNAL, "            self._timer = None\n        self._writing", "        self._writing", WRITES_TEST),
    Mutant(RECORD, "batch.messages, batch.parts = earlier.messages, earlier.parts", "pass", CANCEL_TEST),
    Mutant(HUB, "if event.seq > self._after:", "if event.seq >= self._after:", HUB_TEST),
    Mutant(HUB, "last.message is message and last.kind is kind", "last.kind is kind", HUB_TEST),
    Mutant(HUB, "last.message is message and last.kind is kind", "last.message is message", HUB_TEST),
    Mutant(HUB, "                del self._in_progress[event.path]", "                pass", HUB_TEST),
    Mutant(HUB, "last.end = end", "pass", HUB_TEST),
    Mutant(HUB, "self._readers.discard(reader)\n        self._wake()", "self._readers.discard(reader)", HUB_TEST),
    Mutant(STREAM, "if delivered.startswith(event.text):", "if False:", STREAM_TEST),
    Mutant(STREAM, "chars = len(delivered) if", "chars = 0 if", STREAM_TEST),
    Mutant(JOURNAL, "(*self._hub.kept, *events)", "events", STREAM_TEST),
    Mutant("engine/context/run_context", "if not self.is_guarded:", "if True:", "engine/test_output_guard"),
    Mutant(
        "engine/model_call/turn",
        " and not run.is_guarded:\n        await run.emit(Con",
        ":\n        await run.emit(Con",
        "engine/test_output_guard",
    ),
    Mutant(JOURNAL, "if self.is_closing or self.lease_lost or self.is_scarce:", "if False:", JOURNAL_TEST),
    Mutant(
        JOURNAL,
        "self._is_ending or self._is_releasing or self.lease_lost",
        "self.lease_lost",
        JOURNAL_TEST,
    ),
    Mutant(JOURNAL, "if self._record.cancel_requested:", "if False:", "engine/runtime/test_cancelling"),
    Mutant(JOURNAL, "    root.seq += 1", "    root.seq += 0", JOURNAL_TEST),
    Mutant(RECORD, "if returned is None:", "if False:", STORE_TEST),
    Mutant("store/schema", "other.c.no < runs.c.no)", "other.c.no > runs.c.no)", WAITING_TEST),
    Mutant("store/schema", "for one in (earlier, opened)", "for one in (earlier,)", "store/test_offers"),
    Mutant(
        "store/processes",
        "connection.execute(select) if not _is_alive",
        "connection.execute(select) if _is_alive",
        WAITING_TEST,
    ),
    Mutant(
        "store/limits",
        '(has_status("queued"), runs.c.attempts + 1)',
        '(has_status("queued"), runs.c.attempts)',
        WAITING_TEST,
    ),
    Mutant(WAITING, 'has_status("queued"), runs.c.owner == lease)', 'has_status("queued"))', WAITING_TEST),
    Mutant(WAITING, "columns.created_at <= now", "columns.created_at > now", WAITING_TEST),
    Mutant("store/queue", "waiting >= MAX_WAITING_RUNS", "waiting > MAX_WAITING_RUNS", WAITING_TEST),
    Mutant("store/queue", "if earlier.digest != idempotency.digest:", "if False:", WAITING_TEST),
    Mutant("store/runs", "_CLAIM if is_queued else _CLAIM_UNQUEUED", "_CLAIM", WAITING_TEST),
    Mutant("store/conversations", "open_run.is_(None), ~waits)", "open_run.is_(None))", WAITING_TEST),
    Mutant("store/schema", "parts += [user] if tenant is not None", "parts += [] if tenant", "store/test_tenants"),
    Mutant(
        "store/schema",
        "                _add(connection, added)\n",
        "                pass\n",
        "store/test_migrations",
    ),
    Mutant(RECORD, "row is None or row[:3] != written", "row is None", "store/test_leases"),
    Mutant(RECORD, "self._version += 1", "self._version += 0", STORE_TEST),
    Mutant(RECORD, "statements.counters.add(connection, self.uses)", "pass", "engine/runtime/test_shared_budgets"),
    Mutant(LEDGER, "self.calls.get(path, call) is call and self._fits(call):", "True:", LEDGER_TEST),
    Mutant(LEDGER, "                if others and call.counters", "                if call.counters", LEDGER_TEST),
    Mutant("engine/model_call/retry", "failed.add(name)", "failed.discard(name)", "engine/model_call/test_retry"),
    Mutant("engine/model_call/retry", "request, messages=messages, media=media)", "request, media=media)", FILES_TEST),
    Mutant("llm/client", "if info.accepts(part) is False:", "if False:", FILES_TEST),
    Mutant(
        CATALOG,
        "if candidate.before is not self.current:\n                return self.current",
        "if False:\n                return self.current",
        CATALOG_TEST,
    ),
    Mutant(
        CATALOG,
        "external.digest) == self._rejected_digests:\n            self._last",
        "external.digest) == ():\n            self._last",
        CATALOG_TEST,
    ),
    Mutant(CATALOG, "if self._is_ignored(snapshot) and", "if False and", CATALOG_TEST),
    Mutant(CATALOG, "while lease.failed:", "while False:", "config/generations/test_leases"),
    Mutant(CATALOG, "        published.set()", "        pass", CATALOG_TEST),
    Mutant("types/plan", "done.issuperset(s.depends_on)]", "True]", "engine/plan/test_executor"),
    Mutant("engine/plan/executor", 'f"not done: {error.message}")', '"")', "engine/plan/test_failures"),
    Mutant(PREFLIGHT, 'if verdict.kind == "deny":', "if False:", PREFLIGHT_TEST),
    Mutant(PREFLIGHT, "elif name not in needed:", "elif False:", PREFLIGHT_TEST),
    Mutant(PREFLIGHT, "expected.tool_calls > limits.max_tool_calls - state.tool_calls:", "False:", PREFLIGHT_TEST),
    Mutant("engine/plan/step", "number > plan_settings(run).step_retries or", "False or", "engine/plan/test_step"),
    Mutant(
        "engine/plan/step",
        "step.approved and not referring_parameters(step)",
        "step.approved",
        "engine/plan/test_step",
    ),
    Mutant("engine/plan/step", "if len(values) > step.max_items:", "if False:", FILE_PLAN_TEST),
    Mutant("engine/plan/step", "    if doubt is not None:\n        raise doubt\n", "", FILE_PLAN_TEST),
    Mutant("engine/plan/executor", "if source := current_plan(run).source:", "if (source := ''):", FILE_PLAN_TEST),
    Mutant("engine/plan/planner", '"{" in text or "}" in text', "False", FILE_PLAN_TEST),
    Mutant(
        "config/agents/plan_steps",
        "if not rule.rule.at_most and rule_matches(",
        "if False and (",
        "config/agents/test_plan_steps",
    ),
    Mutant("engine/plan/executor", 'or approval == "always" or plan.must_be_approved', "", "engine/plan/test_approval"),
    Mutant(FOLLOW, "        if live.seq > self._last:", "        if live.seq:", FOLLOW_TEST),
    Mutant(FOLLOW, "(live.path, live.message_id) in self._complete", "False", FOLLOW_TEST),
    Mutant(FOLLOW, "            await hub.wait_for(self._last)\n", "            pass\n", FOLLOW_TEST),
    Mutant(FOLLOW, "min(after, state.seq)", "after", FOLLOW_TEST),
    Mutant(PLACES, "taken = min(number, self.free)", "taken = number", "engine/runtime/test_worker_slots"),
    Mutant(QUEUE, "if request.attempts and not await self._may_start(claim):", "if False:", SUBMIT_TEST),
    Mutant(PLACES, "        self._on_free()  # not after", "        # not after", SUBMIT_TEST),
    Mutant(
        QUEUE,
        "            if claim.cancel_requested:\n                await self._resumer.cancel(claim.",
        "            if False:\n                await self._resumer.cancel(claim.",
        SUBMIT_TEST,
    ),
    Mutant(QUEUE, "                        self._launcher.hold(request.run_id, claim)\n", "", SUBMIT_TEST),
    Mutant("engine/runtime/launcher", "        hub.expect_readers()\n", "", FOLLOW_TEST),
    Mutant(V1 + "api", 'JSONResponse({"error": error}, 422,', 'JSONResponse({"error": error}, 500,', V1_TEST),
    Mutant(V1 + "api", "except asyncio.CancelledError:", "except ZeroDivisionError:", V1_TEST),
    Mutant(V1 + "api", "identity.user_of(asked.user or", "(asked.user or", V1_TEST),
    Mutant(V1 + "api", "    service.limits.check_rate(identity)\n", "", V1_TEST),
    Mutant(V1 + "api", "raise ModelNotFound(error", "raise RequestError(error", V1_TEST),
    Mutant(V1 + "answer", "if event.path or not", "if not", "server/openai/test_answer"),
    Mutant(V1 + "answer", "is_repeated = event.seq and", "is_repeated = False and", "server/openai/test_answer"),
    Mutant(V1 + "request", "if body.n not in (None, 1):", "if False:", "server/openai/test_client_request"),
    Mutant(
        "engine/model_call/turn", "_CLOSING_TAG.sub('', text)", "text", "engine/model_call/test_caller_instructions"
    ),
    Mutant("store/database", "raise cancelled.with_traceback(None) from None", "raise", "store/test_signals"),
)


def main(words: list[str]) -> int:
    """Try the mutants of the modules whose path contains one of the words, or all; return how many survive."""
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.module for word in words)]
    survived = 0
    for outcome in try_all(chosen):
        mutant = outcome.mutant
        survived += not outcome.killed_by
        verdict = f"killed by {outcome.killed_by}" if outcome.killed_by else f"SURVIVED {mutant.test}"
        sys.stdout.write(f"{mutant.module}: {mutant.line.strip()} -> {mutant.instead.strip()}: {verdict}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - survived} of {len(chosen)} mutants killed\n")
    return survived


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
