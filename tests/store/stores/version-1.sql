BEGIN TRANSACTION;
CREATE TABLE agentsd_blueprints (
	digest TEXT NOT NULL,
	files TEXT NOT NULL,
	created_at DOUBLE NOT NULL,
	PRIMARY KEY (digest)
)
 WITHOUT ROWID
;
INSERT INTO "agentsd_blueprints" VALUES('bb7a404429d46309','{"agents.d/one.yaml":"version: 1\nname: one\ndescription: The agent one.\nmodel: scripted\ninstructions: You are one.\nskill_policy: {ask: [pay], allow: [pay, look, hang]}\nconversation: {ttl: 30000d}\nbudgets: [talk]\n"}',1.75000000013070392606e+09);
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
INSERT INTO "agentsd_budget_counters" VALUES('talk','{"conversation": "c1", "tenant": "a", "user": "ann"}','','conversation:c1'||char(31)||'a'||char(31)||'ann',20,0.0,NULL);
INSERT INTO "agentsd_budget_counters" VALUES('talk','{"conversation": "c2", "tenant": "b"}','','conversation:c2'||char(31)||'b',10,0.0,NULL);
INSERT INTO "agentsd_budget_counters" VALUES('talk','{"run": "run_2cf8e272b68145a484350440f91f821b"}','','run:run_2cf8e272b68145a484350440f91f821b',10,0.0,NULL);
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
INSERT INTO "agentsd_conversations" VALUES('c1'||char(31)||'a'||char(31)||'ann','ann','a','one',NULL,1,'{}',NULL,0,1.75000000012901353835e+09,1.75000000027481317525e+09,4.34200000027481269838e+09);
INSERT INTO "agentsd_conversations" VALUES('c2'||char(31)||'b',NULL,'b',NULL,'run_ce0cf4e4c99c46ceb4a222d168097854',1,'{}',NULL,0,1.75000000029990792271e+09,1.75000000029990792271e+09,NULL);
INSERT INTO "agentsd_conversations" VALUES('c3',NULL,NULL,NULL,NULL,0,'{}',NULL,0,1.75000000034705495833e+09,1.75000000034705495833e+09,NULL);
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
INSERT INTO "agentsd_events" VALUES('run_2cf8e272b68145a484350440f91f821b',1,1.75000000042932248112e+09,'{"event":"route","run_id":"run_2cf8e272b68145a484350440f91f821b","seq":1,"generation":1,"path":[],"agent":"one","reason":"the only agent","confidence":1.0,"digest":"6f6b1d69c008bf94"}');
INSERT INTO "agentsd_events" VALUES('run_2cf8e272b68145a484350440f91f821b',2,1.75000000043047666551e+09,'{"event":"tool_call","run_id":"run_2cf8e272b68145a484350440f91f821b","seq":2,"generation":1,"path":[],"id":"c1","tool":"hang","arguments":{},"status":"pending"}');
INSERT INTO "agentsd_events" VALUES('run_2cf8e272b68145a484350440f91f821b',3,1.75000000043047666551e+09,'{"event":"tool_call","run_id":"run_2cf8e272b68145a484350440f91f821b","seq":3,"generation":1,"path":[],"id":"c1","tool":"hang","arguments":{},"status":"running"}');
INSERT INTO "agentsd_events" VALUES('run_ce0cf4e4c99c46ceb4a222d168097854',1,1.75000000030181932452e+09,'{"event":"route","run_id":"run_ce0cf4e4c99c46ceb4a222d168097854","seq":1,"generation":1,"path":[],"agent":"one","reason":"the only agent","confidence":1.0,"digest":"6f6b1d69c008bf94"}');
INSERT INTO "agentsd_events" VALUES('run_ce0cf4e4c99c46ceb4a222d168097854',2,1.75000000030871939661e+09,'{"event":"tool_call","run_id":"run_ce0cf4e4c99c46ceb4a222d168097854","seq":2,"generation":1,"path":[],"id":"c1","tool":"pay","arguments":{},"status":"pending"}');
INSERT INTO "agentsd_events" VALUES('run_ce0cf4e4c99c46ceb4a222d168097854',3,1.75000000030871939661e+09,'{"event":"confirm_required","run_id":"run_ce0cf4e4c99c46ceb4a222d168097854","seq":3,"generation":1,"path":[],"id":"c1","kind":"tool","agent":"one","tool":"pay","call_id":"c1","idempotency_key":"run_ce0cf4e4c99c46ceb4a222d168097854:c1","description":"Pay.","arguments":{},"preview":"","hash":"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250","reason":"","rule":"ask pay (agents.d/one.yaml:6)","risk":"low","choices":[],"on_expiry":"reject"}');
INSERT INTO "agentsd_events" VALUES('run_ce0cf4e4c99c46ceb4a222d168097854',4,1.75000000030871939661e+09,'{"event":"done","run_id":"run_ce0cf4e4c99c46ceb4a222d168097854","seq":4,"generation":1,"path":[],"status":"paused","finish_reason":"confirmation","output":"","truncated":false,"incomplete":[],"message_id":"msg.1","tokens_used":10,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10,"cached_tokens":0,"cache_write_tokens":0,"cost_usd":0.0},"trace_id":"18296e2dca670fdcc902dee769371d59","digest":"6f6b1d69c008bf94"}');
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
INSERT INTO "agentsd_messages" VALUES('run_03452958f62e42699dc660041ee22db9','',0,'{"role":"user","content":"4"}');
INSERT INTO "agentsd_messages" VALUES('run_23adbca2b42d4e3a8ce891829ad80689','',0,'{"role":"user","content":"3"}');
INSERT INTO "agentsd_messages" VALUES('run_2cf8e272b68145a484350440f91f821b','',0,'{"role":"user","content":"hang"}');
INSERT INTO "agentsd_messages" VALUES('run_2cf8e272b68145a484350440f91f821b','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"hang"}]}');
INSERT INTO "agentsd_messages" VALUES('run_2e496f189f8448758ca260d86e8967a2','',0,'{"role":"user","content":"1"}');
INSERT INTO "agentsd_messages" VALUES('run_c415dc822d0c4035a706120585cf2118','',0,'{"role":"user","content":"look"}');
INSERT INTO "agentsd_messages" VALUES('run_c415dc822d0c4035a706120585cf2118','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"look","arguments":{"n":1}}]}');
INSERT INTO "agentsd_messages" VALUES('run_c415dc822d0c4035a706120585cf2118','',2,'{"role":"tool","content":"saw 1","tool_call_id":"c1","status":"success"}');
INSERT INTO "agentsd_messages" VALUES('run_c415dc822d0c4035a706120585cf2118','',3,'{"role":"assistant","content":"first answer"}');
INSERT INTO "agentsd_messages" VALUES('run_ce0cf4e4c99c46ceb4a222d168097854','',0,'{"role":"user","content":"pay"}');
INSERT INTO "agentsd_messages" VALUES('run_ce0cf4e4c99c46ceb4a222d168097854','',1,'{"role":"assistant","tool_calls":[{"id":"c1","tool":"pay"}]}');
INSERT INTO "agentsd_messages" VALUES('run_ea41c87c25bc4aa29048acd55513d896','',0,'{"role":"user","content":"2"}');
CREATE TABLE agentsd_packed (
	run_id TEXT NOT NULL,
	body BLOB NOT NULL,
	PRIMARY KEY (run_id)
)
 WITHOUT ROWID
