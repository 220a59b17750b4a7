"""The console: a web page with the agents, runs and approvals of a server. Static files only.

They are ES modules without a build step, which `server/console_scripts` joins when the server first reads them.
`main.js` starts the page:

- `core/`: elements, requests, event streams, routes, languages: what every page uses
- `shell/`: the frame around the pages: navigation, palette, toasts, the request for a key
- `widgets/`: pieces that several pages show
- `chat/`: conversations with agents
- `approvals/`: the runs that wait for a decision
- `runs/`: stored runs and their traces
- `agents/`: agents, their policies and prompts
- `config/`: the live configuration and its history
- `editor/`: the files, read and edited
- `fleet/`: the processes that share the store, and what waits
- `usage/`: runs, tokens and cost over time
- `zh/`: Chinese texts
- `css/`: design tokens, controls and the styles of each page
"""
