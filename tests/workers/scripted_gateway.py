"""Stands in for the gateway: ready when every configured worker is; run as a script."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from workers.client import Client
from workers.parent import watch_parent
from workers.settings import Settings


def main() -> None:
    settings = Settings()
    watch_parent(settings.supervisor_pid)
    client = Client.connect(settings)
    num_wanted = [settings.llm_model, settings.video_model].count("none")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ready = [f for f in client.workers() if f.state in {"idle", "busy"}]
            self.send_response(200 if len(ready) >= 2 - num_wanted else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    ThreadingHTTPServer((settings.host, settings.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
