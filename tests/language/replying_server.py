"""A server of the OpenAI protocol as a process of its own, which fails in the ways that servers fail.

    python replying_server.py LOG BEHAVIOUR

Prints its port once it listens, and appends one JSON line a request to LOG. It replies with the seed and the number of
the last message's characters. Behaviours: "ok"; "late", the first come are answered last; "flaky", every other request
fails with 500; "busy", the first three get 429; "refusing", 400 for chats that hold the word "poison"; "dying", the
process ends at the sixth request; "hanging", no answer; "web", a page instead of JSON; "nothing", no choices; "torn",
half a body; "thinking", reasons apart from the text; "silent", no text and no usage.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LOG, BEHAVIOUR = sys.argv[1:]
LOCK = threading.Lock()
COUNT = [0]
RUNNING = [0, 0]
"""How many requests are being answered now, and at most."""


def reply(asked: dict[str, Any]) -> dict[str, Any]:
    said = f"{asked.get('seed')}:{len(asked['messages'][-1]['content'])}"
    message: dict[str, Any] = {"role": "assistant", "content": said}
    if BEHAVIOUR == "thinking":
        message["reasoning_content"] = "Hm."
    if BEHAVIOUR == "silent":
        message["content"] = None
    choice = {"index": 0, "message": message, "finish_reason": "stop" if asked["max_tokens"] > 1 else "length"}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": asked["model"],
        "choices": [] if BEHAVIOUR == "nothing" else [choice],
        **({} if BEHAVIOUR == "silent" else {"usage": usage}),
    }


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with LOCK:
            COUNT[0] += 1
            number = COUNT[0]
            RUNNING[0] += 1
            RUNNING[1] = max(RUNNING)
            with open(LOG, "a") as file:
                told = {"path": self.path, "key": self.headers["Authorization"], "at_once": RUNNING[1], **asked}
                file.write(json.dumps(told) + "\n")
        if BEHAVIOUR == "dying" and number == 6:
            os._exit(1)
        if BEHAVIOUR == "hanging":
            time.sleep(60)
        if BEHAVIOUR == "late":
            time.sleep(max(0.0, 0.4 - 0.05 * number))
        status, kind, body = 200, "application/json", json.dumps(reply(asked))
        if (BEHAVIOUR == "flaky" and number % 2) or (BEHAVIOUR == "busy" and number <= 3):
            status = 500 if BEHAVIOUR == "flaky" else 429
        if BEHAVIOUR == "refusing" and "poison" in asked["messages"][-1]["content"]:
            status = 400
        if status != 200:
            body = json.dumps({"error": {"message": "not today", "type": "test"}})
        if BEHAVIOUR == "web":
            kind, body = "text/html", "<html>Welcome to nginx!</html>"
        if BEHAVIOUR == "torn":
            body = body[: len(body) // 2]
        with LOCK:
            RUNNING[0] -= 1
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_arguments: Any) -> None:
        """Print nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
