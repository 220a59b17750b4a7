"""The import path of the conversation formats in earlier versions; they are now in `framework.llm.message_formats`."""

from framework.llm.message_formats import exported as exported
from framework.llm.message_formats import imported as imported
