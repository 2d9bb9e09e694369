"""A whole deployment with scripted children: `python scripted_serve.py LOG`."""

from __future__ import annotations

import sys
from pathlib import Path

from workers.deployment.supervisor import Commands, Supervisor
from workers.settings import Settings

if __name__ == "__main__":
    here, log = Path(__file__).parent, sys.argv[1]
    worker = (sys.executable, str(here / "scripted.py"))
    commands = Commands(
        gateway=(sys.executable, str(here / "scripted_gateway.py")),
        llm=(*worker, "llm", log),
        video=(*worker, "video", log),
    )
    sys.exit(Supervisor(Settings(), commands=commands).run())
