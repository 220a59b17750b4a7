BEGIN TRANSACTION;
CREATE TABLE agentsd_blueprints (
	digest TEXT NOT NULL, 
	files TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY (digest)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_blueprints" VALUES('ddcad93bab677620','{"agents.d/one.yaml":"version: 1\nname: one\ndescription: The agent one.\nmodel: scripted\ninstructions: You are one.\nskill_policy: {ask: [pay], allow: [pay, look, hang]}\n"}',1.79538286255900907516e+09);
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
INSERT INTO "agentsd_conversations" VALUES('c1',NULL,NULL,'one',NULL,1,'{}',NULL,0,1.79538286255697131154e+09,1.79538286257452464099e+09,4.0e+09);
INSERT INTO "agentsd_conversations" VALUES('c2',NULL,NULL,NULL,'run_ad320587dbd24d0eac57cd5ba6244b15',1,'{}',NULL,0,1.79538286258167481424e+09,1.79538286258167481424e+09,NULL);
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
INSERT INTO "agentsd_events" VALUES('run_7b3b96b3470d478b9b4449fbabe08fc1',1,1.79538286259407138829e+09,'{"event":"route","run_id":"run_7b3b96b3470d478b9b4449fbabe08fc1","seq":1,"generation":1,"path":[],"agent":"one","reason":"the only agent","confidence":1.0}');
INSERT INTO "agentsd_events" VALUES('run_7b3b96b3470d478b9b4449fbabe08fc1',2,1.79538286259407138829e+09,'{"event":"tool_call","run_id":"run_7b3b96b3470d478b9b4449fbabe08fc1","seq":2,"generation":1,"path":[],"id":"c1","tool":"hang","arguments":{},"status":"running"}');
INSERT INTO "agentsd_events" VALUES('run_ad320587dbd24d0eac57cd5ba6244b15',1,1.79538286258908772472e+09,'{"event":"route","run_id":"run_ad320587dbd24d0eac57cd5ba6244b15","seq":1,"generation":1,"path":[],"agent":"one","reason":"the only agent","confidence":1.0}');
INSERT INTO "agentsd_events" VALUES('run_ad320587dbd24d0eac57cd5ba6244b15',2,1.79538286258908772472e+09,'{"event":"tool_call","run_id":"run_ad320587dbd24d0eac57cd5ba6244b15","seq":2,"generation":1,"path":[],"id":"c1","tool":"pay","arguments":{},"status":"pending"}');
INSERT INTO "agentsd_events" VALUES('run_ad320587dbd24d0eac57cd5ba6244b15',3,1.79538286258908772472e+09,'{"event":"confirm_required","run_id":"run_ad320587dbd24d0eac57cd5ba6244b15","seq":3,"generation":1,"path":[],"id":"c1","kind":"tool","agent":"one","tool":"pay","description":"Pay.","arguments":{},"hash":"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250","reason":"","rule":"ask pay (agents.d/one.yaml:6)","risk":"low","choices":[],"on_expiry":"reject"}');
INSERT INTO "agentsd_events" VALUES('run_ad320587dbd24d0eac57cd5ba6244b15',4,1.79538286258908772472e+09,'{"event":"done","run_id":"run_ad320587dbd24d0eac57cd5ba6244b15","seq":4,"generation":1,"path":[],"status":"paused","finish_reason":"confirmation","output":"","message_id":"msg.1","tokens_used":10,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10,"cached_tokens":0,"cache_write_tokens":0,"cost_usd":0.0},"trace_id":"97fc2cac8f6e283a09a85e12515d85dd"}');
CREATE TABLE agentsd_messages (
	run_id TEXT NOT NULL, 
	path TEXT NOT NULL, 
	n INTEGER NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (run_id, path, n)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_messages" VALUES('run_1ad55ffa75484164b47414c1e925a43a','',0,'{"role":"user","content":"first"}');
INSERT INTO "agentsd_messages" VALUES('run_1ad55ffa75484164b47414c1e925a43a','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"look","arguments":{"n":1}}]}');
INSERT INTO "agentsd_messages" VALUES('run_1ad55ffa75484164b47414c1e925a43a','',2,'{"role":"tool","content":"saw 1","tool_call_id":"c1","status":"success"}');
INSERT INTO "agentsd_messages" VALUES('run_1ad55ffa75484164b47414c1e925a43a','',3,'{"role":"assistant","content":"first answer"}');
INSERT INTO "agentsd_messages" VALUES('run_7b3b96b3470d478b9b4449fbabe08fc1','',0,'{"role":"user","content":"third"}');
INSERT INTO "agentsd_messages" VALUES('run_7b3b96b3470d478b9b4449fbabe08fc1','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"hang"}]}');
INSERT INTO "agentsd_messages" VALUES('run_ad320587dbd24d0eac57cd5ba6244b15','',0,'{"role":"user","content":"second"}');
INSERT INTO "agentsd_messages" VALUES('run_ad320587dbd24d0eac57cd5ba6244b15','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"pay"}]}');
CREATE TABLE agentsd_packed (
	run_id TEXT NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (run_id)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_packed" VALUES('run_1ad55ffa75484164b47414c1e925a43a',X'6843E559DF73A33610FE573C7ECE31480224F276D3E9B49D49EF5EF2D438E31192B09960F021482EEDE47FEF4A020C36CEC5761E7A695E62A36525ED8F6FBF5DFF33DFF2AAD6F3EBBBBBF9FC6A2E789EC3BF7F16F6D3627E0D9F3209FFE1015ACCAF16F3BA2CCDF3C53C2FCB07FB8457AB66A38A5A3BF102FEA1971758D035A856E66D04DF2AA59BBC7632B05237461E3E3642280D9F41A46CEA6D6344E0317F9AB90D55CEB75AC9E5C6C8FB5E4882308EE29805949230885E5EE6F757F6EC75C5857287D7B5DAB6DBF2151CCDAA2C0B65159A9B2DC797E2A2CE4A737078B77EDE821CC8BB9B1EBBF2C16DCB44ABEA91B78A8637308A96E7DCCDEC9D6D14586B63AEB398631F479F10FA84F12D46D7985E07D80BA9CF58F0D762FE8A21B071D38121EA75D9ACD6CE386956E97AC60BFDA42AE7D52993A459C1C126C6B96F39188903E60E767F35578F26464CA021EB23FBDDEE5D816D9C6BAAA6E83C633E222EC3304D390D0316A02848021AA0402015E3900784DB77B4FAD6BA1A2EA8AACE0126E4B6BC5EC3DADDFDE4F52BC5B5753A5C66AD6665913FCF5A239928298B3493AA10261890E75BEBE2BD935BCFBA4CB9E8F4C63FAF9EFEAC1C7429D8251A18B4C88A551B2764EA265D8A5E741772E95D8E80438F1FA78083715AB07755F06C6D43EFA26B063FBA26E4AD8670EAE279A3571E7670A2BE4FE59C0DB070EFACB203ADF33323FCD14107F616E5669B2B8BD9F016647BA6D7CB419EB4F93F86EA03E8387EF3F241157AD9009C4352611FF434C6460E78B715EC5E2F6B2B6492CEACB7270274DE5BA8CB9AE7BB675699E0620D95A2D7D03F5B3E5559ADF6164A5DC351CC497C486FE31853403A7F453E953C494598101C04CC8F304688A7284E19128AB00ED6F41640D396CF3B53FCF8C6150F0B24DE0ED94ED46D5217147787917E02454F484E39133E75C007851BF6E844E0783E8F45EACBD4E7114AACC84356B8E29D41C85716BB1D2854F5D2D998C621619845388C1045B1CF4CB8A8424E2D634A2933505AD755960066B735D0DE554B0F62D46B81EACDE8DDBD6BE176E51D80203C58F2CC83E54755690BEEDD1E2D21D19067874FCBAD02B44B15984828CFD8D2EB8DF1CBEF9FFFF8E28A5C77725381BC4D299DF3A44AB9E52A0722874574AC42F04266923BD39812345ED6A2ACBA7A62EC5C552554DBEBA2C973F3D556C8AE60E559F1E0BEBC5C0D234BAC793DD3A2CAB65D9E5E165B44F828F109162C1084256222B602E0182A920C4A3047923918EBCD29F2AC83D3239115B12046B1290C93914561773F8A3E4064DDDCFC696DD346AD03811E133A2C6F5721441D5BD94918DF0E1500243E0209A9761223C7B78A2AF5AD019268E31732DCB0E76178F4527A5B16DA85F91BC446E86F03D15162CB77E07B4FAA20F3AD4A0F7041018277A1DFEE6B11DECB0A60F63B006E8B92496DB7EEE8F140C000F259F9A1BE2B01D90CAACA7CD6372997E5889210F87188234954A2487C728EBC057F29E4088DE323594231A3C80F4D49FBD9F1F7F6EBD79B8BD264E8E2A122E3F25DAAF4BE6F03D1AE9AE0DD2B201D44DB755D3695A5FC505F9FA14182FE6080E256A4CA3434BEB6037E3AD8BDEF1ED3A6683BA81D1ED8D7A572D9E91ACEC5FC06FAE81907A65048EF7033C80BA040EE40C356797468478D3D9DFD6D04C3B353C7E195699EDBDEFBB2AC992C1B63D6124891A854618489649C90D3590B26212381A12553B58512C422127D84ACD9B196D7AB4B1719C68D00BB527DDFA32276A1AFDE5D9F7F76D0BC371F018E0DDD7E12AA4426A992AE1519478D642CA6294C17121A2120BC27F2114A8280C04CE168CC84B14FB1A12B3F3BD27E743EA2EB120663FF55263280D3B6F33FADC1DC6F02A7A2FE9DE194124C68800D179F84D3C0C72162FF7B38EDE7A9C07DC7703A98909EC55EB3E211E61F4B1B3A30927463D10BCBF0548D7DEFE101C651E8E3A3E435F0298259C30780D4CFBFFDFAE5F622F63A74F1A1A27D7A780BA3E93E1A1C411CD57F3316E9A82462941021A5CF95F451EADA948E0F383492D90A5A454B275F957614DB4E27CC4F37C01246CAA031AD4BD1FE12C44170BC5AE69978DE11E58D9259B33920B7DAE38F3CCB79921BDADACE8D4D4BF89E6D2F5FAD2AB582898C8461DF44276AA78CBD45F764F7BB522BDC193469E44AD59E9B367A79B6C98C5D431FFE8E4A0D479F9D1E37F71C7A86D130651CD190872A900AFC78363B6B83EDA9AC1E52E857DE095226878D434869275AA7CD1F2318411263BBE9D2837CC23ED8FCF1F82468CF6FC3BCEF7C7974B07464ECB4376A1D20819482CB98243C89288DB03F1E7CC25477D885EE7E0318CE7D4D1534831F7C4AA4DEC30F832FFF02AAB7E215');
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
INSERT INTO "agentsd_parts" VALUES('run_7b3b96b3470d478b9b4449fbabe08fc1','','call',0,'{"call":{"id":"c1","tool":"hang"},"started":1}');
INSERT INTO "agentsd_parts" VALUES('run_ad320587dbd24d0eac57cd5ba6244b15','','call',0,'{"call":{"id":"c1","tool":"pay"},"contract":"5b92198ba15f5876b2c4bdb9abe0627d8a701a518ae09d79a7e9a947f0e55494","asked":"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250"}');
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
	lease_boot DOUBLE, 
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
INSERT INTO "agentsd_runs" VALUES(1,'run_1ad55ffa75484164b47414c1e925a43a','c1',1,NULL,NULL,'one',1,'ddcad93bab677620','ddcad93bab677620','completed','final',4,NULL,NULL,NULL,0,0,2,20,NULL,'607dabfc5b32448062211af19f81ce38','first',1.79538286255962753297e+09,1.79538286257452464099e+09,1.79538286257452464099e+09,'{"run_id":"run_1ad55ffa75484164b47414c1e925a43a","agent":"one","generation":1,"digest":"ddcad93bab677620","blueprint":"ddcad93bab677620","conversation_id":"c1","conversation_ttl":2592000.0,"limits":{}}','{"traceparent":"00-607dabfc5b32448062211af19f81ce38-2210a9cf0df0a61b-01","status":"completed","finish_reason":"final","output":"first answer","admitted":true,"background":[],"replies":[1,3],"steps":2,"tool_calls":1,"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20},"tool_stats":{"look":{"count":1,"total_ms":0.5345969984773546}},"counted":[4,10],"call_counts":{"b51ae759bae72aea51658ddfb6a6594565549918abc5d16852692ccd90f1dc5e":1},"elapsed_ms":11.822214000858366,"seq":5}');
INSERT INTO "agentsd_runs" VALUES(2,'run_ad320587dbd24d0eac57cd5ba6244b15','c2',1,NULL,NULL,'one',1,'ddcad93bab677620','ddcad93bab677620','paused','confirmation',2,NULL,NULL,NULL,0,0,1,10,NULL,'97fc2cac8f6e283a09a85e12515d85dd','second',1.79538286258236646653e+09,1.79538286258908772472e+09,NULL,'{"run_id":"run_ad320587dbd24d0eac57cd5ba6244b15","agent":"one","generation":1,"digest":"ddcad93bab677620","blueprint":"ddcad93bab677620","conversation_id":"c2","conversation_ttl":2592000.0,"limits":{}}','{"traceparent":"00-97fc2cac8f6e283a09a85e12515d85dd-2d54ac560e0ed1a9-01","status":"paused","finish_reason":"confirmation","admitted":true,"background":[],"replies":[1],"pending":[{"id":"c1","kind":"tool","agent":"one","tool":"pay","description":"Pay.","hash":"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250","rule":"ask pay (agents.d/one.yaml:6)","risk":"low"}],"paused_at":1795382862.588012,"steps":1,"tool_calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10},"counted":[2,10],"call_counts":{"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250":1},"elapsed_ms":4.46534600268933,"seq":4}');
INSERT INTO "agentsd_runs" VALUES(3,'run_7b3b96b3470d478b9b4449fbabe08fc1',NULL,NULL,NULL,NULL,'one',1,'ddcad93bab677620','ddcad93bab677620','running','',2,'other pid:[1] time:[1] 0/1:1/0.3',1.7953828725939993858e+09,NULL,0,0,1,10,NULL,'86a17eb371c438b3da3b059dbd73c834','third',1.79538286259054112427e+09,1.79538286259407138829e+09,NULL,'{"run_id":"run_7b3b96b3470d478b9b4449fbabe08fc1","agent":"one","generation":1,"digest":"ddcad93bab677620","blueprint":"ddcad93bab677620","conversation_ttl":2592000.0,"limits":{}}','{"traceparent":"00-86a17eb371c438b3da3b059dbd73c834-3171778248ed422c-01","admitted":true,"background":[],"replies":[1],"steps":1,"tool_calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10},"counted":[2,10],"call_counts":{"8860406351b082a709fe832ab712bfc439837649e85b9b70027c5722e6c58f89":1},"seq":2}');
CREATE TABLE agentsd_schema (
	version INTEGER NOT NULL, 
	applied_at DOUBLE NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "agentsd_schema" VALUES(1,1.79538286251883792872e+09);
INSERT INTO "agentsd_schema" VALUES(2,1.79538286251968336104e+09);
INSERT INTO "agentsd_schema" VALUES(3,1795382862.52054);
CREATE TABLE agentsd_spans (
	run_id TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (run_id, version)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_spans" VALUES('run_ad320587dbd24d0eac57cd5ba6244b15',2,'[{"name":"agent.route","trace_id":"97fc2cac8f6e283a09a85e12515d85dd","span_id":"f5c8e14fd2a7c253","parent_id":"2d54ac560e0ed1a9","kind":"internal","start_ns":1795382862583411162,"end_ns":1795382862583417692,"attributes":{"agentsd.run.id":"run_ad320587dbd24d0eac57cd5ba6244b15","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"CHAIN","agentsd.route.mode":"default","agentsd.route.agent":"one","agentsd.route.candidates":1,"agentsd.route.score":1.0},"error":null,"events":[],"links":[]},{"name":"chat scripted","trace_id":"97fc2cac8f6e283a09a85e12515d85dd","span_id":"160e48787cfd9366","parent_id":"e4f5400fbf7364b0","kind":"client","start_ns":1795382862583754804,"end_ns":1795382862583869065,"attributes":{"agentsd.run.id":"run_ad320587dbd24d0eac57cd5ba6244b15","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"LLM","gen_ai.agent.name":"one","gen_ai.operation.name":"chat","gen_ai.provider.name":"scripted","gen_ai.request.model":"scripted","gen_ai.response.model":"scripted","gen_ai.response.finish_reasons":["tool_calls"],"agentsd.model.attempts":1,"gen_ai.usage.input_tokens":5,"gen_ai.usage.output_tokens":5},"error":null,"events":[],"links":[]},{"name":"execute_tool pay","trace_id":"97fc2cac8f6e283a09a85e12515d85dd","span_id":"48d278e62671afea","parent_id":"e4f5400fbf7364b0","kind":"internal","start_ns":1795382862584062974,"end_ns":1795382862587864280,"attributes":{"agentsd.run.id":"run_ad320587dbd24d0eac57cd5ba6244b15","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"TOOL","gen_ai.agent.name":"one","gen_ai.operation.name":"execute_tool","gen_ai.tool.name":"pay","gen_ai.tool.call.id":"c1","agentsd.tool.source":"python","agentsd.tool.risk":"low","gen_ai.tool.type":"function","gen_ai.tool.description":"Pay.","agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain","agentsd.tool.outcome":"waiting"},"error":null,"events":[{"name":"agentsd.confirm.requested","at_ns":1795382862587837200,"attributes":{"agentsd.confirm.id":"c1","agentsd.confirm.kind":"tool","agentsd.confirm.rule":"ask pay (agents.d/one.yaml:6)"}}],"links":[]},{"name":"agent.step 1","trace_id":"97fc2cac8f6e283a09a85e12515d85dd","span_id":"e4f5400fbf7364b0","parent_id":"6e35caafee98c3bd","kind":"internal","start_ns":1795382862583578241,"end_ns":1795382862587950950,"attributes":{"agentsd.run.id":"run_ad320587dbd24d0eac57cd5ba6244b15","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"CHAIN","gen_ai.agent.name":"one","agentsd.step.index":1,"agentsd.step.kind":"action","agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain"},"error":null,"events":[],"links":[]},{"name":"invoke_agent one","trace_id":"97fc2cac8f6e283a09a85e12515d85dd","span_id":"6e35caafee98c3bd","parent_id":"2d54ac560e0ed1a9","kind":"internal","start_ns":1795382862583524631,"end_ns":1795382862587988906,"attributes":{"agentsd.run.id":"run_ad320587dbd24d0eac57cd5ba6244b15","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"AGENT","gen_ai.agent.name":"one","gen_ai.operation.name":"invoke_agent","gen_ai.agent.description":"The agent one.","gen_ai.agent.version":"18733cdd0aed01f9","agentsd.agent.digest":"18733cdd0aed01f9","agentsd.executor":"react","agentsd.protocol":"auto","agentsd.policy.risk":"medium","agentsd.tools.available":3,"gen_ai.provider.name":"scripted","gen_ai.request.model":"scripted","agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain","gen_ai.aggregated_usage.input_tokens":5,"gen_ai.aggregated_usage.output_tokens":5,"agentsd.budget.tokens.limit":50000,"agentsd.budget.tokens.used":10,"agentsd.prompt.digest":"875f8a175a5e4de9"},"error":null,"events":[],"links":[]},{"name":"invoke_workflow one","trace_id":"97fc2cac8f6e283a09a85e12515d85dd","span_id":"2d54ac560e0ed1a9","parent_id":null,"kind":"internal","start_ns":1795382862583370542,"end_ns":1795382862588024780,"attributes":{"agentsd.run.id":"run_ad320587dbd24d0eac57cd5ba6244b15","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"CHAIN","gen_ai.operation.name":"invoke_workflow","gen_ai.workflow.name":"one","gen_ai.agent.name":"one","agentsd.config.digest":"ddcad93bab677620","agentsd.run.outcome":"waiting_confirmation","agentsd.run.steps":1,"agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain"},"error":null,"events":[],"links":[]}]');
CREATE INDEX ix_agentsd_conversations_expires_at ON agentsd_conversations (expires_at);
CREATE INDEX ix_agentsd_runs_ended_at ON agentsd_runs (ended_at);
CREATE INDEX ix_agentsd_runs_created_at ON agentsd_runs (created_at);
CREATE INDEX ix_agentsd_runs_status ON agentsd_runs (status);
COMMIT;
