"""A launcher's drain endpoint for tests: the file named on the command line says how many requests are in flight."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lockstep_worker.contract import HTTP_PORT

state = Path(sys.argv[1])
asked = state.with_name("asked")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = {"draining": asked.exists(), "in_flight": int(state.read_text())}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        asked.touch()
        self.do_GET()


ThreadingHTTPServer(("127.0.0.1", HTTP_PORT), Handler).serve_forever()
