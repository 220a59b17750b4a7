from framework.llm.client import *
