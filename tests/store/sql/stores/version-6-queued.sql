BEGIN TRANSACTION;
CREATE TABLE agentsd_blueprints (
	digest TEXT NOT NULL, 
	files TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY (digest)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_blueprints" VALUES('b75ec0c7303ea9de','{"agents.d/one.yaml":"version: 1\nname: one\ndescription: The agent one.\nmodel: scripted\ninstructions: You are one.\nskill_policy: {ask: [pay], allow: [pay, look, hang]}\nconversation: {ttl: 30d}\n"}',1.79542538734546756745e+09);
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
INSERT INTO "agentsd_conversations" VALUES('c1',NULL,NULL,'one',NULL,1,'{}',NULL,0,1.79542538734212756153e+09,1.79542538737643074986e+09,4.0e+09);
INSERT INTO "agentsd_conversations" VALUES('c2',NULL,NULL,NULL,'run_cd7ccb4c82fd4d6ea602e6a4c589a484',1,'{}',NULL,0,1.79542538738223934175e+09,1.79542538738223934175e+09,NULL);
INSERT INTO "agentsd_conversations" VALUES('c3',NULL,NULL,NULL,NULL,0,'{}',NULL,0,1.79542538742041397088e+09,1.79542538742041397088e+09,NULL);
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
INSERT INTO "agentsd_events" VALUES('run_cd7ccb4c82fd4d6ea602e6a4c589a484',1,1.79542538739341521261e+09,'{"event":"route","run_id":"run_cd7ccb4c82fd4d6ea602e6a4c589a484","seq":1,"generation":1,"path":[],"agent":"one","reason":"the only agent","confidence":1.0,"digest":"b75ec0c7303ea9de"}');
INSERT INTO "agentsd_events" VALUES('run_cd7ccb4c82fd4d6ea602e6a4c589a484',2,1.79542538739341521261e+09,'{"event":"tool_call","run_id":"run_cd7ccb4c82fd4d6ea602e6a4c589a484","seq":2,"generation":1,"path":[],"id":"c1","tool":"pay","arguments":{},"status":"pending"}');
INSERT INTO "agentsd_events" VALUES('run_cd7ccb4c82fd4d6ea602e6a4c589a484',3,1.79542538739341521261e+09,'{"event":"confirm_required","run_id":"run_cd7ccb4c82fd4d6ea602e6a4c589a484","seq":3,"generation":1,"path":[],"id":"c1","kind":"tool","agent":"one","tool":"pay","description":"Pay.","arguments":{},"hash":"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250","reason":"","rule":"ask pay (agents.d/one.yaml:6)","risk":"low","choices":[],"on_expiry":"reject"}');
INSERT INTO "agentsd_events" VALUES('run_cd7ccb4c82fd4d6ea602e6a4c589a484',4,1.79542538739341521261e+09,'{"event":"done","run_id":"run_cd7ccb4c82fd4d6ea602e6a4c589a484","seq":4,"generation":1,"path":[],"status":"paused","finish_reason":"confirmation","output":"","truncated":false,"message_id":"msg.1","tokens_used":10,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10,"cached_tokens":0,"cache_write_tokens":0,"cost_usd":0.0},"trace_id":"9a77e115f7affcd04f4e0cf2f278d69b","digest":"b75ec0c7303ea9de"}');
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
INSERT INTO "agentsd_messages" VALUES('run_4d90e4f3a65c48dd83b43b99de915334','',0,'{"role":"user","content":"3"}');
INSERT INTO "agentsd_messages" VALUES('run_92bb73bb084e4884bbea501c206b23f8','',0,'{"role":"user","content":"look around"}');
INSERT INTO "agentsd_messages" VALUES('run_92bb73bb084e4884bbea501c206b23f8','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"look","arguments":{"n":1}}]}');
INSERT INTO "agentsd_messages" VALUES('run_92bb73bb084e4884bbea501c206b23f8','',2,'{"role":"tool","content":"saw 1","tool_call_id":"c1","status":"success"}');
INSERT INTO "agentsd_messages" VALUES('run_92bb73bb084e4884bbea501c206b23f8','',3,'{"role":"assistant","content":"first answer"}');
INSERT INTO "agentsd_messages" VALUES('run_9340610cda3f4dbcab32b9b06ee4c2f7','',0,'{"role":"user","content":"6"}');
INSERT INTO "agentsd_messages" VALUES('run_a707108600864e988bc61fa4109cbb69','',0,'{"role":"user","content":"2"}');
INSERT INTO "agentsd_messages" VALUES('run_b44ea113067549b09ec9d1cce0183e8d','',0,'{"role":"user","content":"4"}');
INSERT INTO "agentsd_messages" VALUES('run_cd7ccb4c82fd4d6ea602e6a4c589a484','',0,'{"role":"user","content":"pay"}');
INSERT INTO "agentsd_messages" VALUES('run_cd7ccb4c82fd4d6ea602e6a4c589a484','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"pay"}]}');
INSERT INTO "agentsd_messages" VALUES('run_d08acb8c1055410d8a5501c85adcf5ae','',0,'{"role":"user","content":"1"}');
INSERT INTO "agentsd_messages" VALUES('run_e5010dd3e2ed44508a66cf590256aa82','',0,'{"role":"user","content":"5"}');
CREATE TABLE agentsd_packed (
	run_id TEXT NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (run_id)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_packed" VALUES('run_92bb73bb084e4884bbea501c206b23f8',X'6843DD594D73A33810FD2B29CE194A4202416E535B5BBB5B959DB9E4B471CA2584B0A960F020914C762AFF7D5B12606CE324B673D8249718D408F5D7EBD7CD2F6FCD1BADBCABDB5BCFBBF4042F4BF8F76B667FCDBC2BF85564F01F6EE0997739F3745D9BFB33AFACEB7B7B87378B76252BAD9C7805FFF0F3332C280D5B4BF33486AB46AAB6D44E0656746BE4E1672B8454F01B44EA56AF5B2302B7F9E3857BA12CF95AC96CBE32F2C84F30C68825491287940518DEE4DD5DDAB3EB860BE90EAFB45C77AFE50B389ADDB2AEA4DDD06836DF568A0B5DD4E6E0F0AC7E5A831CC83B4D0FA9BCA76D9D2AD93CF06EA3B10666A3F929BA9977172B09D65A1975665E8082E80BC65F027283922B1C5D05CC27518CC3F89F99F7822102E3A63D43E865DD2E96CE3879D1287DC12BF5281BE7D52993E445C5C126C6B96F38180B4346DDC1EE2E3DF96062C4041AB63EB2D7F6DD0DD8C6B9A669ABDE33E66712A42923698A622A691CD334953C445804284A0392C7F619257F74AE060565D33BC084DC9AEB25ACDDDE4DAADF48AEACD34199A5BCA8ABF2E9A233928992BACA8B4C56C20403F611DCCA8A05F8C23E90B2500A24184144F22403196BFD604733EB799749676967FCF7A27627E5A84BD13E11C1E055512D3A4DC894267D0A9FA50B39579703E031E0CB31E0619C46775405CF6B1B9A67A9495F5313F25A41B8F5F1BE520B3F7070237F4EE5A40DB070E7AC590F6AA7674EF8DA4147F616F56A5D4A8BE9F014A041A196F3511E75F8B00DE57BD0A2E1B082BBCA90F35249903F6C8DFA5E566ADE420900F1C0E4616BECE6C07ADDC089F45C5B2193A866BD3B2520FACE82AE352F37F7EC66828B2554976187E1DEFCB129B4DC59A89586A39893201F59183445A7F72193384B3316A30C4B960A1250CEB3384B489E4A11616AADF61A8A0054AA3500B12DC9B7A6A0F2952B48169CFC0D5A1EFF6EB3717F581EE25C889C1091319432640F076400DE3188C81085398F41A78847A1B022F745E508410169D2D87AE080A4D173E7039684340849CC4888180A431A8380ACB2A9654C5968AB93D64D91421DE8EAAAD555653E848ADF81DB9B2B42FFAC85F085BF079C7063CE0B1F961F64A36CC1E8DFD1911C05B9B97FB75E4B40C85C828984F48D2DFDC118BFFDF9F5AF6FAE70F6273755CD5FD5A63880B5329973CB7FF644F60BF3F6168257599141BE58E3EE3DAE44DD7435CA04A46C9A1A2AF855D596A5B9B455B72F826551DDBB8BE7CB71648925D7174A34C5BACFEDF3622B4641468394E0342451841D5C6CC796C44998CA10A77920B380E7DBB125CAA287E0039115477180487228B212020C1199E58F1E59D7D77F5BDB7451EB4060C0841EFFBB550851C7803612C6B7E30D00321F80D8341B892DC7771B35F2470B64C7C62F64B861E4E3F018A4D4BAAE940BF337886D550C1B888E665B8E04D7035183CCB75BFAE03D0908DF877EF75E5B01FCA2826E6103D05D2133A9EDD61DE51E099C9C1FF2A71490CDB0555D5E0C8DCF7939225346A9E024A26914A4283D3A47DE80BF1145418812C345A6F0975142231A9B92F7D1B3E4E6FBF7EBB3D264ECE2F146C6E59B54197CDF05A25D35C1BB53407A04B7EBAA6E1BDB4600063E41D3053DC708C5AD48532868A66D57FDB8F7F6A123CD8137B9FE728307F6F14CBAEC744DECCCBB86DEFC820353A8327FFF6590174091DC81C6EDF7D6A11D9DF655F1AF110C4F4E1D8757A621EFFAF933B366AA6C6C5716E06028912427944BA0368ED81CC55A70448338890E660D8DA3047D86ACD9B09697AB4B1F19C68D00BB99FCB94345ECC260E37E767072D0BC371F49E3180B91E501063AC2653281B5414E3850D13C8E05C13473B3A741A357F908A37110517630664214052C3644F8A323ED67E7234AD7306CFBBF3291119C76D382A31BD071133819F5EF0CA78C4213101F262161C45014198EF2D153E32C381D66B4C07DB7E17434753DA9BB2BAA07988FCC6DE8C098D38D5ACF2BC39335F6BD87071866BD2C32B47E92BC868C108A3F03A47EFDE3F76F3767B1D7B18BF737DAA5873730EE1EA2C111C4ADFA6FC6223D954C93D48C7F604444594290EBD37B3EE0D0683CD17A49DA516C3B9D309F8380256C6D068DA9AE45F7758983E0F66A5D16E269439457322BDAD51EB9553E7FE045C9D3D2D0D66ED66C5AC2F76C7BF962D1C8859960C23070A213B553C8C1A23BB2BB5DA915EE0D9AB6D9426ADF4D23FDB2581566141C22F83B28351E8DF6FBB8B9E8D83328E218BE1E21F85614639200BF39999D75C1F65837F739F42BEF04297C6AD83886946EA275149347118171E4A129110B19830EF93340C85EE9999804EDF86D9CF7BD2F0F0E960E8C9D7646AD2FCEB6C7934B98EA8EBBD0CD7783F1DCD7544133F8098E89D43BF8D8F8FC1FCF1509EE');
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
INSERT INTO "agentsd_parts" VALUES('run_cd7ccb4c82fd4d6ea602e6a4c589a484','','call',0,'{"call":{"id":"c1","tool":"pay"},"contract":"5b92198ba15f5876b2c4bdb9abe0627d8a701a518ae09d79a7e9a947f0e55494","asked":"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250"}');
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
INSERT INTO "agentsd_runs" VALUES(1,'run_92bb73bb084e4884bbea501c206b23f8','c1',1,NULL,NULL,'one',1,'b75ec0c7303ea9de','b75ec0c7303ea9de','completed','final',4,NULL,NULL,NULL,0,0,2,20,NULL,'7e1dbd780d1e7bc324aad8d93fbec614','look around',1.79542538734649467467e+09,1.79542538737643074986e+09,1.79542538737643074986e+09,10,10,0,0.0,2.41469660031725652515e+01,1,0,'{"scripted":{"calls":2,"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20}}}','{"run_id":"run_92bb73bb084e4884bbea501c206b23f8","agent":"one","generation":1,"digest":"b75ec0c7303ea9de","blueprint":"b75ec0c7303ea9de","conversation_id":"c1","conversation_ttl":2592000.0,"limits":{}}','{"traceparent":"00-7e1dbd780d1e7bc324aad8d93fbec614-ae505fa8bd76a65c-01","status":"completed","finish_reason":"final","output":"first answer","admitted":true,"background":[],"replies":[1,3],"steps":2,"tool_calls":1,"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20},"model_uses":{"scripted":{"calls":2,"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20}}},"tool_stats":{"look":{"count":1,"total_ms":0.9111079998547211}},"counted":[4,10],"call_counts":{"b51ae759bae72aea51658ddfb6a6594565549918abc5d16852692ccd90f1dc5e":1},"elapsed_ms":24.146966003172565,"seq":5}',NULL);
INSERT INTO "agentsd_runs" VALUES(2,'run_cd7ccb4c82fd4d6ea602e6a4c589a484','c2',1,NULL,NULL,'one',1,'b75ec0c7303ea9de','b75ec0c7303ea9de','paused','confirmation',2,NULL,NULL,NULL,0,0,1,10,NULL,'9a77e115f7affcd04f4e0cf2f278d69b','pay',1.79542538738305783273e+09,1.79542538739361333842e+09,NULL,5,5,0,0.0,3.4706240039668045938e+00,1,0,'{"scripted":{"calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10}}}','{"run_id":"run_cd7ccb4c82fd4d6ea602e6a4c589a484","agent":"one","generation":1,"digest":"b75ec0c7303ea9de","blueprint":"b75ec0c7303ea9de","conversation_id":"c2","conversation_ttl":2592000.0,"limits":{}}','{"traceparent":"00-9a77e115f7affcd04f4e0cf2f278d69b-a75b3415adee0ebe-01","status":"paused","finish_reason":"confirmation","admitted":true,"background":[],"replies":[1],"pending":[{"id":"c1","kind":"tool","agent":"one","tool":"pay","description":"Pay.","hash":"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250","rule":"ask pay (agents.d/one.yaml:6)","risk":"low"}],"paused_at":1795425387.387818,"steps":1,"tool_calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10},"model_uses":{"scripted":{"calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10}}},"counted":[2,10],"call_counts":{"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250":1},"elapsed_ms":3.4706240039668046,"seq":4}',NULL);
INSERT INTO "agentsd_runs" VALUES(3,'run_d08acb8c1055410d8a5501c85adcf5ae',NULL,NULL,NULL,NULL,'',0,'','','queued','',1,'other pid:[1] time:[1] 0/1:1/0.3',1.79542539744099283217e+09,60603.099777406,0,0,0,0,NULL,NULL,'1',1.79542538739627623558e+09,1.79542538739628767963e+09,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"run_id":"run_d08acb8c1055410d8a5501c85adcf5ae","agent":""}','{"status":"queued"}','{"run_id":"run_d08acb8c1055410d8a5501c85adcf5ae","message":{"role":"user","content":"1"},"queue":true}');
INSERT INTO "agentsd_runs" VALUES(4,'run_a707108600864e988bc61fa4109cbb69','c1',NULL,NULL,NULL,'',0,'','','queued','',1,NULL,NULL,NULL,0,0,0,0,NULL,NULL,'2',1.79542538740890812872e+09,1.79542538740893149371e+09,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"run_id":"run_a707108600864e988bc61fa4109cbb69","agent":"","conversation_id":"c1"}','{"status":"queued"}','{"run_id":"run_a707108600864e988bc61fa4109cbb69","message":{"role":"user","content":"2"},"conversation_id":"c1","queue":true}');
INSERT INTO "agentsd_runs" VALUES(5,'run_4d90e4f3a65c48dd83b43b99de915334','c1',NULL,NULL,NULL,'',0,'','','queued','',1,NULL,NULL,NULL,0,0,0,0,NULL,NULL,'3',1.79542538741248154645e+09,1.7954253874124958515e+09,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"run_id":"run_4d90e4f3a65c48dd83b43b99de915334","agent":"","conversation_id":"c1"}','{"status":"queued"}','{"run_id":"run_4d90e4f3a65c48dd83b43b99de915334","message":{"role":"user","content":"3"},"conversation_id":"c1","queue":true}');
INSERT INTO "agentsd_runs" VALUES(6,'run_b44ea113067549b09ec9d1cce0183e8d','c2',NULL,NULL,NULL,'',0,'','','queued','',1,NULL,NULL,NULL,0,0,0,0,NULL,NULL,'4',1.79542538741850447652e+09,1.79542538741851782791e+09,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"run_id":"run_b44ea113067549b09ec9d1cce0183e8d","agent":"","conversation_id":"c2"}','{"status":"queued"}','{"run_id":"run_b44ea113067549b09ec9d1cce0183e8d","message":{"role":"user","content":"4"},"conversation_id":"c2","queue":true}');
INSERT INTO "agentsd_runs" VALUES(7,'run_e5010dd3e2ed44508a66cf590256aa82','c3',NULL,NULL,NULL,'',0,'','','queued','',1,NULL,NULL,NULL,0,0,0,0,NULL,NULL,'5',1.79542538742120218273e+09,1.79542538742121458058e+09,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"run_id":"run_e5010dd3e2ed44508a66cf590256aa82","agent":"","conversation_id":"c3"}','{"status":"queued"}','{"run_id":"run_e5010dd3e2ed44508a66cf590256aa82","message":{"role":"user","content":"5"},"conversation_id":"c3","queue":true}');
INSERT INTO "agentsd_runs" VALUES(8,'run_9340610cda3f4dbcab32b9b06ee4c2f7','c3',NULL,NULL,NULL,'',0,'','','queued','',1,NULL,NULL,NULL,0,0,0,0,NULL,NULL,'6',1.79542538742346906655e+09,1795425387.42348,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"run_id":"run_9340610cda3f4dbcab32b9b06ee4c2f7","agent":"","conversation_id":"c3"}','{"status":"queued"}','{"run_id":"run_9340610cda3f4dbcab32b9b06ee4c2f7","message":{"role":"user","content":"6"},"conversation_id":"c3","queue":true}');
CREATE TABLE agentsd_schema (
	version INTEGER NOT NULL, 
	applied_at DOUBLE NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "agentsd_schema" VALUES(1,1.79542538728239226344e+09);
INSERT INTO "agentsd_schema" VALUES(2,1.79542538728346085549e+09);
INSERT INTO "agentsd_schema" VALUES(3,1.7954253872846260071e+09);
INSERT INTO "agentsd_schema" VALUES(4,1.79542538728648328784e+09);
INSERT INTO "agentsd_schema" VALUES(5,1.79542538729765820508e+09);
INSERT INTO "agentsd_schema" VALUES(6,1.79542538729974937442e+09);
CREATE TABLE agentsd_spans (
	run_id TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (run_id, version)
)
 WITHOUT ROWID

;
INSERT INTO "agentsd_spans" VALUES('run_cd7ccb4c82fd4d6ea602e6a4c589a484',2,'[{"name":"agent.route","trace_id":"9a77e115f7affcd04f4e0cf2f278d69b","span_id":"829e3edb7fb688f2","parent_id":"a75b3415adee0ebe","kind":"internal","start_ns":1795425387384152448,"end_ns":1795425387384156615,"attributes":{"agentsd.run.id":"run_cd7ccb4c82fd4d6ea602e6a4c589a484","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"CHAIN","agentsd.route.mode":"default","agentsd.route.agent":"one","agentsd.route.candidates":1,"agentsd.route.score":1.0},"error":null,"events":[],"links":[]},{"name":"chat scripted","trace_id":"9a77e115f7affcd04f4e0cf2f278d69b","span_id":"04a69decd546c96b","parent_id":"bea5f28e7cf0e114","kind":"client","start_ns":1795425387384555419,"end_ns":1795425387384802638,"attributes":{"agentsd.run.id":"run_cd7ccb4c82fd4d6ea602e6a4c589a484","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"LLM","gen_ai.agent.name":"one","gen_ai.operation.name":"chat","gen_ai.provider.name":"scripted","gen_ai.request.model":"scripted","gen_ai.response.model":"scripted","gen_ai.response.finish_reasons":["tool_calls"],"agentsd.model.attempts":1,"gen_ai.usage.input_tokens":5,"gen_ai.usage.output_tokens":5},"error":null,"events":[],"links":[]},{"name":"execute_tool pay","trace_id":"9a77e115f7affcd04f4e0cf2f278d69b","span_id":"6c8e77f29c44d4b3","parent_id":"bea5f28e7cf0e114","kind":"internal","start_ns":1795425387385103316,"end_ns":1795425387387666707,"attributes":{"agentsd.run.id":"run_cd7ccb4c82fd4d6ea602e6a4c589a484","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"TOOL","gen_ai.agent.name":"one","gen_ai.operation.name":"execute_tool","gen_ai.tool.name":"pay","gen_ai.tool.call.id":"c1","agentsd.tool.source":"python","agentsd.tool.risk":"low","gen_ai.tool.type":"function","gen_ai.tool.description":"Pay.","agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain","agentsd.tool.outcome":"waiting"},"error":null,"events":[{"name":"agentsd.confirm.requested","at_ns":1795425387387635511,"attributes":{"agentsd.confirm.id":"c1","agentsd.confirm.kind":"tool","agentsd.confirm.rule":"ask pay (agents.d/one.yaml:6)"}}],"links":[]},{"name":"agent.step 1","trace_id":"9a77e115f7affcd04f4e0cf2f278d69b","span_id":"bea5f28e7cf0e114","parent_id":"2c39b096a7e34dba","kind":"internal","start_ns":1795425387384340569,"end_ns":1795425387387750802,"attributes":{"agentsd.run.id":"run_cd7ccb4c82fd4d6ea602e6a4c589a484","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"CHAIN","gen_ai.agent.name":"one","agentsd.step.index":1,"agentsd.step.kind":"action","agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain"},"error":null,"events":[],"links":[]},{"name":"invoke_agent one","trace_id":"9a77e115f7affcd04f4e0cf2f278d69b","span_id":"2c39b096a7e34dba","parent_id":"a75b3415adee0ebe","kind":"internal","start_ns":1795425387384268001,"end_ns":1795425387387792074,"attributes":{"agentsd.run.id":"run_cd7ccb4c82fd4d6ea602e6a4c589a484","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"AGENT","gen_ai.agent.name":"one","gen_ai.operation.name":"invoke_agent","gen_ai.agent.description":"The agent one.","gen_ai.agent.version":"b9bbd7670b47930f","agentsd.agent.digest":"b9bbd7670b47930f","agentsd.executor":"react","agentsd.protocol":"auto","agentsd.policy.risk":"medium","agentsd.tools.available":3,"gen_ai.provider.name":"scripted","gen_ai.request.model":"scripted","agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain","gen_ai.aggregated_usage.input_tokens":5,"gen_ai.aggregated_usage.output_tokens":5,"agentsd.budget.tokens.limit":50000,"agentsd.budget.tokens.used":10,"agentsd.prompt.digest":"06a1026015881391"},"error":null,"events":[],"links":[]},{"name":"invoke_workflow one","trace_id":"9a77e115f7affcd04f4e0cf2f278d69b","span_id":"a75b3415adee0ebe","parent_id":null,"kind":"internal","start_ns":1795425387384116234,"end_ns":1795425387387833666,"attributes":{"agentsd.run.id":"run_cd7ccb4c82fd4d6ea602e6a4c589a484","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"CHAIN","gen_ai.operation.name":"invoke_workflow","gen_ai.workflow.name":"one","gen_ai.agent.name":"one","agentsd.config.digest":"b75ec0c7303ea9de","agentsd.run.outcome":"waiting_confirmation","agentsd.run.steps":1,"agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain"},"error":null,"events":[],"links":[]}]');
CREATE INDEX ix_agentsd_conversations_expires_at ON agentsd_conversations (expires_at);
CREATE INDEX ix_agentsd_conversations_of_tenants ON agentsd_conversations (id) WHERE tenant IS NOT NULL;
CREATE INDEX ix_agentsd_runs_created_at ON agentsd_runs (created_at);
CREATE INDEX ix_agentsd_runs_queued ON agentsd_runs (no) WHERE status = 'queued';
CREATE INDEX ix_agentsd_runs_status ON agentsd_runs (status);
CREATE INDEX ix_agentsd_runs_ended_at ON agentsd_runs (ended_at);
CREATE INDEX ix_agentsd_runs_paused ON agentsd_runs (expires_at) WHERE status = 'paused';
CREATE INDEX ix_agentsd_runs_waiting ON agentsd_runs (conversation_id, no) WHERE status = 'queued';
CREATE INDEX ix_agentsd_run_media_digest ON agentsd_run_media (digest);
CREATE INDEX ix_agentsd_budget_counters_owner ON agentsd_budget_counters (owner);
CREATE INDEX ix_agentsd_idempotency_keys_run_id ON agentsd_idempotency_keys (run_id);
CREATE INDEX ix_agentsd_idempotency_keys_created_at ON agentsd_idempotency_keys (created_at);
COMMIT;
