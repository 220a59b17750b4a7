"""The import path of `framework.llm.message_formats` in earlier versions."""

from framework.llm.message_formats import exported as exported
from framework.llm.message_formats import imported as imported
