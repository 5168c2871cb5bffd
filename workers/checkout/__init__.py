"""The shared checkout as a worker's tools see it: files, search, bash, and the guard that ends what they start."""

from workers.checkout.guard import Guard, make_non_dumpable
from workers.checkout.paths import open_workspace
from workers.checkout.presence import Presence
from workers.checkout.sandbox import Places, Sandbox, find_sandbox
from workers.checkout.tools import CallContext, LocalResult, LocalTools
from workers.checkout.workspace import prove_locks, prove_workspace

__all__ = [
    "CallContext",
    "Guard",
    "LocalResult",
    "LocalTools",
    "Places",
    "Presence",
    "Sandbox",
    "find_sandbox",
    "make_non_dumpable",
    "open_workspace",
    "prove_locks",
    "prove_workspace",
]
