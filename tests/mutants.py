"""The important lines, each with a change that breaks it and the test file that must notice: `make mutants`."""

from __future__ import annotations

import sys

from tests.support.mutants import Mutant, try_all

POLICY, BUDGET = "engine/context/policy", "engine/context/budget"
POLICY_TEST, BUDGET_TEST = "engine/context/test_policy", "engine/context/test_budget"

MUTANTS = (
    Mutant(POLICY, "return max(verdicts, key", "return min(verdicts, key", POLICY_TEST),
    Mutant(POLICY, "yield from self._withdrawals()", "yield from ()", POLICY_TEST),
    Mutant(POLICY, "            yield current, tool", "            pass", POLICY_TEST),
    Mutant(POLICY, "for parent in self.parents:", "for parent in ():", POLICY_TEST),
    Mutant(POLICY, "RISKS.index(tool.risk) > RISKS.index(ceiling)", "RISKS.index(tool.risk) < 0", POLICY_TEST),
    Mutant(POLICY, "if tool.name not in agent.toolset.offered:", "if False:", POLICY_TEST),
    Mutant(POLICY, "if tool.confirm:", "if False:", POLICY_TEST),
    Mutant(POLICY, "RISKS.index(tool.risk) >= RISKS.index(threshold)", "False", POLICY_TEST),
    Mutant(BUDGET, "budget.state.tool_calls >= limit:", "budget.state.tool_calls > limit:", BUDGET_TEST),
    Mutant(BUDGET, "count > limit:", "count > limit + 1:", BUDGET_TEST),
    Mutant(BUDGET, "self.state.corrections >= self.", "self.state.corrections > self.", BUDGET_TEST),
    Mutant(BUDGET, "used >= allowed:", "used > allowed:", BUDGET_TEST),
    Mutant(BUDGET, "used + expected > limit:", "used > limit:", "engine/model_call/test_context_window"),
    Mutant(BUDGET, "budget = budget.parent", "budget = None", BUDGET_TEST),
    Mutant(BUDGET, "used >= WARN_AT * limit", "used > limit", BUDGET_TEST),
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
