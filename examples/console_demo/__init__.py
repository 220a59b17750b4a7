"""The console with two weeks of runs of a small shop, without an API key: `python -m examples.console_demo`.

Modules, from the top down:

    __main__   serves the shop and prints the URL
    serving    serves the shop with the console, as `agentsd serve` does
    history    runs the visits of two weeks, and stores the runs with their dates
    visits     who asks what, and when
    edits      the edits of the files during the two weeks
    model      the scripted model
    stories    what the model answers to what people ask
    shop/      the project: agents, plugins, prompts, help pages
"""
