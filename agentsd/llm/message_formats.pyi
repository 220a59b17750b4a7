from framework.llm.message_formats import *
