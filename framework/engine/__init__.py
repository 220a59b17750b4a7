"""The engine.

In reading order; each module imports only from those below it:

    runtime       TO WRITE.
    executors     The built-in executors: `react`, `plan`, and `auto`, which lets a model choose one of the two.
    plan          TO WRITE.
    routing       TO WRITE.
    react         The ReAct executor.
    run           One run in progress: the gateway that all work passes through.
    model_call    TO WRITE.
    output_guard  What a run ends with, where hooks look at it first: nobody else sees it before that, whatever ...
    agent_trace   Spans and metrics of one agent's work, and of its turns.
    tool_call     TO WRITE.
    context       TO WRITE.
"""
