"""One tool call: limits, policy, approval, execution, result.

In reading order; each module imports only from those below it:

    call             The lifecycle of one call: reserve, normalize, evaluate the policy, ask for approval, execute.
    execution        Executes an authorized call: timeout, retries, sub-agents, hooks after the call.
    hooks            Runs plugin hooks, and classifies the exceptions that plugins raise.
    results          Records results, emits them, and appends them to the conversation in call order.
    tool_context     Builds the context object that tools and hooks receive.
    trace            The span and metrics of one call.
    explain          Evaluates the policy for `agentsd explain` without executing anything.
    argument_repair  Normalizes and repairs arguments before the policy is evaluated.
"""
