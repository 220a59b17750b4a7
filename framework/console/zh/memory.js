export default {
  Memory: "记忆",
  "Find a note": "查找笔记",
  "Show more": "显示更多",
  Forget: "忘记",
  "for all users": "所有用户共享",
  "no user": "无用户",
  "saved by {agent}": "由 {agent} 保存",
  until: "有效至",
  "Text of tools, files or servers was in the conversation that led to it.":
    "产生它的对话中包含工具、文件或服务器的文本。",
  untrusted: "不可信",
  "Runs that have begun with it keep it until they end.": "已经带着它开始的运行会一直使用到结束。",
  "Forget this note?": "忘记这条笔记？",
  "The note was forgotten": "已忘记这条笔记",
  "No note contains this": "没有笔记包含这些文字",
  "Agents with the key memory in their file keep notes here, each approved by a person.":
    "文件中带有 memory 键的智能体会在这里保存笔记，每条都经人批准。",
  "No notes are stored": "尚无笔记",
};
