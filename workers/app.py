"""The Celery application of a worker: two thin tasks and the signals of its life."""

import signal
from typing import Any, Final

import redis
import structlog
from celery import Celery, signals
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError

from config.broker import redis_url
from config.celery import PING_TASK, TURN_TASK, celery_app
from config.settings import Settings
from workers.liveness import BrokerAway, Liveness
from workers.runtime import Runtime

_log = structlog.stdlib.get_logger(__name__)

# Long enough for a saturated worker to reach it, short enough that a dead worker's queue does not stay.
_PING_TTL_SECONDS: Final = 60
_SOCKET_SECONDS: Final = 5


def ping_queue(instance: str) -> Queue:
    """The private queue of one worker process. It is only a list of Redis: no binding is ever declared for it."""
    name = f"ping.{instance}"
    return Queue(name, Exchange(name), routing_key=name, no_declare=True)


class Pings:
    """Publishes pings to a worker's private queue, each over a connection of its own."""

    def __init__(self, settings: Settings, queue: Queue) -> None:
        self._app = celery_app(settings.broker_url or "", settings.key_prefix)
        # A ping is no work: Flower does not see it.
        self._app.conf.task_send_sent_event = False
        # One attempt: a check that waits for the broker would only tell later that it is away.
        self._app.conf.broker_transport_options = {
            **self._app.conf.broker_transport_options,
            "max_retries": 0,
            "interval_start": 0,
            "interval_max": 0,
        }
        self._queue: Any = queue  # the annotations of send_task know names only
        self._url = redis_url(settings.broker_url)
        self._key = f"{settings.key_prefix}{queue.name}"

    def publish(self, nonce: str) -> None:
        """Send one ping.

        Raises:
            BrokerAway: The broker did not take it.
        """
        try:
            with self._app.connection_for_write() as connection:
                self._app.send_task(
                    PING_TASK, args=(nonce,), queue=self._queue, connection=connection, retry=False, declare=[]
                )
            # A ping which nobody consumes must not outlive its worker.
            self._redis_call("expire", self._key, _PING_TTL_SECONDS)
        except (OperationalError, redis.RedisError, OSError) as error:
            raise BrokerAway(type(error).__name__) from error

    def remove(self) -> None:
        """Drop what was not consumed. A broker that is away forgets it by its time to live."""
        try:
            self._redis_call("del", self._key)
        except (redis.RedisError, OSError) as error:
            _log.info("ping queue not removed", reason=type(error).__name__)

    def _redis_call(self, command: str, *arguments: Any) -> None:
        client: Any = redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]  # untyped library
            self._url, socket_timeout=_SOCKET_SECONDS, socket_connect_timeout=_SOCKET_SECONDS
        )
        try:
            client.execute_command(command, *arguments)
        finally:
            client.close()


def create_app(settings: Settings, runtime: Runtime, liveness: Liveness, private: Queue) -> Celery:
    """The application that the worker process runs. Its tasks take ids and return None."""
    names = settings.queue_names
    app = celery_app(settings.broker_url or "", settings.key_prefix, names[0])
    app.conf.worker_consumer = "workers.consumer:Consumer"
    app.conf.task_queues = [*(Queue(name, Exchange(name), routing_key=name) for name in names), private]

    def turn(turn_id: str) -> None:
        runtime.run_turn(turn_id)

    def ping(nonce: str) -> None:
        liveness.answered(nonce)
        if settings.health_file is not None:
            settings.health_file.touch()

    app.task(name=TURN_TASK)(turn)
    app.task(name=PING_TASK, send_events=False)(ping)
    return app


def serve(settings: Settings, runtime: Runtime, *, nodename: str, instance: str) -> int:
    """Consume until a signal or a fault ends it; returns the exit code of Celery.

    ``nodename`` is Celery's ``name@host``, as Flower shows it. ``instance`` names the private queue; unlike the
    node's name it is never used twice.
    """
    private = ping_queue(instance)
    pings = Pings(settings, private)
    within = settings.liveness_seconds
    liveness = Liveness(pings.publish, runtime.slots, runtime.abandon, every=within / 2, within=within)
    app = create_app(settings, runtime, liveness, private)

    def on_init(**_: Any) -> None:
        # From here on and not from readiness: a worker that never becomes ready is deaf too.
        liveness.start()

    def on_ready(**_: Any) -> None:
        _own_signals(runtime)
        _log.info("worker ready", queues=list(settings.queue_names), slots=settings.slots)

    def on_shutting_down(**_: Any) -> None:
        liveness.stop()
        runtime.hand_over()

    def own_logging(**_: Any) -> None:
        """Connected so that Celery leaves the logging of this process alone."""

    signals.worker_init.connect(on_init, weak=False)
    signals.worker_ready.connect(on_ready, weak=False)
    signals.worker_shutting_down.connect(on_shutting_down, weak=False)
    signals.setup_logging.connect(own_logging, weak=False)
    worker: Any = app.Worker(
        hostname=nodename,
        concurrency=settings.slots,
        pool="threads",
        loglevel="INFO",
        without_gossip=True,
        without_mingle=True,
        quiet=True,
    )
    worker.start()
    liveness.stop()
    pings.remove()
    return int(worker.exitcode or 0)


def _own_signals(runtime: Runtime) -> None:
    """Every signal that asks to stop hands over; the same one again cuts the drain short.

    Another one does not: Ctrl-C reaches a worker from the terminal, and then its supervisor's SIGTERM.

    Celery's own handlers would start this program again in place (SIGHUP), or kill jobs, which its thread pool
    cannot (SIGQUIT and the second SIGINT).
    """
    warm: Any = signal.getsignal(signal.SIGTERM)
    seen: set[int] = set()

    def stop(number: int, frame: Any) -> None:
        if number in seen:
            runtime.hurry()
        seen.add(number)
        warm(number, frame)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, stop)
