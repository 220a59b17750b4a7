BEGIN TRANSACTION;
CREATE TABLE agentsd_blueprints (
	digest TEXT NOT NULL, 
	files TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY (digest)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_blueprints" VALUES('b75ec0c7303ea9de','{"agents.d/one.yaml":"version: 1\nname: one\ndescription: The agent one.\nmodel: scripted\ninstructions: You are one.\nskill_policy: {ask: [pay], allow: [pay, look, hang]}\nconversation: {ttl: 30d}\n"}',1.79540189066347861284e+09);
CREATE TABLE agentsd_budget_counters (
	budget TEXT NOT NULL, 
	scope TEXT NOT NULL, 
	period TEXT NOT NULL, 
	owner TEXT, 
	tokens INTEGER NOT NULL, 
	cost_usd DOUBLE NOT NULL, 
	ends_at DOUBLE, 
	PRIMARY KEY (budget, scope, period)
)
 WITHOUT ROWID

;
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
INSERT INTO "agentsd_conversations" VALUES('c1',NULL,NULL,'one',NULL,1,'{}',NULL,0,1.79540189066108655927e+09,1.7954018907232320309e+09,4.0e+09);
INSERT INTO "agentsd_conversations" VALUES('c2',NULL,NULL,NULL,'run_354fda9fc7214726880534ee0dc1d08a',1,'{}',NULL,0,1.79540189074711370462e+09,1.79540189074711370462e+09,NULL);
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
INSERT INTO "agentsd_events" VALUES('run_354fda9fc7214726880534ee0dc1d08a',1,1.79540189078312969203e+09,'{"event":"route","run_id":"run_354fda9fc7214726880534ee0dc1d08a","seq":1,"generation":1,"path":[],"agent":"one","reason":"the only agent","confidence":1.0}');
INSERT INTO "agentsd_events" VALUES('run_354fda9fc7214726880534ee0dc1d08a',2,1.79540189078312969203e+09,'{"event":"tool_call","run_id":"run_354fda9fc7214726880534ee0dc1d08a","seq":2,"generation":1,"path":[],"id":"c1","tool":"pay","arguments":{},"status":"pending"}');
INSERT INTO "agentsd_events" VALUES('run_354fda9fc7214726880534ee0dc1d08a',3,1.79540189078312969203e+09,'{"event":"confirm_required","run_id":"run_354fda9fc7214726880534ee0dc1d08a","seq":3,"generation":1,"path":[],"id":"c1","kind":"tool","agent":"one","tool":"pay","description":"Pay.","arguments":{},"hash":"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250","reason":"","rule":"ask pay (agents.d/one.yaml:6)","risk":"low","choices":[],"on_expiry":"reject"}');
INSERT INTO "agentsd_events" VALUES('run_354fda9fc7214726880534ee0dc1d08a',4,1.79540189078312969203e+09,'{"event":"done","run_id":"run_354fda9fc7214726880534ee0dc1d08a","seq":4,"generation":1,"path":[],"status":"paused","finish_reason":"confirmation","output":"","truncated":false,"message_id":"msg.1","tokens_used":10,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10,"cached_tokens":0,"cache_write_tokens":0,"cost_usd":0.0},"trace_id":"b1a3225a34be62463e000db0e53e05f0"}');
INSERT INTO "agentsd_events" VALUES('run_e19f68fe4cbb45219506d49813443836',1,1.79540189079916334149e+09,'{"event":"route","run_id":"run_e19f68fe4cbb45219506d49813443836","seq":1,"generation":1,"path":[],"agent":"one","reason":"the only agent","confidence":1.0}');
INSERT INTO "agentsd_events" VALUES('run_e19f68fe4cbb45219506d49813443836',2,1.79540189079916334149e+09,'{"event":"tool_call","run_id":"run_e19f68fe4cbb45219506d49813443836","seq":2,"generation":1,"path":[],"id":"c1","tool":"hang","arguments":{},"status":"running"}');
CREATE TABLE agentsd_media (
	digest TEXT NOT NULL, 
	body BLOB NOT NULL, 
	used_at DOUBLE NOT NULL, 
	PRIMARY KEY (digest)
);
CREATE TABLE agentsd_messages (
	run_id TEXT NOT NULL, 
	path TEXT NOT NULL, 
	n INTEGER NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (run_id, path, n)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_messages" VALUES('run_195c4fd7686a42a5aa0315fcb4ecc10d','',0,'{"role":"user","content":"look around"}');
INSERT INTO "agentsd_messages" VALUES('run_195c4fd7686a42a5aa0315fcb4ecc10d','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"look","arguments":{"n":1}}]}');
INSERT INTO "agentsd_messages" VALUES('run_195c4fd7686a42a5aa0315fcb4ecc10d','',2,'{"role":"tool","content":"saw 1","tool_call_id":"c1","status":"success"}');
INSERT INTO "agentsd_messages" VALUES('run_195c4fd7686a42a5aa0315fcb4ecc10d','',3,'{"role":"assistant","content":"first answer"}');
INSERT INTO "agentsd_messages" VALUES('run_354fda9fc7214726880534ee0dc1d08a','',0,'{"role":"user","content":"pay"}');
INSERT INTO "agentsd_messages" VALUES('run_354fda9fc7214726880534ee0dc1d08a','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"pay"}]}');
INSERT INTO "agentsd_messages" VALUES('run_e19f68fe4cbb45219506d49813443836','',0,'{"role":"user","content":"hang"}');
INSERT INTO "agentsd_messages" VALUES('run_e19f68fe4cbb45219506d49813443836','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"hang"}]}');
CREATE TABLE agentsd_packed (
	run_id TEXT NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (run_id)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_packed" VALUES('run_195c4fd7686a42a5aa0315fcb4ecc10d',X'6843E5594B6FE33610FE2B81CF5981A4443D725B14455B20DDBDE4D43830288AB285C89257A4924D8BFCF7CE90922CDB7236B173E8A627CBE2881ACEE39B6F46FFCC36A2317A76757B3B9B5DCEA4284BF8F9676EAFE6B32BB82A32F8851B743EBB9CCF4C5DE3FDF9ACACEB7B7B4734CB76AD2AA39D78053FF4F91916B481AD153E4DE15FA3745B1A27032BA64579B86CA5541AAE41A46ECDA64511B82D1E2FDC0B5529365A658B35CA538F10C24292244944231607CFCFB3BB4BABBA6984544E776DD4A67BAB58826676C7BA52763F3CD862F74C429AA246BDE159F3B401399077073D76E283C3D6A956CD83E8361A1F00375A9C70347C75B15660AB359E663E6370F24F947E62FE0D61574170C58917D19845F4AFF9EC053B3074D2811DCCAA6E972B679BBC68B4B910957E548DF3E99445F2A212601274ED2B14632CE0DC29767739530F18211866D4BAC8FEB7EF6EC034CE334D5BF58EC14B9A7019E45914C6A10898E042109FF25CA681929212882B8C31F5ADF3341C5035BDFD31E036C2AC60EDF66EF2F88D12DAFA1C0EB3521775553E5D7446C220A9ABBCC85425311620E8AC75D99EE6D6B12E4FCED21EFDF3A2F62765A04BC03ECDC0A055512DBB38F1A74ED227E85967F1CF3DCB116818D0E30DD0803E0BF64E0A8E3536F2CE3A65F0A35342DA6A88A63E9CD77AE9310726EAFB54CAD9F8E27BBA663D649D9E18FC478A8ECC2DEBF5A65416B0E12948F642AF16A334E9D27F17A70F90C380B25238D8CF45A915C81FB7467DAF2ABD6801DF419C11906DD16E0E8A370D686416C60A611EE27AA725E0F5DE82A98D28B7F7EC6652C815948E6187E1DEE2B1298CDA5BA8B50155501302198FCEC292D2FB5088D40F88CA641466491C9340C59948F380FA22E37E18F548A73780A3B69EDE6235146B574E2CB6785BB07BE3DE98CDB071AF4C9A724182840A5F045918A6D66550C9E11D8308E77ECE6131E7B11F7670795F54AE9A1790068D857387138D59381B47090F088D1312C6947312D2180454954D2E273E45A415C634450A30DE55457B569D79100A5E875DAF06F4FE598BC04BEF0017E1C642141E2C3FA8465BBCEFDFD131140DB97778B7DE2800C05C8189A4F2D096DE608C5F7EFFFCC71757F77ACDB12879EB3A73CECB542E2C79391039ACABBB5B4851654506F9608D7BF0B89675D39718B473D3D45080AFAAB62CF1AF2D9A7D0D2B8BEADEFD79BE1C47965C0973A165536CFADC3D2FB6949F289531190BC97D295C6DDE8DAD581125A2901195FA61EAE7566430A72C8B1E62A7232B617EECC73C3A125909E331210926EBCF1E59D7D77F5ADB7451EB4060C0841EDFBB5508514760B612E8DBF10600890FC04B9AADC48EE3BB8D1AF5AD05DE68E317321CE9F4383C0629BDA92BEDC2FC15623B15C106A223C99602C1FF816741E6DB2D3DF09E0204EF43BF7BAF4578AFA880EA6F01B82B5498DA6EDD11E6910002F249F9A1BE2B09D90C5BD5E5C5D0B59C9723B9882326290D0849734E00FCDF9823AFC0DF242694FB11B2C309FC8D180D80198768B89F3D4B6EBE7EBD3E2B4DC62E1E6F842EDFA6CAE0FB2E10ED2A06EF5E01E911DCAEEBBA6D6C170018F8043D13B40C2314B7224DA1A113B62DF1E3C1DB877E32075EE4BAC32D1ED8C733E5B2D3B5A0F3D93534D6170298429579872F83BC000AE4141AF7CE3B4A3BB6ECE9E26F14E427A78EC32B6CA7BB66FCBCAC992C1BBB9585A749247D41B81421548170B7B2BC226B62C6A200260347B386C79CC5B8FCB367CD96B5BC5C5DFAC8403702EC66EAFB1E15B10B43F5EE5BFF9383E6BDF908C9659EC9208A6818B09C4FF1912C0436AC5226B2C4E7994ADEC647004AE320A4C1113E123118BCF87EFC1198EE47E723DAD4302BFBAF3291119C76D380B735987B4DE064D4BF2F9C426A848C473C3906A70C5ADF9062E6FCAFE17418B102F7DD85D3D1D0F424F65A540F30FF58D8D08129A543BFF3CAF0648D7DEFE101040E095E80549E50167D8432FCF9B75FBFDC9CC55EC72E3EDC689F1EDEC0B47A8806471077EA3F8E457A2A9926690A03F488A44194F8C4F5E93D1F706894154B68152D9D7C51DA516C3B9DC06F39C012763683C6D4D4B2FB3424407077B52E0BF9B425CA6B9515EDFA80DC6A4F3C88A2146989B4B51B25634BF89E6DAF582E1BB5C409250CFB263A513B651C2CBA27BBDF955AE1DEA0699B2D95F1DCB4D12B8B758176E5F0C5EAB8D478F4D9EFE3E69E63CF905050FCEC45791C533F810F6327B3B32ED81EEBE63E877EE59D20259D1A368E21A59B68BD6DFE18C08C2844DA35D9FFB290F9891D227DB8D2333109DAF3DB38EF7B5F1E1D2C1D193BED8D5AC748107125898C7CE22B91E010743CB984A9EEB80BDD7E1718CF7DB10AE2E087BD2552EFE05BE1F3BF2859F4D2');
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
INSERT INTO "agentsd_parts" VALUES('run_354fda9fc7214726880534ee0dc1d08a','','call',0,'{"call":{"id":"c1","tool":"pay"},"contract":"5b92198ba15f5876b2c4bdb9abe0627d8a701a518ae09d79a7e9a947f0e55494","asked":"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250"}');
INSERT INTO "agentsd_parts" VALUES('run_e19f68fe4cbb45219506d49813443836','','call',0,'{"call":{"id":"c1","tool":"hang"},"started":1}');
CREATE TABLE agentsd_run_media (
	run_id TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	PRIMARY KEY (run_id, digest)
)
 WITHOUT ROWID

;
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
INSERT INTO "agentsd_runs" VALUES(1,'run_195c4fd7686a42a5aa0315fcb4ecc10d','c1',1,NULL,NULL,'one',1,'b75ec0c7303ea9de','b75ec0c7303ea9de','completed','final',4,NULL,NULL,NULL,0,0,2,20,NULL,'aab340edc76d98804e8dabf413ad5367','look around',1.79540189066424012188e+09,1.7954018907232320309e+09,1.7954018907232320309e+09,'{"run_id":"run_195c4fd7686a42a5aa0315fcb4ecc10d","agent":"one","generation":1,"digest":"b75ec0c7303ea9de","blueprint":"b75ec0c7303ea9de","conversation_id":"c1","conversation_ttl":2592000.0,"limits":{}}','{"traceparent":"00-aab340edc76d98804e8dabf413ad5367-b553f5d66f58360d-01","status":"completed","finish_reason":"final","output":"first answer","admitted":true,"background":[],"replies":[1,3],"steps":2,"tool_calls":1,"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20},"tool_stats":{"look":{"count":1,"total_ms":1.000260999717284}},"counted":[4,10],"call_counts":{"b51ae759bae72aea51658ddfb6a6594565549918abc5d16852692ccd90f1dc5e":1},"elapsed_ms":40.3582529979758,"seq":5}');
INSERT INTO "agentsd_runs" VALUES(2,'run_354fda9fc7214726880534ee0dc1d08a','c2',1,NULL,NULL,'one',1,'b75ec0c7303ea9de','b75ec0c7303ea9de','paused','confirmation',2,NULL,NULL,NULL,0,0,1,10,NULL,'b1a3225a34be62463e000db0e53e05f0','pay',1.79540189074822068211e+09,1.79540189078336024286e+09,NULL,'{"run_id":"run_354fda9fc7214726880534ee0dc1d08a","agent":"one","generation":1,"digest":"b75ec0c7303ea9de","blueprint":"b75ec0c7303ea9de","conversation_id":"c2","conversation_ttl":2592000.0,"limits":{}}','{"traceparent":"00-b1a3225a34be62463e000db0e53e05f0-90aff5c71aab0ee8-01","status":"paused","finish_reason":"confirmation","admitted":true,"background":[],"replies":[1],"pending":[{"id":"c1","kind":"tool","agent":"one","tool":"pay","description":"Pay.","hash":"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250","rule":"ask pay (agents.d/one.yaml:6)","risk":"low"}],"paused_at":1795401890.771198,"steps":1,"tool_calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10},"counted":[2,10],"call_counts":{"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250":1},"elapsed_ms":16.311114995914977,"seq":4}');
INSERT INTO "agentsd_runs" VALUES(3,'run_e19f68fe4cbb45219506d49813443836',NULL,NULL,NULL,NULL,'one',1,'b75ec0c7303ea9de','b75ec0c7303ea9de','running','',2,'other pid:[1] time:[1] 0/1:1/0.3',1.79540190080899500846e+09,37106.458663407,0,0,1,10,NULL,'d9a242690e018a044a5496f393b4730a','hang',1.79540189078983330722e+09,1.79540189079929351804e+09,NULL,'{"run_id":"run_e19f68fe4cbb45219506d49813443836","agent":"one","generation":1,"digest":"b75ec0c7303ea9de","blueprint":"b75ec0c7303ea9de","conversation_ttl":2592000.0,"limits":{}}','{"traceparent":"00-d9a242690e018a044a5496f393b4730a-b4ca916b448d5403-01","admitted":true,"background":[],"replies":[1],"steps":1,"tool_calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10},"counted":[2,10],"call_counts":{"8860406351b082a709fe832ab712bfc439837649e85b9b70027c5722e6c58f89":1},"elapsed_ms":1.2442439983715303,"seq":2}');
CREATE TABLE agentsd_schema (
	version INTEGER NOT NULL, 
	applied_at DOUBLE NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "agentsd_schema" VALUES(1,1.79540189057627964019e+09);
INSERT INTO "agentsd_schema" VALUES(2,1.79540189058567476267e+09);
INSERT INTO "agentsd_schema" VALUES(3,1.7954018905866091252e+09);
INSERT INTO "agentsd_schema" VALUES(4,1.79540189058767867087e+09);
CREATE TABLE agentsd_spans (
	run_id TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (run_id, version)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_spans" VALUES('run_354fda9fc7214726880534ee0dc1d08a',2,'[{"name":"agent.route","trace_id":"b1a3225a34be62463e000db0e53e05f0","span_id":"ed5968b5d3152491","parent_id":"90aff5c71aab0ee8","kind":"internal","start_ns":1795401890754554666,"end_ns":1795401890754562448,"attributes":{"agentsd.run.id":"run_354fda9fc7214726880534ee0dc1d08a","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"CHAIN","agentsd.route.mode":"default","agentsd.route.agent":"one","agentsd.route.candidates":1,"agentsd.route.score":1.0},"error":null,"events":[],"links":[]},{"name":"chat scripted","trace_id":"b1a3225a34be62463e000db0e53e05f0","span_id":"1ccd2eaf449587a8","parent_id":"e247a2f9f3dda4fb","kind":"client","start_ns":1795401890755197495,"end_ns":1795401890755433196,"attributes":{"agentsd.run.id":"run_354fda9fc7214726880534ee0dc1d08a","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"LLM","gen_ai.agent.name":"one","gen_ai.operation.name":"chat","gen_ai.provider.name":"scripted","gen_ai.request.model":"scripted","gen_ai.response.model":"scripted","gen_ai.response.finish_reasons":["tool_calls"],"agentsd.model.attempts":1,"gen_ai.usage.input_tokens":5,"gen_ai.usage.output_tokens":5},"error":null,"events":[],"links":[]},{"name":"execute_tool pay","trace_id":"b1a3225a34be62463e000db0e53e05f0","span_id":"cecb427e69266ee7","parent_id":"e247a2f9f3dda4fb","kind":"internal","start_ns":1795401890755755446,"end_ns":1795401890770962135,"attributes":{"agentsd.run.id":"run_354fda9fc7214726880534ee0dc1d08a","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"TOOL","gen_ai.agent.name":"one","gen_ai.operation.name":"execute_tool","gen_ai.tool.name":"pay","gen_ai.tool.call.id":"c1","agentsd.tool.source":"python","agentsd.tool.risk":"low","gen_ai.tool.type":"function","gen_ai.tool.description":"Pay.","agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain","agentsd.tool.outcome":"waiting"},"error":null,"events":[{"name":"agentsd.confirm.requested","at_ns":1795401890770921695,"attributes":{"agentsd.confirm.id":"c1","agentsd.confirm.kind":"tool","agentsd.confirm.rule":"ask pay (agents.d/one.yaml:6)"}}],"links":[]},{"name":"agent.step 1","trace_id":"b1a3225a34be62463e000db0e53e05f0","span_id":"e247a2f9f3dda4fb","parent_id":"0f75b5d41b92c479","kind":"internal","start_ns":1795401890754878379,"end_ns":1795401890771096686,"attributes":{"agentsd.run.id":"run_354fda9fc7214726880534ee0dc1d08a","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"CHAIN","gen_ai.agent.name":"one","agentsd.step.index":1,"agentsd.step.kind":"action","agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain"},"error":null,"events":[],"links":[]},{"name":"invoke_agent one","trace_id":"b1a3225a34be62463e000db0e53e05f0","span_id":"0f75b5d41b92c479","parent_id":"90aff5c71aab0ee8","kind":"internal","start_ns":1795401890754761715,"end_ns":1795401890771163766,"attributes":{"agentsd.run.id":"run_354fda9fc7214726880534ee0dc1d08a","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"AGENT","gen_ai.agent.name":"one","gen_ai.operation.name":"invoke_agent","gen_ai.agent.description":"The agent one.","gen_ai.agent.version":"b9bbd7670b47930f","agentsd.agent.digest":"b9bbd7670b47930f","agentsd.executor":"react","agentsd.protocol":"auto","agentsd.policy.risk":"medium","agentsd.tools.available":3,"gen_ai.provider.name":"scripted","gen_ai.request.model":"scripted","agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain","gen_ai.aggregated_usage.input_tokens":5,"gen_ai.aggregated_usage.output_tokens":5,"agentsd.budget.tokens.limit":50000,"agentsd.budget.tokens.used":10,"agentsd.prompt.digest":"06a1026015881391"},"error":null,"events":[],"links":[]},{"name":"invoke_workflow one","trace_id":"b1a3225a34be62463e000db0e53e05f0","span_id":"90aff5c71aab0ee8","parent_id":null,"kind":"internal","start_ns":1795401890754495037,"end_ns":1795401890771219729,"attributes":{"agentsd.run.id":"run_354fda9fc7214726880534ee0dc1d08a","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"CHAIN","gen_ai.operation.name":"invoke_workflow","gen_ai.workflow.name":"one","gen_ai.agent.name":"one","agentsd.config.digest":"b75ec0c7303ea9de","agentsd.run.outcome":"waiting_confirmation","agentsd.run.steps":1,"agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain"},"error":null,"events":[],"links":[]}]');
CREATE INDEX ix_agentsd_conversations_expires_at ON agentsd_conversations (expires_at);
CREATE INDEX ix_agentsd_runs_ended_at ON agentsd_runs (ended_at);
CREATE INDEX ix_agentsd_runs_status ON agentsd_runs (status);
CREATE INDEX ix_agentsd_runs_created_at ON agentsd_runs (created_at);
CREATE INDEX ix_agentsd_run_media_digest ON agentsd_run_media (digest);
CREATE INDEX ix_agentsd_budget_counters_owner ON agentsd_budget_counters (owner);
COMMIT;
