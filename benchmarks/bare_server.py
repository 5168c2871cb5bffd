"""The least that a coordinator could be: ``python -m benchmarks.bare_server URL PORT``.

The same server stack (uvicorn, FastAPI, a pool of threads), a strict body, one insert and its commit.
"""

import queue
import sys
from collections.abc import Callable
from contextlib import ExitStack

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.limits import CLIENTS, inserting


class Words(BaseModel):
    words: str


def application(url: str, stack: ExitStack) -> FastAPI:
    """One route that commits; ``stack`` closes the pool of connections, one for SQLite, which has one writer."""
    pool: queue.Queue[Callable[[], None]] = queue.Queue()
    for _ in range(1 if url.startswith("sqlite") else CLIENTS):
        pool.put(stack.enter_context(inserting(url)))
    app = FastAPI()

    @app.get("/")
    def ready() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/")
    def insert(body: Words) -> dict[str, int]:
        action = pool.get()
        try:
            action()
        finally:
            pool.put(action)
        return {"size": len(body.words)}

    return app


if __name__ == "__main__":
    with ExitStack() as connections:
        uvicorn.run(application(sys.argv[1], connections), port=int(sys.argv[2]), log_level="warning", access_log=False)