;
INSERT INTO "agentsd_packed" VALUES('run_c415dc822d0c4035a706120585cf2118',X'6843E5594D6FE33610FD2B86CF5981A23E99DBA228DA02E9EE25A7C6814151942D4496BC22956CBAC87FEF0C29C9922D271B3BEDC10502C42247248733F3E6CDE8C77CCB6BADE6D77777F3F9D55CF0A2807F3F16E6D7627E0DBFF214FEC380BB985F2DE6BAAA707C312FAAEAC18CF07AD56C64A995152FE19FFBF202134AC3D212DF76E1A996AA29B4958119DDA03CFC6C84900A7E8348D5E86D832230CC9F66764359F0AD92E97283F2C489221645841037A6118DBCE0E5657E7F65CEAE6B2EA43DBCD272DB6ECB577034B364554AB3206AB61C2BC585CE2B3C38BCAB9FB72007F256D3632A1F685B254AD68FBC5D68A8012EB43C4537DC3BDF48B8AD0DAAB3985342834F24FCE406B76E704DC26B9F383488E280FDB598BF721114CD7470117A5D35ABB5BD9C2CAF959EF1523DC9DA5A75EA4AB2BCE4702768DC9F3858E4133FB007BBBF9ACB47F4117434D7D8C83C9BBD6BB81B6B9ABA293BCBE04FE1BB412A624A53227CE2053C22A14B49100722A3AE1B9B7794FCD69A1A149475670074B92DD76B98BBBB9F54BF965C19A383326B39ABCAE279D65E127A495566792A4B81CEE03A0486D27C05B6302F845998B869C80421719231BFBD7DBAA799B1BC8DA4B3B443FBBDAADD49316A43B40BC4AD2CD3BC5CB59A78FF9226DE7FA009B84EB9D3C49FD2A403A3B3ACE29FABCB1118EC91F23D30882818ECA90A3EAC4D909DA566F0969A80500A02A78BDC8D5A39D402A7FC3E852E06A8C2BDB3A61D3C9F8E01E15B071DDCB7A836DB429AEC046F01AEE56ABD1C20428B74E3A47400921A0E2BB8CD71192F9404F9BCECD6EEA0E7F8FD540FB254CB06D21BC852C498066FD226A26D0D67D44B6D84108470BE5D1BB2D5DE84AE342F76636631C1C51A3267BF423FB67CAA732DF7262AA5E1287812E21003F198503BABF224E36112C57118F8DC158471EE7212A7294D044DE3C8DCE35B080969406D21C918BA718764816F6CB235C0EBEC32C1FBF7C685BBC37A31F743EE32C9B224F364620E074407F6E844D2140E9F9184A531253EB17EF0909796ECE41038B5C97516246BBDB436885810D3C0F563CA42E2C584223403724E4DFBA11761F070ADEB3C811CD77206A3AB4A1D701EA705EE9FCE76DDBB263DAD9C83A400034B9E3B30FD286B659261B7474BE01444EBE128F860DD09F212B2227A3EA484BCCC245C9B900EDEAFD35FD02FBF7FFEE38B250A9D3698C59D4D955A83A632E386EF1D881C1291F1128243224A21AACC851FBCAE4455B739199D54D675058CE5BA6C8A021F0DCBE822AFC8CB07FBF07235F436B1E67AA6449D6F3B0438CFDF84242CCB4442233F9534B2C475EC6F7E4CC230255912261EF322600C437F1345DE01F5A4B7799EEFC641E062FA9CF036CF0B1881D88C2ED4DB6E6EFE34F7D57AB7058B1E3BBACCD1CE82DB5A16B893407B0F1700687D047257EF2446CED02E54CB6F0D103EE3D3800458950C5DA69752DBAA54D6F57F426C946B8C73DA52C3F04478EEC92A208459D201FC909009BA7068F73599C2C94BA8987640DEE66A84003B6FCB8EB140176E767531C27DB8E44D9115D59353141B336714FFB158E02931C5983178BA9E619AB0C5C0494128BF4B01900167AB8A595F4D9E17882C15226361E4F14C78496451FD3D81F836F07B5EC8E02FC6643A158A018B69E83324879708FCB75FBFDE9C158B43B30F174237D8C563EF0FADB79B598C90BD6CD6F9B2995755539B7A0D6CFE0CD5AD4D6323913A57D0B530ED8BA783DDFBD23F035A670BF91DE8981D526921C0760B16F31B6882CC38D09632750E3783E003BE660F34EC738C4F64FA228ECAFF46C1E0E470B2A0889D8FB671725E244DE6AB7124710A792793912F39233E152750A888BA8CC54723099625BEA100174DA15E4F6B9DB7A06901EF53F97D8F1799899E99758D9B931DE9A3C991EFF1D0E7048A042F939E673B3D634F4A22C2850BB89A301993287B27390A09307266D8CF14224714BA853E314DB00BF4A34B27474A57D0FDFCDFD0A2018EB75D947797E1C3527832B43E16C7A1F86094C53E3B1A7FD03380CEF585C6DFAE143E01C7FBCE3CB0FD318E0F7AED27D1EBBC7C84CED1D2B81334B72DEC9EC7092613FE87B75542E212721CCB43E647145B7D9788E59F7FFBF5CBED59F47A68F6C385F6F9EB2D7CF8E83DC432D891136313A9E3BA3C8D5CCF0DA9840F4E2E4BF888EF5AD41AF4FF5E95B63580E9DBE08741A02CA3C5A03CD79568BF3372101CCF56452E9E9D9EC96F649A379B03F6AD1CFEC8F3822705F2EAF6BB0316C61F52FC77A46CB20A379DDAB1C47E1D3E12499A7425B563FBB44E916F72ACBA03F8CA395C682C356C1A775BD98EF1D00A04BAA08442440571EC7A0C1A5327D3C2D6B19EAAFA01FB031F0429936DD821A4B47DBD777566211F459E8775C3341D8C280D3CAC3A2E11420ED2D1443F6CCF96C3B8EFEC7BB4BD76A4F9B6D7987EF54BC0203AB0073E2C9377DF5D865D72CC8CD8FE1A664B7C73DCBB7A8F6BDFC337E9977F00BD40AAAD');
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
INSERT INTO "agentsd_parts" VALUES('run_2cf8e272b68145a484350440f91f821b','','call',0,'{"call":{"id":"c1","tool":"hang"},"started":1}');
INSERT INTO "agentsd_parts" VALUES('run_ce0cf4e4c99c46ceb4a222d168097854','','call',0,'{"call":{"id":"c1","tool":"pay"},"contract":"5b92198ba15f5876b2c4bdb9abe0627d8a701a518ae09d79a7e9a947f0e55494","asked":"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250"}');
CREATE TABLE agentsd_processes (
	id TEXT NOT NULL,
	name TEXT NOT NULL,
	started_at DOUBLE NOT NULL,
	seen_at DOUBLE NOT NULL,
	lease_until DOUBLE NOT NULL,
	lease_boot DOUBLE,
	info TEXT DEFAULT '{}' NOT NULL,
	PRIMARY KEY (id)
);
INSERT INTO "agentsd_processes" VALUES('host boot/1:1/131536854b544c90b819c248cbc6a3b3','host:1',1.75000000012890291212e+09,1.7500000001289057732e+09,1.75000000612890625004e+09,39085.578254666,'{}');
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
	process TEXT,
	priority INTEGER DEFAULT '0' NOT NULL,
	rank DOUBLE DEFAULT '0' NOT NULL,
	queue TEXT,
	ready BOOLEAN DEFAULT 0 NOT NULL,
	blocked_by TEXT,
	refusals TEXT,
	offered_at DOUBLE,
	crashes INTEGER DEFAULT '0' NOT NULL,
	PRIMARY KEY (no),
	UNIQUE (conversation_id, turn),
	UNIQUE (id)
);
INSERT INTO "agentsd_runs" VALUES(1,'run_c415dc822d0c4035a706120585cf2118','c1'||char(31)||'a'||char(31)||'ann',1,'ann','a','one',1,'6f6b1d69c008bf94','bb7a404429d46309','completed','final',7,NULL,0,0,2,20,NULL,'abfa6b788654a1c09aa1a08dd2bc2d87','look',1.75000000013119411468e+09,1.75000000027481317525e+09,1.75000000027481317525e+09,10,10,0,0.0,7.60289530007867142558e+01,1,0,'{"scripted":{"calls":2,"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20}}}','{"run_id":"run_c415dc822d0c4035a706120585cf2118","agent":"one","generation":1,"digest":"6f6b1d69c008bf94","blueprint":"bb7a404429d46309","conversation_id":"c1","conversation_ttl":2592000000.0,"user":"ann","tenant":"a","limits":{}}','{"traceparent":"00-abfa6b788654a1c09aa1a08dd2bc2d87-dd08df0b9d82040d-01","status":"completed","finish_reason":"final","output":"first answer","admitted":true,"background":[],"replies":[1,3],"steps":2,"tool_calls":1,"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20},"model_uses":{"scripted":{"calls":2,"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20}}},"tool_stats":{"look":{"count":1,"total_ms":0.7797700018272735}},"counted":[4,10],"call_counts":{"4cf31a5edacf625a":1},"elapsed_ms":76.02895300078671,"seq":6}',NULL,NULL,0,0.0,NULL,0,NULL,NULL,NULL,0);
INSERT INTO "agentsd_runs" VALUES(2,'run_ce0cf4e4c99c46ceb4a222d168097854','c2'||char(31)||'b',1,NULL,'b','one',1,'6f6b1d69c008bf94','bb7a404429d46309','paused','confirmation',3,NULL,0,0,1,10,NULL,'18296e2dca670fdcc902dee769371d59','pay',1.75000000030029463768e+09,1.75000000030885648726e+09,NULL,5,5,0,0.0,2.39088699890999123454e+00,1,0,'{"scripted":{"calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10}}}','{"run_id":"run_ce0cf4e4c99c46ceb4a222d168097854","agent":"one","generation":1,"digest":"6f6b1d69c008bf94","blueprint":"bb7a404429d46309","conversation_id":"c2","conversation_ttl":2592000000.0,"tenant":"b","limits":{}}','{"traceparent":"00-18296e2dca670fdcc902dee769371d59-bc48f0b168fe0bb5-01","status":"paused","finish_reason":"confirmation","admitted":true,"background":[],"replies":[1],"pending":[{"id":"c1","kind":"tool","agent":"one","tool":"pay","call_id":"c1","idempotency_key":"run_ce0cf4e4c99c46ceb4a222d168097854:c1","description":"Pay.","hash":"5727a6f3e03bd9c2bd0494cc85c010613d3daf0ef15272bd4cc50790b4bd1250","rule":"ask pay (agents.d/one.yaml:6)","risk":"low"}],"paused_at":1750000000.3034964,"steps":1,"tool_calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10},"model_uses":{"scripted":{"calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10}}},"counted":[2,10],"call_counts":{"3f7aaa5874216a0a":1},"elapsed_ms":2.3908869989099912,"seq":4}',NULL,NULL,0,0.0,NULL,0,NULL,NULL,NULL,0);
INSERT INTO "agentsd_runs" VALUES(3,'run_2e496f189f8448758ca260d86e8967a2',NULL,NULL,NULL,NULL,'',0,'','','queued','',1,'host boot/1:1/131536854b544c90b819c248cbc6a3b3.3',0,0,0,0,NULL,NULL,'1',1.75000000031252050405e+09,1.75000000031252050405e+09,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"run_id":"run_2e496f189f8448758ca260d86e8967a2","agent":""}','{"status":"queued"}','{"run_id":"run_2e496f189f8448758ca260d86e8967a2","message":{"role":"user","content":"1"},"queue":true}','host boot/1:1/131536854b544c90b819c248cbc6a3b3',0,0.0,NULL,0,NULL,NULL,NULL,0);
INSERT INTO "agentsd_runs" VALUES(4,'run_ea41c87c25bc4aa29048acd55513d896','c3',NULL,NULL,NULL,'',0,'','','queued','',1,NULL,0,0,0,0,NULL,NULL,'2',1.75000000034705495833e+09,1.75000000034705495833e+09,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"run_id":"run_ea41c87c25bc4aa29048acd55513d896","agent":"","conversation_id":"c3"}','{"status":"queued"}','{"run_id":"run_ea41c87c25bc4aa29048acd55513d896","message":{"role":"user","content":"2"},"conversation_id":"c3","queue":true}',NULL,0,1.0,NULL,1,NULL,NULL,NULL,0);
INSERT INTO "agentsd_runs" VALUES(5,'run_23adbca2b42d4e3a8ce891829ad80689','c3',NULL,NULL,NULL,'',0,'','','queued','',1,NULL,0,0,0,0,NULL,NULL,'3',1.7500000003611979485e+09,1.7500000003611979485e+09,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"run_id":"run_23adbca2b42d4e3a8ce891829ad80689","agent":"","conversation_id":"c3"}','{"status":"queued"}','{"run_id":"run_23adbca2b42d4e3a8ce891829ad80689","message":{"role":"user","content":"3"},"conversation_id":"c3","queue":true}',NULL,0,2.0,NULL,0,NULL,NULL,NULL,0);
INSERT INTO "agentsd_runs" VALUES(6,'run_03452958f62e42699dc660041ee22db9','c2'||char(31)||'b',NULL,NULL,'b','',0,'','','queued','',1,NULL,0,0,0,0,NULL,NULL,'4',1.75000000038230466839e+09,1.75000000038230466839e+09,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"run_id":"run_03452958f62e42699dc660041ee22db9","agent":"","conversation_id":"c2","tenant":"b"}','{"status":"queued"}','{"run_id":"run_03452958f62e42699dc660041ee22db9","message":{"role":"user","content":"4"},"conversation_id":"c2","tenant":"b","queue":true}',NULL,0,0.0,NULL,0,NULL,NULL,NULL,0);
INSERT INTO "agentsd_runs" VALUES(7,'run_2cf8e272b68145a484350440f91f821b',NULL,NULL,NULL,NULL,'one',1,'6f6b1d69c008bf94','bb7a404429d46309','running','',3,'host boot/1:1/131536854b544c90b819c248cbc6a3b3.4',0,0,1,10,NULL,'92fa6261049d7d10b3ebc3002c98b616','hang',1.75000000042326235767e+09,1.75000000043054628373e+09,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"run_id":"run_2cf8e272b68145a484350440f91f821b","agent":"one","generation":1,"digest":"6f6b1d69c008bf94","blueprint":"bb7a404429d46309","conversation_ttl":2592000000.0,"limits":{}}','{"traceparent":"00-92fa6261049d7d10b3ebc3002c98b616-75626c14b872e230-01","admitted":true,"background":[],"replies":[1],"steps":1,"tool_calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10},"model_uses":{"scripted":{"calls":1,"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10}}},"counted":[2,10],"call_counts":{"2372730b393b876e":1},"elapsed_ms":5.060480994870886,"seq":3}',NULL,'host boot/1:1/131536854b544c90b819c248cbc6a3b3',0,0.0,NULL,0,NULL,NULL,NULL,0);
CREATE TABLE agentsd_slots (
	"key" TEXT NOT NULL,
	n INTEGER NOT NULL,
	process TEXT,
	run_id TEXT,
	PRIMARY KEY ("key", n)
)
 WITHOUT ROWID
