from framework.config.settings import *
