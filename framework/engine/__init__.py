"""The engine. A request reads down: runtime -> router -> react, plan -> run -> policy, budget."""