;
CREATE TABLE agentsd_spans (
	run_id TEXT NOT NULL,
	version INTEGER NOT NULL,
	body TEXT NOT NULL,
	PRIMARY KEY (run_id, version)
)
 WITHOUT ROWID
;
INSERT INTO "agentsd_spans" VALUES('run_ce0cf4e4c99c46ceb4a222d168097854',3,'[{"name":"agent.route","trace_id":"18296e2dca670fdcc902dee769371d59","span_id":"9bcdd5102039c8ef","parent_id":"bc48f0b168fe0bb5","kind":"internal","start_ns":1795825148399484961,"end_ns":1795825148399488637,"attributes":{"agentsd.run.id":"run_ce0cf4e4c99c46ceb4a222d168097854","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"CHAIN","agentsd.route.mode":"default","agentsd.route.agent":"one","agentsd.route.candidates":1,"agentsd.route.score":1.0},"error":null,"events":[],"links":[]},{"name":"chat scripted","trace_id":"18296e2dca670fdcc902dee769371d59","span_id":"eb8c2f01980734bf","parent_id":"0487be7e999bf6bf","kind":"client","start_ns":1795825148400178442,"end_ns":1795825148400817510,"attributes":{"agentsd.run.id":"run_ce0cf4e4c99c46ceb4a222d168097854","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"LLM","gen_ai.agent.name":"one","gen_ai.operation.name":"chat","gen_ai.provider.name":"scripted","gen_ai.request.model":"scripted","gen_ai.response.model":"scripted","gen_ai.response.finish_reasons":["tool_calls"],"agentsd.model.attempts":1,"gen_ai.usage.input_tokens":5,"gen_ai.usage.output_tokens":5,"agentsd.model.cost_usd":0.0,"mlflow.llm.cost":"{\"total_cost\": 0.0}"},"error":null,"events":[],"links":[]},{"name":"execute_tool pay","trace_id":"18296e2dca670fdcc902dee769371d59","span_id":"e381fd3479908449","parent_id":"0487be7e999bf6bf","kind":"internal","start_ns":1795825148400960274,"end_ns":1795825148401947615,"attributes":{"agentsd.run.id":"run_ce0cf4e4c99c46ceb4a222d168097854","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"TOOL","gen_ai.agent.name":"one","gen_ai.operation.name":"execute_tool","gen_ai.tool.name":"pay","gen_ai.tool.call.id":"c1","agentsd.tool.source":"python","agentsd.tool.risk":"low","gen_ai.tool.type":"function","gen_ai.tool.description":"Pay.","agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain","agentsd.tool.outcome":"waiting"},"error":null,"events":[{"name":"agentsd.confirm.requested","at_ns":1795825148401929118,"attributes":{"agentsd.confirm.id":"c1","agentsd.confirm.kind":"tool","agentsd.confirm.rule":"ask pay (agents.d/one.yaml:6)"}}],"links":[]},{"name":"agent.step 1","trace_id":"18296e2dca670fdcc902dee769371d59","span_id":"0487be7e999bf6bf","parent_id":"4ed37b6c3bf1c0e6","kind":"internal","start_ns":1795825148399660264,"end_ns":1795825148401990480,"attributes":{"agentsd.run.id":"run_ce0cf4e4c99c46ceb4a222d168097854","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"CHAIN","gen_ai.agent.name":"one","agentsd.step.index":1,"agentsd.step.kind":"action","agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain"},"error":null,"events":[],"links":[]},{"name":"invoke_agent one","trace_id":"18296e2dca670fdcc902dee769371d59","span_id":"4ed37b6c3bf1c0e6","parent_id":"bc48f0b168fe0bb5","kind":"internal","start_ns":1795825148399590650,"end_ns":1795825148402009859,"attributes":{"agentsd.run.id":"run_ce0cf4e4c99c46ceb4a222d168097854","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"AGENT","gen_ai.agent.name":"one","gen_ai.operation.name":"invoke_agent","gen_ai.agent.description":"The agent one.","gen_ai.agent.version":"ad713162e57819ba","agentsd.agent.digest":"ad713162e57819ba","agentsd.executor":"react","agentsd.protocol":"auto","agentsd.policy.risk":"medium","agentsd.tools.available":3,"gen_ai.provider.name":"scripted","gen_ai.request.model":"scripted","agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain","agentsd.usage.input_tokens":5,"agentsd.usage.output_tokens":5,"agentsd.budget.tokens.limit":50000,"agentsd.budget.tokens.used":10,"agentsd.prompt.digest":"06a1026015881391"},"error":null,"events":[],"links":[]},{"name":"invoke_workflow one","trace_id":"18296e2dca670fdcc902dee769371d59","span_id":"bc48f0b168fe0bb5","parent_id":null,"kind":"internal","start_ns":1795825148399461907,"end_ns":1795825148402033795,"attributes":{"agentsd.run.id":"run_ce0cf4e4c99c46ceb4a222d168097854","agentsd.config.generation":1,"gen_ai.conversation.id":"c2","session.id":"c2","openinference.span.kind":"CHAIN","gen_ai.operation.name":"invoke_workflow","gen_ai.workflow.name":"one","gen_ai.agent.name":"one","agentsd.config.digest":"6f6b1d69c008bf94","agentsd.run.outcome":"waiting_confirmation","agentsd.run.steps":1,"agentsd.run.cost_usd":0.0,"agentsd.waiting_for":["pay"],"output.value":"waits for approval: pay","output.mime_type":"text/plain"},"error":null,"events":[],"links":[]}]');
CREATE TABLE agentsd_versions (version INTEGER NOT NULL, applied_at DOUBLE NOT NULL, min_version INTEGER, PRIMARY KEY (version));
INSERT INTO "agentsd_versions" VALUES(1,1750000000.0,1);
CREATE INDEX ix_agentsd_conversations_expires_at ON agentsd_conversations (expires_at);
CREATE INDEX ix_agentsd_runs_queued ON agentsd_runs (no) WHERE status = 'queued';
CREATE INDEX ix_agentsd_runs_ended_at ON agentsd_runs (ended_at);
CREATE INDEX ix_agentsd_runs_released ON agentsd_runs (status, process, no) WHERE status = 'running' AND process IS NULL;
CREATE INDEX ix_agentsd_runs_expiring ON agentsd_runs (status, expires_at) WHERE status = 'paused';
CREATE INDEX ix_agentsd_runs_handed_on ON agentsd_runs (status, offered_at) WHERE status = 'queued' AND refusals IS NOT NULL;
CREATE INDEX ix_agentsd_runs_blocked ON agentsd_runs (blocked_by, priority DESC, rank, no) WHERE status = 'queued' AND blocked_by IS NOT NULL;
CREATE INDEX ix_agentsd_runs_held ON agentsd_runs (process) WHERE status IN ('queued', 'running') AND process IS NOT NULL;
CREATE INDEX ix_agentsd_runs_of_tenants ON agentsd_runs (tenant, priority, rank) WHERE status = 'queued';
CREATE INDEX ix_agentsd_runs_status ON agentsd_runs (status);
CREATE INDEX ix_agentsd_runs_ready ON agentsd_runs (status, priority DESC, rank, no) WHERE status = 'queued' AND ready = 1;
CREATE INDEX ix_agentsd_runs_waiting ON agentsd_runs (conversation_id, no) WHERE status = 'queued';
CREATE INDEX ix_agentsd_runs_created_at ON agentsd_runs (created_at);
CREATE INDEX ix_agentsd_run_media_digest ON agentsd_run_media (digest);
CREATE INDEX ix_agentsd_budget_counters_owner ON agentsd_budget_counters (owner);
CREATE INDEX ix_agentsd_idempotency_keys_run_id ON agentsd_idempotency_keys (run_id);
CREATE INDEX ix_agentsd_idempotency_keys_created_at ON agentsd_idempotency_keys (created_at);
COMMIT;
