BEGIN TRANSACTION;
CREATE TABLE agentsd_blueprints (
	digest TEXT NOT NULL, 
	files TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY (digest)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_blueprints" VALUES('b75ec0c7303ea9de','{"agents.d/one.yaml":"version: 1\nname: one\ndescription: The agent one.\nmodel: scripted\ninstructions: You are one.\nskill_policy: {ask: [pay], allow: [pay, look, hang]}\nconversation: {ttl: 30d}\n"}',1.79542538426797962185e+09);
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
INSERT INTO "agentsd_conversations" VALUES('c1',NULL,NULL,'one',NULL,1,'{}',NULL,0,1.79542538426582765575e+09,1.79542538430809044841e+09,4.0e+09);
INSERT INTO "agentsd_conversations" VALUES('c2',NULL,NULL,NULL,'run_5e99468fa1c7415e8b1d4708c902ea67',1,'{}',NULL,0,1.79542538431825280187e+09,1.79542538431825280187e+09,NULL);
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
INSERT INTO "agentsd_events" VALUES('run_5e99468fa1c7415e8b1d4708c902ea67',1,1.79542538432362794873e+09,'{"event":"route","run_id":"run_5e99468fa1c7415e8b1d4708c902ea67","seq":1,"generation":1,"path":[],"agent":"one","reason":"the only agent","confidence":1.0,"digest":"b75ec0c7303ea9de"}');
INSERT INTO "agentsd_events" VALUES('run_5e99468fa1c7415e8b1d4708c902ea67',2,1.79542538432362794873e+09,'{"event":"tool_call","run_id":"run_5e99468fa1c7415e8b1d4708c902ea67","seq":2,"generation":1,"path":[],"id":"c1","tool":"pay","arguments":{},"status":"pending"}');
INSERT INTO "agentsd_events" VALUES('run_5e99468fa1c7415e8b1d4708c902ea67',3,1.79542538432362794873e+09,'{"event":"confirm_required","run_id":"run_5e99468fa1c7415e8b1d4708c902ea67","seq":3,"generation":1,"path":[],"id":"c1","kind":"tool","agent":"one","tool":"pay","description":"Pay.","arguments":{},"hash":"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250","reason":"","rule":"ask pay (agents.d/one.yaml:6)","risk":"low","choices":[],"on_expiry":"reject"}');
INSERT INTO "agentsd_events" VALUES('run_5e99468fa1c7415e8b1d4708c902ea67',4,1.79542538432362794873e+09,'{"event":"done","run_id":"run_5e99468fa1c7415e8b1d4708c902ea67","seq":4,"generation":1,"path":[],"status":"paused","finish_reason":"confirmation","output":"","truncated":false,"message_id":"msg.1","tokens_used":10,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10,"cached_tokens":0,"cache_write_tokens":0,"cost_usd":0.0},"trace_id":"1381be82edecb80c333bd109e39a73a9","digest":"b75ec0c7303ea9de"}');
INSERT INTO "agentsd_events" VALUES('run_6e17aa4e548245558933a358f43062fc',1,1.79542538433335494996e+09,'{"event":"route","run_id":"run_6e17aa4e548245558933a358f43062fc","seq":1,"generation":1,"path":[],"agent":"one","reason":"the only agent","confidence":1.0,"digest":"b75ec0c7303ea9de"}');
INSERT INTO "agentsd_events" VALUES('run_6e17aa4e548245558933a358f43062fc',2,1.79542538433335494996e+09,'{"event":"tool_call","run_id":"run_6e17aa4e548245558933a358f43062fc","seq":2,"generation":1,"path":[],"id":"c1","tool":"hang","arguments":{},"status":"running"}');
CREATE TABLE agentsd_idempotency_keys (
	"key" TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	run_id TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY ("key")
)
 WITHOUT ROWID

;
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
INSERT INTO "agentsd_messages" VALUES('run_5e99468fa1c7415e8b1d4708c902ea67','',0,'{"role":"user","content":"pay"}');
INSERT INTO "agentsd_messages" VALUES('run_5e99468fa1c7415e8b1d4708c902ea67','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"pay"}]}');
INSERT INTO "agentsd_messages" VALUES('run_6e17aa4e548245558933a358f43062fc','',0,'{"role":"user","content":"hang"}');
INSERT INTO "agentsd_messages" VALUES('run_6e17aa4e548245558933a358f43062fc','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"hang"}]}');
INSERT INTO "agentsd_messages" VALUES('run_fc9627ca05f047dab54bdc90ee93468d','',0,'{"role":"user","content":"look around"}');
INSERT INTO "agentsd_messages" VALUES('run_fc9627ca05f047dab54bdc90ee93468d','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"look","arguments":{"n":1}}]}');
INSERT INTO "agentsd_messages" VALUES('run_fc9627ca05f047dab54bdc90ee93468d','',2,'{"role":"tool","content":"saw 1","tool_call_id":"c1","status":"success"}');
INSERT INTO "agentsd_messages" VALUES('run_fc9627ca05f047dab54bdc90ee93468d','',3,'{"role":"assistant","content":"first answer"}');
CREATE TABLE agentsd_packed (
	run_id TEXT NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (run_id)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_packed" VALUES('run_fc9627ca05f047dab54bdc90ee93468d',X'6843DD59DF6FA33810FE572A9EBBC88031B86FABD3E9EEA4DEEE4B9FAEA922639B049540169B767BABFEEF37B6819084B44DD2876B575A95E0C1787E7DDFCCF0CB5BB3462BEFEAF6D6F32E3DCECA12FEFC9AD9AB997705578580BF7023987997334FD7B5B93FF3CABABEB77758B36857B2D2CA8957F027787E8605A5616B699E0EE05723555B6A27032BBA35F270D9722E155C8348DDEA756B44E0367BBC702F94255B2B29E62B238F7C8A621A504A31A1518869FCFCECDD5DDAB3EB8671E90EAFB45C77AF650B389ADDB2AEA4DDD06836DF568A715DD4E6E0F0AC7E5A831CC83B4D0FA9BCA76D9D29D93CB06EA3B10666A3F929BA9977172B09D65A1975665E8842F22508BE84D10DA25701B90AB11FD294C6E49F99F7822142E3A63D43E865DD2E96CE3879D1287DC12AF5281BE7D52993E445C5C026C6B9AF1F2C4249442277B0BB4B4F3E9818318116581FD9DFF6DD0DD8C6B9A669ABDE33E632E79484096728CE114E04CB629C094E919434C22485C83251267F74AE060565D33BC084DC9AE925ACDDDE4DAADF48A6ACD34199A5BCA8ABF2E9A233928992BACA0B212B6E8221F011DC12C5027C611FC8925872C493084592510132D6FAE18E66D6F32E93CED2CEF8EF45ED4ECA5197A27D2282C1ABA25A749A44539AF4297C962ED1B9BA1C008F015F8E010FE334BCA32A785EDBD03C4B4DFC9A9A90D70AC2AD8FF7955AF8A1831BF9732A276D80C53B67153DA89D9E39F16B071DD99BD7AB75292DA6C3538006855ACE4779D4E1C33694EF418B86C372E6982167A592207FD81AF5BDACD4BC050A00F1D0E4616BECE6C07ADDC089F45C5B2193A866BD3B2520FACE82AE352B37F7EC669CF125B0CBB0C3706FFED8145AEE2CD44AC351CC49908F2C0C1AD2E97D98B220A602111C6788873C0B01980506D84AB28C209E5AABBD862200956A0D406C29F9D6102A5B3942B2E0E46FD0F2F8779B8DFBC32619A7A9C0929104FE77EC0EC500BCA317894496209624A9C83926913BFF7D51B982A08034692C1F382069F4DCF920A1310EE328C5213C1AE32031369595985A2621490C2230AD9B22031EE878D5EAAA840FA1E277E0F66646E89FB510BEF0F780136ECC59E1C3F2836C94258CFE1D9D1914E4E6FEDD7A2D0121730926E2D237B6F40763FCF6E7D7BFBE39E2EC4F6E58CD5FD5861CC05A42E6CCD63F7B22FBC4BCBD0567952804E48B35EEDEE38AD74DC751262065D3D4C0E057555B96E6A765DD9E04CBA2BA773F9E2FC791C5974C5F28DE14EB3EB7CF8B2D91E538CCB84CD33C22A18CACD6DBB145A5C811C7C0A321F07BE0106530272F8B1E82A7232B4D8230492383B2539195260981D84B3F41645D5FFF6D6DD345AD038101137AFCEF5621445D05B49130BE1D6F0090F900854DB391D8727CB751237FB450ECD8F8850C3715F9383C0629B5AE2BE5C2FC0D625B8C6103D195D9B64682DF43A106996FB7F4011724207C1FFADD7B2D03F84505DDC206A03B2233A9EDD65DC93D1238393FE44FC9219B61ABBABC181A9FF37204930CCB9CC66998409D2B8ECF9137E02F0D0392C6844E6749844814A501B5DDC107C7DF9BEFDFAFCF4A93B18BC71B19976F5265F07D178876D504EF0E81F4086ED755DD36B68D000C7C82A60B7A8E118A5B91A650D04CDBAEFA71EFED43479A43DDE4FACB0D1ED8C78574D9E99AD899770DBDF905834AA112FEFECB202FA04472071AB7DF5B8776E5B4AF8A7F8D607C72EA38BC320D79D7CF9F973593B4B1CD2C82A5248B84A4229570B9C32C6FC81A208E244A4253964C700B640D4E70480DF57CF4ACD9542D2FB34B1F19C68D00BB42FEDC2945ECC2C0DEFDECE0E4A079EF7A84B130C4440889681A04024DD42384122431CFF28C624C0839AE1E81A0809888D1817A049629942BD8566F1F1C693F7B3DA2740DC3B6FF6B253282D36E5A7074033A6E0227A3FE7DE114623F0EA2343A08A7098E6212249F2035CE82D361460BB5EF369C8EA6AE27757745F500F391B90D1D1873BA51EB79343CC9B1EF3D3C483180AAE5D9491A4E701A07E96780D4AF7FFCFEEDE6ACEA75ECE2FD8D76CBC31B18770FD1E00AC42DFE376391BE94CC68960968A65186131AA17CAB9C7468349E68BD24ED4A6C3B9D309F83A04AD8DA0C1A535DF3EEEB1203C1EDD5BA2CF8D3A6505E4951B4ABBDE256F9EC811525CB4A53B676B366D312BE67DBCB168B462ECC04138681139DA89D420E16DD91DDED4AAD705F6065AD5848EDBB69A45F16ABC28C826304FF0E4A8D47A3FD3E6E2E3AF60C222C80AF472888D33488287C5B3BB93AEB82EDB16EEE73E857DE095226878D6348E9265AC7CD1F611649D2C3D4130749149AF6F8A357657BD4333109DAF1DB38EF7B5F1E1C2C1D183BED8C5A5F9C6D8F279730D51D77A19BEF06E3B9AF614133F8098F89D43BF8D8F8FC1FDE7C08C6');
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
INSERT INTO "agentsd_parts" VALUES('run_5e99468fa1c7415e8b1d4708c902ea67','','call',0,'{"call":{"id":"c1","tool":"pay"},"contract":"5b92198ba15f5876b2c4bdb9abe0627d8a701a518ae09d79a7e9a947f0e55494","asked":"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250"}');
INSERT INTO "agentsd_parts" VALUES('run_6e17aa4e548245558933a358f43062fc','','call',0,'{"call":{"id":"c1","tool":"hang"},"started":1}');
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
	input_tokens INTEGER, 
	output_tokens INTEGER, 
	cached_tokens INTEGER, 
	cost_usd DOUBLE, 
	elapsed_ms DOUBLE, 
	tool_calls INTEGER, 
	unpriced_calls INTEGER, 
	model_uses TEXT, 
	head TEXT NOT NULL, 
	state TEXT NOT NULL, 
	request TEXT, 
	PRIMARY KEY (no), 
	UNIQUE (conversation_id, turn), 
	UNIQUE (id)
);
INSERT INTO "agentsd_runs" VALUES(1,'run_fc9627ca05f047dab54bdc90ee93468d','c1',1,NULL,NULL,'one',1,'b75ec0c7303ea9de','b75ec0c7303ea9de','completed','final',4,NULL,NULL,NULL,0,0,2,20,NULL,'8a159d0645b0c2cb2956d4ab57bb60c8','look around',1.79542538426908445357e+09,1.79542538430809044841e+09,1.79542538430809044841e+09,10,10,0,0.0,2.89545730047393590211e+01,1,0,'{"scripted":{"calls":2,"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20}}}','{"run_id":"run_fc9627ca05f047dab54bdc90ee93468d","agent":"one","generation":1,"digest":"b75ec0c7303ea9de","blueprint":"b75ec0c7303ea9de","conversation_id":"c1","conversation_ttl":2592000.0,"limits":{}}','{"traceparent":"00-8a159d0645b0c2cb2956d4ab57bb60c8-3db70a778dfc4638-01","status":"completed","finish_reason":"final","output":"first answer","admitted":true,"background":[],"replies":[1,3],"steps":2,"tool_calls":1,"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20},"model_uses":{"scripted":{"calls":2,"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20}}},"tool_stats":{"look":{"count":1,"total_ms":0.9059199946932495}},"counted":[4,10],"call_counts":{"b51ae759bae72aea51658ddfb6a6594565549918abc5d16852692ccd90f1dc5e":1},"elapsed_ms":28.95457300473936,"seq":5}',NULL);
INSERT INTO "agentsd_runs" VALUES(2,'run_5e99468fa1c7415e8b1d4708c902ea67','c2',1,NULL,NULL,'one',1,'b75ec0c7303ea9de','b75ec0c7303ea9de','paused','confirmation',2,NULL,NULL,NULL,0,0,1,10,NULL,'1381be82edecb80c333bd109e39a73a9','pay',1.79542538431887698175e+09,1.79542538432378697395e+09,NULL,5,5,0,0.0,2.44737799948779866099e+00,1,0,'{"scripted":{"calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10}}}','{"run_id":"run_5e99468fa1c7415e8b1d4708c902ea67","agent":"one","generation":1,"digest":"b75ec0c7303ea9de","blueprint":"b75ec0c7303ea9de","conversation_id":"c2","conversation_ttl":2592000.0,"limits":{}}','{"traceparent":"00-1381be82edecb80c333bd109e39a73a9-bf0e61f2f97a7f72-01","status":"paused","finish_reason":"confirmation","admitted":true,"background":[],"replies":[1],"pending":[{"id":"c1","kind":"tool","agent":"one","tool":"pay","description":"Pay.","hash":"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250","rule":"ask pay (agents.d/one.yaml:6)","risk":"low"}],"paused_at":1795425384.3228352,"steps":1,"tool_calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10},"model_uses":{"scripted":{"calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10}}},"counted":[2,10],"call_counts":{"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250":1},"elapsed_ms":2.4473779994877987,"seq":4}',NULL);
INSERT INTO "agentsd_runs" VALUES(3,'run_6e17aa4e548245558933a358f43062fc',NULL,NULL,NULL,NULL,'one',1,'b75ec0c7303ea9de','b75ec0c7303ea9de','running','',2,'other pid:[1] time:[1] 0/1:1/0.3',1.79542539433298325535e+09,60599.992826205,0,0,1,10,NULL,'382762089a1577d56dd71d9e2ff1a441','hang',1.79542538432659745219e+09,1.79542538433345794674e+09,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"run_id":"run_6e17aa4e548245558933a358f43062fc","agent":"one","generation":1,"digest":"b75ec0c7303ea9de","blueprint":"b75ec0c7303ea9de","conversation_ttl":2592000.0,"limits":{}}','{"traceparent":"00-382762089a1577d56dd71d9e2ff1a441-cdb405855c278d4d-01","admitted":true,"background":[],"replies":[1],"steps":1,"tool_calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10},"model_uses":{"scripted":{"calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10}}},"counted":[2,10],"call_counts":{"8860406351b082a709fe832ab712bfc439837649e85b9b70027c5722e6c58f89":1},"elapsed_ms":1.0342619934817776,"seq":2}',NULL);
CREATE TABLE agentsd_schema (
	version INTEGER NOT NULL, 
	applied_at DOUBLE NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "agentsd_schema" VALUES(1,1.79542538421721291535e+09);
INSERT INTO "agentsd_schema" VALUES(2,1.79542538421805357926e+09);
INSERT INTO "agentsd_schema" VALUES(3,1.79542538421885514263e+09);
INSERT INTO "agentsd_schema" VALUES(4,1.79542538421973371502e+09);
INSERT INTO "agentsd_schema" VALUES(5,1.79542538422456622124e+09);
INSERT INTO "agentsd_schema" VALUES(6,1.79542538422606039044e+09);
CREATE TABLE agentsd_spans (
	run_id TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (run_id, version)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_spans" VALUES('run_5e99468fa1c7415e8b1d4708c902ea67',2,'[{"name":"agent.route","trace_id":"1381be82edecb80c333bd109e39a73a9","span_id":"223b4fd6b415e08e","parent_id":"bf0e61f2f97a7f72","kind":"internal","start_ns":1795425384320143782,"end_ns":1795425384320148799,"attributes":{"agentsd.run.id":"run_5e99468fa1c7415e8b1d4708c902ea67","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"CHAIN","agentsd.route.mode":"default","agentsd.route.agent":"one","agentsd.route.candidates":1,"agentsd.route.score":1.0},"error":null,"events":[],"links":[]},{"name":"chat scripted","trace_id":"1381be82edecb80c333bd109e39a73a9","span_id":"3365122188c01c97","parent_id":"ec21df6cf75463c6","kind":"client","start_ns":1795425384320633622,"end_ns":1795425384320975912,"attributes":{"agentsd.run.id":"run_5e99468fa1c7415e8b1d4708c902ea67","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"LLM","gen_ai.agent.name":"one","gen_ai.operation.name":"chat","gen_ai.provider.name":"scripted","gen_ai.request.model":"scripted","gen_ai.response.model":"scripted","gen_ai.response.finish_reasons":["tool_calls"],"agentsd.model.attempts":1,"gen_ai.usage.input_tokens":5,"gen_ai.usage.output_tokens":5},"error":null,"events":[],"links":[]},{"name":"execute_tool pay","trace_id":"1381be82edecb80c333bd109e39a73a9","span_id":"6bd72caeef6c5dd3","parent_id":"ec21df6cf75463c6","kind":"internal","start_ns":1795425384321201669,"end_ns":1795425384322726312,"attributes":{"agentsd.run.id":"run_5e99468fa1c7415e8b1d4708c902ea67","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"TOOL","gen_ai.agent.name":"one","gen_ai.operation.name":"execute_tool","gen_ai.tool.name":"pay","gen_ai.tool.call.id":"c1","agentsd.tool.source":"python","agentsd.tool.risk":"low","gen_ai.tool.type":"function","gen_ai.tool.description":"Pay.","agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain","agentsd.tool.outcome":"waiting"},"error":null,"events":[{"name":"agentsd.confirm.requested","at_ns":1795425384322699281,"attributes":{"agentsd.confirm.id":"c1","agentsd.confirm.kind":"tool","agentsd.confirm.rule":"ask pay (agents.d/one.yaml:6)"}}],"links":[]},{"name":"agent.step 1","trace_id":"1381be82edecb80c333bd109e39a73a9","span_id":"ec21df6cf75463c6","parent_id":"10a88f71cfa2c392","kind":"internal","start_ns":1795425384320406263,"end_ns":1795425384322785410,"attributes":{"agentsd.run.id":"run_5e99468fa1c7415e8b1d4708c902ea67","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"CHAIN","gen_ai.agent.name":"one","agentsd.step.index":1,"agentsd.step.kind":"action","agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain"},"error":null,"events":[],"links":[]},{"name":"invoke_agent one","trace_id":"1381be82edecb80c333bd109e39a73a9","span_id":"10a88f71cfa2c392","parent_id":"bf0e61f2f97a7f72","kind":"internal","start_ns":1795425384320326134,"end_ns":1795425384322815234,"attributes":{"agentsd.run.id":"run_5e99468fa1c7415e8b1d4708c902ea67","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"AGENT","gen_ai.agent.name":"one","gen_ai.operation.name":"invoke_agent","gen_ai.agent.description":"The agent one.","gen_ai.agent.version":"b9bbd7670b47930f","agentsd.agent.digest":"b9bbd7670b47930f","agentsd.executor":"react","agentsd.protocol":"auto","agentsd.policy.risk":"medium","agentsd.tools.available":3,"gen_ai.provider.name":"scripted","gen_ai.request.model":"scripted","agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain","gen_ai.aggregated_usage.input_tokens":5,"gen_ai.aggregated_usage.output_tokens":5,"agentsd.budget.tokens.limit":50000,"agentsd.budget.tokens.used":10,"agentsd.prompt.digest":"06a1026015881391"},"error":null,"events":[],"links":[]},{"name":"invoke_workflow one","trace_id":"1381be82edecb80c333bd109e39a73a9","span_id":"bf0e61f2f97a7f72","parent_id":null,"kind":"internal","start_ns":1795425384320107307,"end_ns":1795425384322847592,"attributes":{"agentsd.run.id":"run_5e99468fa1c7415e8b1d4708c902ea67","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"CHAIN","gen_ai.operation.name":"invoke_workflow","gen_ai.workflow.name":"one","gen_ai.agent.name":"one","agentsd.config.digest":"b75ec0c7303ea9de","agentsd.run.outcome":"waiting_confirmation","agentsd.run.steps":1,"agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain"},"error":null,"events":[],"links":[]}]');
CREATE INDEX ix_agentsd_conversations_of_tenants ON agentsd_conversations (id) WHERE tenant IS NOT NULL;
CREATE INDEX ix_agentsd_conversations_expires_at ON agentsd_conversations (expires_at);
CREATE INDEX ix_agentsd_runs_waiting ON agentsd_runs (conversation_id, no) WHERE status = 'queued';
CREATE INDEX ix_agentsd_runs_created_at ON agentsd_runs (created_at);
CREATE INDEX ix_agentsd_runs_ended_at ON agentsd_runs (ended_at);
CREATE INDEX ix_agentsd_runs_queued ON agentsd_runs (no) WHERE status = 'queued';
CREATE INDEX ix_agentsd_runs_status ON agentsd_runs (status);
CREATE INDEX ix_agentsd_runs_paused ON agentsd_runs (expires_at) WHERE status = 'paused';
CREATE INDEX ix_agentsd_run_media_digest ON agentsd_run_media (digest);
CREATE INDEX ix_agentsd_budget_counters_owner ON agentsd_budget_counters (owner);
CREATE INDEX ix_agentsd_idempotency_keys_created_at ON agentsd_idempotency_keys (created_at);
CREATE INDEX ix_agentsd_idempotency_keys_run_id ON agentsd_idempotency_keys (run_id);
COMMIT;
