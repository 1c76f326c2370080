"""Runs the agent as a worker and alone, against a server of the chat API.

    sh build.sh DIR && DIR/venv/bin/python test_agent.py
"""

import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
import unittest

AGENT = str(pathlib.Path(__file__).with_name("agent.py"))
CALL = {"id": "c1", "type": "function", "function": {"name": "calc", "arguments": '{"expression":"3*4"}'}}


class Model(http.server.BaseHTTPRequestHandler):
    """Asks for one calculation, then answers; refuses a question that says gone."""

    protocol_version = "HTTP/1.1"
    seen: list = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Model.seen.append((self.headers["authorization"], body))
        message = {"role": "assistant", "content": "Answer: 12"}
        if not any(m["role"] == "tool" for m in body["messages"]):
            message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        status, out = 200, {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        if "gone" in body["messages"][1]["content"]:
            status, out = 410, {"error": {"message": "the attempt has ended"}}
        data = json.dumps(out).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


class AgentTest(unittest.TestCase):
    def setUp(self):
        Model.seen = []
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def test_a_worker_takes_rollouts_one_by_one(self):
        lines = ""
        for i, question in enumerate(["first?", "gone?", "third?"]):
            env = {"QUESTION": question, "OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": f"key{i}"}
            lines += json.dumps({"v": 1, "rollout_id": f"r{i}", "attempt_id": "0", "input": {}, "env": env, "dir": ".", "deadline": None}) + "\n"
        p = subprocess.run([sys.executable, AGENT, "-worker"], input=lines, capture_output=True, text=True, timeout=60)
        self.assertEqual(p.returncode, 0, p.stderr)
        done = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertEqual([(d["v"], d["rollout_id"], d["ok"]) for d in done], [(1, "r0", True), (1, "r1", False), (1, "r2", True)])
        self.assertIn("410", done[1]["error"])
        self.assertEqual([auth for auth, _ in Model.seen], ["Bearer key0"] * 2 + ["Bearer key1"] + ["Bearer key2"] * 2)
        self.assertEqual(Model.seen[1][1]["messages"][3], {"role": "tool", "content": "12", "tool_call_id": "c1"})

    def test_alone_it_prints_the_answer(self):
        env = {**os.environ, "QUESTION": "How many?", "OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": "key"}
        p = subprocess.run([sys.executable, AGENT], env=env, capture_output=True, text=True, timeout=60)
        self.assertEqual((p.returncode, p.stdout), (0, "Answer: 12\n"), p.stderr)
        p = subprocess.run([sys.executable, AGENT], env={**env, "QUESTION": ""}, capture_output=True, text=True, timeout=60)
        self.assertEqual(p.returncode, 1)
        self.assertIn("QUESTION is not set", p.stderr)


if __name__ == "__main__":
    unittest.main()
