"""Celery's configuration. Each value that differs from the default has its reason beside it."""

import os
from typing import Any

from celery import Celery

from config.broker import celery_url

TURN_TASK = "team.turn"
PING_TASK = "team.ping"

_OVERRIDES = (
    "CELERY_BROKER_URL",
    "CELERY_BROKER_READ_URL",
    "CELERY_BROKER_WRITE_URL",
    "CELERY_CONFIG_MODULE",
    "CELERY_LOADER",
    "CELERY_RESULT_BACKEND",
)


def celery_settings(broker_url: str, key_prefix: str, default_queue: str) -> dict[str, Any]:
    """Settings for producer and worker alike."""
    return {
        "broker_url": celery_url(broker_url),
        "task_default_queue": default_queue,
        # SQL is the queue: a lost message is sent again. Late acks crash the worker on a broker restart.
        "task_acks_late": False,
        # No message waits inside a busy worker while another one is free.
        "worker_disable_prefetch": True,
        # Flower shows nothing without events; with prefetch disabled they also keep slot refill fast.
        "worker_send_task_events": True,
        "task_send_sent_event": True,
        # Results are never used.
        "task_ignore_result": True,
        "result_backend": None,
        "accept_content": ["json"],
        "task_serializer": "json",
        # Give up never: the supervisor decides when a worker is replaced.
        "broker_connection_max_retries": None,
        "broker_connection_retry_on_startup": True,
        "worker_pool": "threads",
        "worker_hijack_root_logger": False,
        "broker_transport_options": {
            "global_keyprefix": key_prefix,
            # A half-open connection hangs for good without these.
            "socket_timeout": 5,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 5,
        },
    }


def celery_app(broker_url: str, key_prefix: str, default_queue: str = "turns") -> Celery:
    """A Celery application without tasks: what a producer needs.

    Takes Celery's own variables out of this process's environment: one that was set for another program would
    silently win over ``broker_url``.
    """
    for name in _OVERRIDES:
        os.environ.pop(name, None)
    app = Celery("team", set_as_current=False)
    app.conf.update(celery_settings(broker_url, key_prefix, default_queue))
    return app
