"""The client of a service: refusal by plan, lost tokens, errors; against a scripted server."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.llm.http_stream import Service
from benchmarks.llm.options import LLMOptions
from benchmarks.llm.service_rows import PlanMismatch, check_plan, lost_tokens
from benchmarks.suites import llm


class Handler(BaseHTTPRequestHandler):
    """Streams `max_tokens` tokens; the server's `fault` bends that."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.reply(200, json.dumps({"data": [{"id": "tiny"}]}).encode(), "application/json")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.fault == "refuses":
            self.reply(429, b'{"error": {"message": "too many"}}', "application/json")
            return
        count = body["max_tokens"] - (self.server.fault == "loses")
        chunks = [{"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]}]
        for index in range(count):
            choice = {"delta": {"content": f"t{index} "}, "finish_reason": None}
            choice["logprobs"] = {"content": [{"token": f"t{index}"}]}
            chunks.append({"choices": [choice]})
        chunks.append({"choices": [{"delta": {}, "finish_reason": "length"}]})
        chunks.append({"choices": [], "usage": {"completion_tokens": body["max_tokens"]}})
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        lines += [] if self.server.fault == "breaks" else ["data: [DONE]\n\n"]
        self.reply(200, "".join(lines).encode(), "text/event-stream")

    def reply(self, status, body, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.server.plan_hash:
            self.send_header("x-lanewise-plan", self.server.plan_hash)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.fault, server.plan_hash = "", "aaa111"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def service(server):
    return Service(url=f"http://127.0.0.1:{server.server_port}", api_key="sk-x", model="tiny")


def test_a_whole_stream_loses_nothing(service):
    streams = service.streams(["a", "b", "c"], 5, logprobs=True)
    assert [lost_tokens(stream, 5) for stream in streams] == [0, 0, 0]
    assert streams[0].text == "t0 t1 t2 t3 t4 "
    assert streams[0].times == sorted(streams[0].times)
    assert streams[0].times[0] > streams[0].sent


@pytest.mark.parametrize(("fault", "lost"), [("loses", 1), ("breaks", 1), ("refuses", 5)])
def test_a_bent_stream_is_counted(server, service, fault, lost):
    server.fault = fault
    stream = service.stream("a", 5, logprobs=True)
    assert lost_tokens(stream, 5) == lost
    assert ("429" in stream.error) == (fault == "refuses")


def test_a_service_that_is_gone_is_an_error_of_the_stream():
    gone = Service(url="http://127.0.0.1:9", api_key="", model="tiny").stream("a", 2)
    assert "ConnectionRefused" in gone.error
    assert lost_tokens(gone, 2) == 2


def test_another_plan_is_refused_with_both_hashes(server, service):
    assert check_plan(service, "") == check_plan(service, "aaa111") == "aaa111"
    with pytest.raises(PlanMismatch, match=r"aaa111.*bbb222"):
        check_plan(service, "bbb222")
    server.plan_hash = ""
    with pytest.raises(PlanMismatch, match=r"no x-lanewise-plan header.*bbb222"):
        check_plan(service, "bbb222")


def test_the_command_refuses_another_plan_with_exit_code_3(service, tmp_path, capsys):
    options = LLMOptions(
        url=service.url, plan_hash="bbb222", sections=("service",), peers=(),
        json=tmp_path / "llm.json",
    )  # fmt: skip
    assert llm.command(options) == 3
    assert "aaa111" in capsys.readouterr().err
    assert json.loads((tmp_path / "llm.json").read_text())["rows"] == []


def test_a_service_that_does_not_answer_is_a_row_with_its_error(server, service, tmp_path):
    server.fault = "refuses"
    options = LLMOptions(
        url=service.url, sections=("service",), peers=(), json=tmp_path / "llm.json"
    )
    assert llm.command(options) == 0
    [row] = json.loads((tmp_path / "llm.json").read_text())["rows"]
    assert "429" in row["error"]
