"""An OpenEnv environment as a server: two tries to say letters of a word. Its port comes to a file."""
import os
import socket
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Say(Action):
    message: str


class Told(Observation):
    text: str = ""


class Guess(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.tries = 0

    def reset(self, seed=None, episode_id=None, word="sea", **kw):
        self.word, self.tries = word, 0
        return Told(text=f"{len(word)} letters")

    def step(self, action, timeout_s=None, **kw):
        self.tries += 1
        share = sum(c in self.word for c in action.message) / max(1, len(action.message))
        return Told(text="again", reward=share / 2, done=self.tries == 2)

    @property
    def state(self):
        return State(step_count=self.tries)

app = create_fastapi_app(Guess, Say, Told, max_concurrent_envs=64)
door = socket.create_server(("127.0.0.1", 0), backlog=64)
with open(sys.argv[1] + ".new", "w") as port:
    port.write(str(door.getsockname()[1]))
os.rename(sys.argv[1] + ".new", sys.argv[1])
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[door])
