"""`python -m workers serve|llm|video|doctor|plan|tune`: a deployment, a worker, or their facts."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.settings import Settings

USAGE = """\
usage: python -m workers serve|llm|video   (settings: LANEWISE_* variables)
       python -m workers doctor|plan|tune --help"""
EXIT_USAGE = 2


def main(arguments: list[str]) -> int:
    """Run one role; the exit code: 0 done, 2 wrong usage, 3 refused, 4 no fit, 1 other."""
    if arguments[:1] in (["doctor"], ["plan"], ["tune"]):
        return _explain(arguments[0], arguments[1:])
    if len(arguments) != 1 or arguments[0] not in {"serve", "llm", "video"}:
        print(USAGE, file=sys.stderr)
        return EXIT_USAGE
    from pydantic import ValidationError

    from workers.settings import Settings

    try:
        settings = Settings()
    except ValidationError as error:
        print(f"lanewise: {error}", file=sys.stderr)
        return EXIT_USAGE
    return _run(arguments[0], settings)


def _explain(command: str, arguments: list[str]) -> int:
    """What would run where, and why; no deployment is needed."""
    try:
        if command == "doctor":
            from workers.planning import doctor

            return doctor.main(arguments)
        if command == "tune":
            from workers.planning import tune

            return tune.main(arguments)
        from workers.planning import plan

        return plan.main(arguments)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(role: str, settings: Settings) -> int:
    """Import only what the role needs: engines are heavy, and the supervisor holds none."""
    if role == "serve":
        from workers.deployment.supervisor import Supervisor

        return Supervisor(settings).run()
    if role == "llm":
        from workers.processes import llm_worker

        return llm_worker.main(settings)
    from workers.processes import video_worker

    return video_worker.main(settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
