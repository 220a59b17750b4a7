from framework.server import *
