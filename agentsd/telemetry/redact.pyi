from framework.types.redact import *
