from framework.store.memory import *
