"""A policy for tests of tools, in place of kedge: it calls the function that the question names with
a thing, `CALL FUNCTION THING`, and then says what it got; or it says something at once, or fails."""
import http.server
import json


class Policy(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        last = asked["messages"][-1]
        word = last["content"].split()
        answer = {"role": "assistant", "content": "it is " + last["content"]}
        if last["role"] == "user" and word[0] == "CALL":
            call = {"name": word[1], "arguments": json.dumps({"thing": word[2]})}
            answer = {"role": "assistant", "content": None, "tool_calls": [
                {"id": "call_1", "type": "function", "function": call}]}
        body = json.dumps({"choices": [{"message": answer}], "tools": len(asked["tools"])}).encode()
        self.send_response(400 if word[0] == "FAIL" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Policy)
print(server.server_port, flush=True)
server.serve_forever()
