BEGIN TRANSACTION;
CREATE TABLE agentsd_blueprints (
	digest TEXT NOT NULL,
	files TEXT NOT NULL,
	created_at DOUBLE NOT NULL,
	PRIMARY KEY (digest)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_blueprints" VALUES('ddcad93bab677620','{"agents.d/one.yaml":"version: 1\nname: one\ndescription: The agent one.\nmodel: scripted\ninstructions: You are one.\nskill_policy: {ask: [pay], allow: [pay, look, hang]}\n"}',1.7953671504211890697e+09);
CREATE TABLE agentsd_conversations (
	id TEXT NOT NULL,
	user_id TEXT,
	tenant TEXT,
	agent TEXT,
	open_run TEXT,
	turns INTEGER DEFAULT '0' NOT NULL,
	session TEXT DEFAULT '{}' NOT NULL,
	summary TEXT,
	summary_upto INTEGER DEFAULT '0' NOT NULL,
	created_at DOUBLE NOT NULL,
	updated_at DOUBLE NOT NULL,
	expires_at DOUBLE,
	PRIMARY KEY (id)
);
INSERT INTO "agentsd_conversations" VALUES('c1',NULL,NULL,'one',NULL,1,'{}',NULL,0,1.79536715041874766346e+09,1.79536715043208813672e+09,NULL);
INSERT INTO "agentsd_conversations" VALUES('c2',NULL,NULL,NULL,'run_6918284c360c402f9badf3e012ef7323',1,'{}',NULL,0,1.79536715044202208526e+09,1.79536715044202208526e+09,NULL);
CREATE TABLE agentsd_decisions (
	run_id TEXT NOT NULL,
	confirmation_id TEXT NOT NULL,
	decision TEXT NOT NULL,
	decided_by TEXT,
	decided_at DOUBLE NOT NULL,
	PRIMARY KEY (run_id, confirmation_id)
)
 WITHOUT ROWID

;
CREATE TABLE agentsd_events (
	run_id TEXT NOT NULL,
	seq INTEGER NOT NULL,
	at DOUBLE NOT NULL,
	body TEXT NOT NULL,
	PRIMARY KEY (run_id, seq)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_events" VALUES('run_602b66e2d05b43438267ff266d4e3e91',1,1.79536715043963980673e+09,'{"event":"route","run_id":"run_602b66e2d05b43438267ff266d4e3e91","seq":1,"generation":1,"path":[],"agent":"one","reason":"the only agent","confidence":1.0}');
INSERT INTO "agentsd_events" VALUES('run_602b66e2d05b43438267ff266d4e3e91',2,1.79536715043963980673e+09,'{"event":"tool_call","run_id":"run_602b66e2d05b43438267ff266d4e3e91","seq":2,"generation":1,"path":[],"id":"c1","tool":"pay","arguments":{},"status":"pending"}');
INSERT INTO "agentsd_events" VALUES('run_602b66e2d05b43438267ff266d4e3e91',3,1.79536715043963980673e+09,'{"event":"confirm_required","run_id":"run_602b66e2d05b43438267ff266d4e3e91","seq":3,"generation":1,"path":[],"id":"c1","kind":"tool","agent":"one","tool":"pay","arguments":{},"hash":"e768a3e379f0bf9a","reason":"","rule":"ask pay (agents.d/one.yaml:6)","risk":"low","on_expiry":"reject"}');
INSERT INTO "agentsd_events" VALUES('run_602b66e2d05b43438267ff266d4e3e91',4,1.79536715043963980673e+09,'{"event":"done","run_id":"run_602b66e2d05b43438267ff266d4e3e91","seq":4,"generation":1,"path":[],"status":"paused","finish_reason":"confirmation","output":"","message_id":"msg.1","tokens_used":10,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10,"cached_tokens":0,"cache_write_tokens":0,"cost_usd":0.0},"trace_id":"8f628faf3f20686581b985570c941003"}');
INSERT INTO "agentsd_events" VALUES('run_6918284c360c402f9badf3e012ef7323',1,1.79536715044536399838e+09,'{"event":"route","run_id":"run_6918284c360c402f9badf3e012ef7323","seq":1,"generation":1,"path":[],"agent":"one","reason":"the only agent","confidence":1.0}');
INSERT INTO "agentsd_events" VALUES('run_6918284c360c402f9badf3e012ef7323',2,1.79536715044536399838e+09,'{"event":"tool_call","run_id":"run_6918284c360c402f9badf3e012ef7323","seq":2,"generation":1,"path":[],"id":"c1","tool":"hang","arguments":{},"status":"running"}');
INSERT INTO "agentsd_events" VALUES('run_dee427733d5641169d426056840012cd',1,1.79536715042843794828e+09,'{"event":"route","run_id":"run_dee427733d5641169d426056840012cd","seq":1,"generation":1,"path":[],"agent":"one","reason":"the only agent","confidence":1.0}');
INSERT INTO "agentsd_events" VALUES('run_dee427733d5641169d426056840012cd',2,1.79536715042843794828e+09,'{"event":"tool_call","run_id":"run_dee427733d5641169d426056840012cd","seq":2,"generation":1,"path":[],"id":"c1","tool":"look","arguments":{"n":1},"status":"running"}');
INSERT INTO "agentsd_events" VALUES('run_dee427733d5641169d426056840012cd',3,1.79536715043045520777e+09,'{"event":"tool_result","run_id":"run_dee427733d5641169d426056840012cd","seq":3,"generation":1,"path":[],"id":"c1","tool":"look","status":"success","result":"saw 1","elapsed_ms":0.36478299989539664}');
INSERT INTO "agentsd_events" VALUES('run_dee427733d5641169d426056840012cd',4,1.79536715043208813672e+09,'{"event":"content","run_id":"run_dee427733d5641169d426056840012cd","seq":4,"generation":1,"path":[],"message_id":"msg.2","text":"first answer"}');
INSERT INTO "agentsd_events" VALUES('run_dee427733d5641169d426056840012cd',5,1.79536715043208813672e+09,'{"event":"done","run_id":"run_dee427733d5641169d426056840012cd","seq":5,"generation":1,"path":[],"status":"completed","finish_reason":"final","output":"first answer","message_id":"msg.2","tokens_used":20,"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20,"cached_tokens":0,"cache_write_tokens":0,"cost_usd":0.0},"trace_id":"4f7a7a5164fedd9d31a28932a861e381"}');
CREATE TABLE agentsd_messages (
	run_id TEXT NOT NULL,
	path TEXT NOT NULL,
	n INTEGER NOT NULL,
	body TEXT NOT NULL,
	PRIMARY KEY (run_id, path, n)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_messages" VALUES('run_602b66e2d05b43438267ff266d4e3e91','',0,'{"role":"user","content":"pay the bill"}');
INSERT INTO "agentsd_messages" VALUES('run_602b66e2d05b43438267ff266d4e3e91','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"pay"}]}');
INSERT INTO "agentsd_messages" VALUES('run_6918284c360c402f9badf3e012ef7323','',0,'{"role":"user","content":"hang on"}');
INSERT INTO "agentsd_messages" VALUES('run_6918284c360c402f9badf3e012ef7323','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"hang"}]}');
INSERT INTO "agentsd_messages" VALUES('run_dee427733d5641169d426056840012cd','',0,'{"role":"user","content":"look around"}');
INSERT INTO "agentsd_messages" VALUES('run_dee427733d5641169d426056840012cd','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"look","arguments":{"n":1}}]}');
INSERT INTO "agentsd_messages" VALUES('run_dee427733d5641169d426056840012cd','',2,'{"role":"tool","content":"saw 1","tool_call_id":"c1","status":"success"}');
INSERT INTO "agentsd_messages" VALUES('run_dee427733d5641169d426056840012cd','',3,'{"role":"assistant","content":"first answer"}');
CREATE TABLE agentsd_parts (
	run_id TEXT NOT NULL,
	path TEXT NOT NULL,
	kind TEXT NOT NULL,
	n INTEGER NOT NULL,
	body TEXT NOT NULL,
	PRIMARY KEY (run_id, path, kind, n)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_parts" VALUES('run_602b66e2d05b43438267ff266d4e3e91','','call',0,'{"call":{"id":"c1","tool":"pay"},"contract":"b6c2538b6a128d6f","asked":"e768a3e379f0bf9a"}');
INSERT INTO "agentsd_parts" VALUES('run_6918284c360c402f9badf3e012ef7323','','call',0,'{"call":{"id":"c1","tool":"hang"},"started":1}');
INSERT INTO "agentsd_parts" VALUES('run_dee427733d5641169d426056840012cd','','call',0,'{"call":{"id":"c1","tool":"look","arguments":{"n":1}},"started":1,"result":{"status":"success","output":"saw 1","elapsed_ms":0.36478299989539664}}');
INSERT INTO "agentsd_parts" VALUES('run_dee427733d5641169d426056840012cd','','trace',0,'{"step":1,"agent":"one","action":{"type":"tool","tool":"look","args":{"n":1}},"observation":"saw 1","tool_output":"saw 1","elapsed_ms":0.36478299989539664,"timestamp":"2026-11-22T17:05:50.430005Z"}');
INSERT INTO "agentsd_parts" VALUES('run_dee427733d5641169d426056840012cd','','trace',1,'{"step":2,"agent":"one","thought":"first answer","action":{"type":"final"},"timestamp":"2026-11-22T17:05:50.431630Z"}');
CREATE TABLE agentsd_runs (
	no INTEGER NOT NULL,
	id TEXT NOT NULL,
	conversation_id TEXT,
	turn INTEGER,
	user_id TEXT,
	tenant TEXT,
	agent TEXT NOT NULL,
	generation INTEGER NOT NULL,
	digest TEXT NOT NULL,
	blueprint TEXT NOT NULL,
	status TEXT NOT NULL,
	finish_reason TEXT DEFAULT '' NOT NULL,
	version INTEGER NOT NULL,
	owner TEXT,
	lease_until DOUBLE,
	attempts INTEGER DEFAULT '0' NOT NULL,
	cancel_requested BOOLEAN DEFAULT 0 NOT NULL,
	steps INTEGER DEFAULT '0' NOT NULL,
	tokens INTEGER DEFAULT '0' NOT NULL,
	expires_at DOUBLE,
	trace_id TEXT,
	message TEXT NOT NULL,
	created_at DOUBLE NOT NULL,
	updated_at DOUBLE NOT NULL,
	ended_at DOUBLE,
	head TEXT NOT NULL,
	state TEXT NOT NULL,
	PRIMARY KEY (no),
	UNIQUE (conversation_id, turn),
	UNIQUE (id)
);
INSERT INTO "agentsd_runs" VALUES(1,'run_dee427733d5641169d426056840012cd','c1',1,NULL,NULL,'one',1,'ddcad93bab677620','ddcad93bab677620','completed','final',4,NULL,NULL,0,0,2,20,NULL,'4f7a7a5164fedd9d31a28932a861e381','look around',1.79536715042199873917e+09,1.79536715043208813672e+09,1.79536715043208813672e+09,'{"run_id":"run_dee427733d5641169d426056840012cd","agent":"one","generation":1,"digest":"ddcad93bab677620","blueprint":"ddcad93bab677620","conversation_id":"c1","conversation_ttl":2592000.0,"limits":{}}','{"traceparent":"00-4f7a7a5164fedd9d31a28932a861e381-b5011166d6e5a1dd-01","status":"completed","finish_reason":"final","output":"first answer","admitted":true,"background":[],"replies":[1,3],"steps":2,"tool_calls":1,"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20},"tool_stats":{"look":{"count":1,"total_ms":0.36478299989539664}},"counted":[4,10],"call_counts":{"8b5763a6ae67a824":1},"elapsed_ms":7.117129999642202,"seq":5}');
INSERT INTO "agentsd_runs" VALUES(2,'run_602b66e2d05b43438267ff266d4e3e91',NULL,NULL,NULL,NULL,'one',1,'ddcad93bab677620','ddcad93bab677620','paused','confirmation',2,NULL,NULL,0,0,1,10,NULL,'8f628faf3f20686581b985570c941003','pay the bill',1.79536715043501544e+09,1.79536715043963980673e+09,NULL,'{"run_id":"run_602b66e2d05b43438267ff266d4e3e91","agent":"one","generation":1,"digest":"ddcad93bab677620","blueprint":"ddcad93bab677620","conversation_ttl":2592000.0,"limits":{}}','{"traceparent":"00-8f628faf3f20686581b985570c941003-e4b3d564999b87ca-01","status":"paused","finish_reason":"confirmation","admitted":true,"background":[],"replies":[1],"pending":[{"id":"c1","kind":"tool","agent":"one","tool":"pay","hash":"e768a3e379f0bf9a","rule":"ask pay (agents.d/one.yaml:6)","risk":"low"}],"paused_at":1795367150.4387462,"steps":1,"tool_calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10},"counted":[2,10],"call_counts":{"e768a3e379f0bf9a":1},"elapsed_ms":1.837830000113172,"seq":4}');
INSERT INTO "agentsd_runs" VALUES(3,'run_6918284c360c402f9badf3e012ef7323','c2',1,NULL,NULL,'one',1,'ddcad93bab677620','ddcad93bab677620','running','',2,'old-host pid:[4026531836]/32747/fdee09c919b441aeaea1632ef98965c4.3',1.79536716044498443605e+09,0,0,1,10,NULL,'0123c88a5249db6e1bd57f4160bd4386','hang on',1.79536715044303965571e+09,1.79536715044536399838e+09,NULL,'{"run_id":"run_6918284c360c402f9badf3e012ef7323","agent":"one","generation":1,"digest":"ddcad93bab677620","blueprint":"ddcad93bab677620","conversation_id":"c2","conversation_ttl":2592000.0,"limits":{}}','{"traceparent":"00-0123c88a5249db6e1bd57f4160bd4386-cd3073d90f913f41-01","admitted":true,"background":[],"replies":[1],"steps":1,"tool_calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10},"counted":[2,10],"call_counts":{"8976704432fe68fb":1},"seq":2}');
CREATE TABLE agentsd_schema (
	version INTEGER NOT NULL,
	applied_at DOUBLE NOT NULL,
	PRIMARY KEY (version)
);
INSERT INTO "agentsd_schema" VALUES(1,1795367150.40219);
INSERT INTO "agentsd_schema" VALUES(2,1.79536715040287852282e+09);
CREATE TABLE agentsd_spans (
	run_id TEXT NOT NULL,
	version INTEGER NOT NULL,
	body TEXT NOT NULL,
	PRIMARY KEY (run_id, version)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_spans" VALUES('run_602b66e2d05b43438267ff266d4e3e91',2,'[{"name":"agent.route","trace_id":"8f628faf3f20686581b985570c941003","span_id":"4fb84be027da4a7c","parent_id":"e4b3d564999b87ca","kind":"internal","start_ns":1795367150436810775,"end_ns":1795367150436814341,"attributes":{"agentsd.run.id":"run_602b66e2d05b43438267ff266d4e3e91","agentsd.config.generation":1,"session.id":"run_602b66e2d05b43438267ff266d4e3e91","openinference.span.kind":"CHAIN","agentsd.route.mode":"default","agentsd.route.agent":"one","agentsd.route.candidates":1,"agentsd.route.score":1.0},"error":null,"events":[],"links":[]},{"name":"chat scripted","trace_id":"8f628faf3f20686581b985570c941003","span_id":"32c8d510014514d9","parent_id":"fa861eb2a1e4b7be","kind":"client","start_ns":1795367150437116431,"end_ns":1795367150437195028,"attributes":{"agentsd.run.id":"run_602b66e2d05b43438267ff266d4e3e91","agentsd.config.generation":1,"session.id":"run_602b66e2d05b43438267ff266d4e3e91","openinference.span.kind":"LLM","gen_ai.agent.name":"one","gen_ai.operation.name":"chat","gen_ai.provider.name":"scripted","gen_ai.request.model":"scripted","agentsd.model.attempt":1,"gen_ai.response.model":"scripted","gen_ai.response.finish_reasons":["tool_calls"],"gen_ai.usage.input_tokens":5,"gen_ai.usage.output_tokens":5},"error":null,"events":[],"links":[]},{"name":"execute_tool pay","trace_id":"8f628faf3f20686581b985570c941003","span_id":"9feeb6abec3bada1","parent_id":"fa861eb2a1e4b7be","kind":"internal","start_ns":1795367150437438351,"end_ns":1795367150438663577,"attributes":{"agentsd.run.id":"run_602b66e2d05b43438267ff266d4e3e91","agentsd.config.generation":1,"session.id":"run_602b66e2d05b43438267ff266d4e3e91","openinference.span.kind":"TOOL","gen_ai.agent.name":"one","gen_ai.operation.name":"execute_tool","gen_ai.tool.name":"pay","gen_ai.tool.call.id":"c1","agentsd.tool.source":"python","agentsd.tool.risk":"low","agentsd.tool.outcome":"waiting"},"error":null,"events":[{"name":"agentsd.confirm.requested","at_ns":1795367150438654434,"attributes":{"agentsd.confirm.id":"c1","agentsd.confirm.kind":"tool","agentsd.confirm.rule":"ask pay (agents.d/one.yaml:6)"}}],"links":[]},{"name":"agent.step","trace_id":"8f628faf3f20686581b985570c941003","span_id":"fa861eb2a1e4b7be","parent_id":"9a50177e9c1d9e23","kind":"internal","start_ns":1795367150436954830,"end_ns":1795367150438704789,"attributes":{"agentsd.run.id":"run_602b66e2d05b43438267ff266d4e3e91","agentsd.config.generation":1,"session.id":"run_602b66e2d05b43438267ff266d4e3e91","openinference.span.kind":"CHAIN","gen_ai.agent.name":"one","agentsd.step.index":1,"agentsd.step.kind":"action"},"error":null,"events":[],"links":[]},{"name":"invoke_agent one","trace_id":"8f628faf3f20686581b985570c941003","span_id":"9a50177e9c1d9e23","parent_id":"e4b3d564999b87ca","kind":"internal","start_ns":1795367150436908391,"end_ns":1795367150438728404,"attributes":{"agentsd.run.id":"run_602b66e2d05b43438267ff266d4e3e91","agentsd.config.generation":1,"session.id":"run_602b66e2d05b43438267ff266d4e3e91","openinference.span.kind":"AGENT","gen_ai.agent.name":"one","gen_ai.operation.name":"invoke_agent","gen_ai.agent.description":"The agent one.","agentsd.agent.digest":"020d5441995a97d6","agentsd.executor":"react","agentsd.protocol":"auto","agentsd.policy.risk":"medium","agentsd.tools.available":3,"gen_ai.provider.name":"scripted","gen_ai.request.model":"scripted","gen_ai.aggregated_usage.input_tokens":5,"gen_ai.aggregated_usage.output_tokens":5,"agentsd.budget.tokens.limit":50000,"agentsd.budget.tokens.used":10,"agentsd.prompt.digest":"bf9d825e14d49249"},"error":null,"events":[],"links":[]},{"name":"invoke_workflow agent_run","trace_id":"8f628faf3f20686581b985570c941003","span_id":"e4b3d564999b87ca","parent_id":null,"kind":"internal","start_ns":1795367150436780470,"end_ns":1795367150438753281,"attributes":{"agentsd.run.id":"run_602b66e2d05b43438267ff266d4e3e91","agentsd.config.generation":1,"session.id":"run_602b66e2d05b43438267ff266d4e3e91","openinference.span.kind":"CHAIN","gen_ai.operation.name":"invoke_workflow","gen_ai.workflow.name":"agent_run","agentsd.config.digest":"ddcad93bab677620","agentsd.run.outcome":"waiting_confirmation","agentsd.run.steps":1},"error":null,"events":[],"links":[]}]');
INSERT INTO "agentsd_spans" VALUES('run_dee427733d5641169d426056840012cd',4,'[{"name":"agent.route","trace_id":"4f7a7a5164fedd9d31a28932a861e381","span_id":"e14c399b3572239e","parent_id":"b5011166d6e5a1dd","kind":"internal","start_ns":1795367150424090403,"end_ns":1795367150424098495,"attributes":{"agentsd.run.id":"run_dee427733d5641169d426056840012cd","agentsd.config.generation":1,"gen_ai.conversation.id":"c1","session.id":"c1","openinference.span.kind":"CHAIN","agentsd.route.mode":"default","agentsd.route.agent":"one","agentsd.route.candidates":1,"agentsd.route.score":1.0},"error":null,"events":[],"links":[]},{"name":"chat scripted","trace_id":"4f7a7a5164fedd9d31a28932a861e381","span_id":"b22247b4c475d24a","parent_id":"47fe8b8c3cc26b9d","kind":"client","start_ns":1795367150426826011,"end_ns":1795367150426945639,"attributes":{"agentsd.run.id":"run_dee427733d5641169d426056840012cd","agentsd.config.generation":1,"gen_ai.conversation.id":"c1","session.id":"c1","openinference.span.kind":"LLM","gen_ai.agent.name":"one","gen_ai.operation.name":"chat","gen_ai.provider.name":"scripted","gen_ai.request.model":"scripted","agentsd.model.attempt":1,"gen_ai.response.model":"scripted","gen_ai.response.finish_reasons":["tool_calls"],"gen_ai.usage.input_tokens":5,"gen_ai.usage.output_tokens":5},"error":null,"events":[],"links":[]},{"name":"execute_tool look","trace_id":"4f7a7a5164fedd9d31a28932a861e381","span_id":"980c7044f74e76cc","parent_id":"47fe8b8c3cc26b9d","kind":"internal","start_ns":1795367150427818420,"end_ns":1795367150430985061,"attributes":{"agentsd.run.id":"run_dee427733d5641169d426056840012cd","agentsd.config.generation":1,"gen_ai.conversation.id":"c1","session.id":"c1","openinference.span.kind":"TOOL","gen_ai.agent.name":"one","gen_ai.operation.name":"execute_tool","gen_ai.tool.name":"look","gen_ai.tool.call.id":"c1","agentsd.tool.source":"python","agentsd.tool.risk":"low","agentsd.tool.outcome":"success","agentsd.tool.result.size":5},"error":null,"events":[],"links":[]},{"name":"agent.step","trace_id":"4f7a7a5164fedd9d31a28932a861e381","span_id":"47fe8b8c3cc26b9d","parent_id":"4bf48685a395609b","kind":"internal","start_ns":1795367150424758829,"end_ns":1795367150431053863,"attributes":{"agentsd.run.id":"run_dee427733d5641169d426056840012cd","agentsd.config.generation":1,"gen_ai.conversation.id":"c1","session.id":"c1","openinference.span.kind":"CHAIN","gen_ai.agent.name":"one","agentsd.step.index":1,"agentsd.step.kind":"action"},"error":null,"events":[],"links":[]},{"name":"chat scripted","trace_id":"4f7a7a5164fedd9d31a28932a861e381","span_id":"b241c98ea73f6fe2","parent_id":"df420b0384436601","kind":"client","start_ns":1795367150431284938,"end_ns":1795367150431368192,"attributes":{"agentsd.run.id":"run_dee427733d5641169d426056840012cd","agentsd.config.generation":1,"gen_ai.conversation.id":"c1","session.id":"c1","openinference.span.kind":"LLM","gen_ai.agent.name":"one","gen_ai.operation.name":"chat","gen_ai.provider.name":"scripted","gen_ai.request.model":"scripted","agentsd.model.attempt":1,"gen_ai.response.model":"scripted","gen_ai.response.finish_reasons":["stop"],"gen_ai.usage.input_tokens":5,"gen_ai.usage.output_tokens":5},"error":null,"events":[],"links":[]},{"name":"agent.step","trace_id":"4f7a7a5164fedd9d31a28932a861e381","span_id":"df420b0384436601","parent_id":"4bf48685a395609b","kind":"internal","start_ns":1795367150431072101,"end_ns":1795367150431684313,"attributes":{"agentsd.run.id":"run_dee427733d5641169d426056840012cd","agentsd.config.generation":1,"gen_ai.conversation.id":"c1","session.id":"c1","openinference.span.kind":"CHAIN","gen_ai.agent.name":"one","agentsd.step.index":2,"agentsd.step.kind":"final"},"error":null,"events":[],"links":[]},{"name":"invoke_agent one","trace_id":"4f7a7a5164fedd9d31a28932a861e381","span_id":"4bf48685a395609b","parent_id":"b5011166d6e5a1dd","kind":"internal","start_ns":1795367150424630097,"end_ns":1795367150431717653,"attributes":{"agentsd.run.id":"run_dee427733d5641169d426056840012cd","agentsd.config.generation":1,"gen_ai.conversation.id":"c1","session.id":"c1","openinference.span.kind":"AGENT","gen_ai.agent.name":"one","gen_ai.operation.name":"invoke_agent","gen_ai.agent.description":"The agent one.","agentsd.agent.digest":"020d5441995a97d6","agentsd.executor":"react","agentsd.protocol":"auto","agentsd.policy.risk":"medium","agentsd.tools.available":3,"gen_ai.provider.name":"scripted","gen_ai.request.model":"scripted","gen_ai.aggregated_usage.input_tokens":10,"gen_ai.aggregated_usage.output_tokens":10,"agentsd.budget.tokens.limit":50000,"agentsd.budget.tokens.used":20,"agentsd.prompt.digest":"bf9d825e14d49249"},"error":null,"events":[],"links":[]},{"name":"invoke_workflow agent_run","trace_id":"4f7a7a5164fedd9d31a28932a861e381","span_id":"b5011166d6e5a1dd","parent_id":null,"kind":"internal","start_ns":1795367150424037844,"end_ns":1795367150431743932,"attributes":{"agentsd.run.id":"run_dee427733d5641169d426056840012cd","agentsd.config.generation":1,"gen_ai.conversation.id":"c1","session.id":"c1","openinference.span.kind":"CHAIN","gen_ai.operation.name":"invoke_workflow","gen_ai.workflow.name":"agent_run","agentsd.config.digest":"ddcad93bab677620","agentsd.run.outcome":"final","agentsd.run.steps":2},"error":null,"events":[],"links":[]}]');
CREATE INDEX ix_agentsd_conversations_expires_at ON agentsd_conversations (expires_at);
CREATE INDEX ix_agentsd_runs_created_at ON agentsd_runs (created_at);
CREATE INDEX ix_agentsd_runs_status ON agentsd_runs (status);
CREATE INDEX ix_agentsd_runs_ended_at ON agentsd_runs (ended_at);
COMMIT;
