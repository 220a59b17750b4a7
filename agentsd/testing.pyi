from framework.testing import *
