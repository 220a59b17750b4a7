from framework.telemetry.redact import *
