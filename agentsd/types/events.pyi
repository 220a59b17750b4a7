from framework.types.events import *
