"""The environment server's process. Those that multiprocessing starts do not import a module of this name again."""

import logging
import sys

from rljob_runtime.environments import pod_server, server
from rljob_runtime.process.lifeline import die_with_parent

die_with_parent()
logging.basicConfig(level="INFO", format="%(asctime)s episodes %(levelname)s %(name)s: %(message)s")
if sys.argv[1:]:
    sys.exit(pod_server.main(sys.argv[1]))
server.main()
