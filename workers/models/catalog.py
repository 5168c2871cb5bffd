"""The models of one worker, by name."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from config.models import SCRIPT, Endpoint, check_model, endpoint
from config.settings import Settings
from workers.models.answer import Answer, Model
from workers.models.conversation import Conversation
from workers.models.script import ScriptModel

if TYPE_CHECKING:
    from workers.models.clients import Client
    from workers.models.provider import ProviderModel

_ORGANIZATION = "OPENAI_ORG_ID"
_PROJECT = "OPENAI_PROJECT_ID"


class Models:
    """One per worker, for one event loop: keeps a client per model, and its connections, until ``close``."""

    def __init__(self, settings: Settings, keys: Mapping[str, str]) -> None:
        self._settings = settings
        self._keys = dict(keys)
        self._models: dict[str, Model] = {}

    def get(self, name: str) -> Model:
        """The model of that name. Cheap: the provider's library is loaded, in a thread, by the first request.

        Raises:
            ConfigurationInvalid: One sentence: the prefix is unknown, a key or a library is missing, or a script
                is malformed.
        """
        model = self._models.get(name)
        if model is None:
            check_model(name, self._settings, self._keys)
            model = self._new(name)
            self._models[name] = model
        return model

    async def close(self) -> None:
        """Close every connection. Requests that still run fail; later ones open new clients. Idempotent."""
        models, self._models = self._models, {}
        for model in models.values():
            if isinstance(model, _LazyModel):
                await model.close()

    def _new(self, name: str) -> Model:
        prefix, _, rest = name.partition(":")
        if prefix == SCRIPT:
            return ScriptModel(rest)
        place = endpoint(name, self._settings, self._keys)
        return _LazyModel(
            name, place, self._settings.request_timeout_seconds, self._keys.get(_ORGANIZATION), self._keys.get(_PROJECT)
        )


class _LazyModel:
    """A provider model whose library is loaded by its first request, off the event loop."""

    def __init__(
        self,
        name: str,
        place: Endpoint,
        request_timeout_seconds: float,
        organization: str | None,
        project: str | None,
    ) -> None:
        self._name = name
        self._place = place
        self._timeout = request_timeout_seconds
        self._organization = organization
        self._project = project
        self._lock = asyncio.Lock()
        self._opened: tuple[ProviderModel, Client] | None = None

    async def answer(self, conversation: Conversation, *, member: str, on_text: Callable[[str], None]) -> Answer:
        """See ``Model.answer``."""
        model = await self._provider()
        return await model.answer(conversation, member=member, on_text=on_text)

    async def summarise(self, conversation: Conversation, *, member: str) -> Answer:
        """See ``Model.summarise``."""
        model = await self._provider()
        return await model.summarise(conversation, member=member)

    async def _provider(self) -> "ProviderModel":
        async with self._lock:
            if self._opened is None:
                self._opened = await asyncio.to_thread(self._open)
        return self._opened[0]

    async def close(self) -> None:
        async with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            await opened[1].http.aclose()

    def _open(self) -> "tuple[ProviderModel, Client]":
        from workers.models.clients import open_client  # noqa: PLC0415  # a second of imports that scripts do not need
        from workers.models.provider import ProviderModel  # noqa: PLC0415  # beside its library

        client = open_client(self._place, self._organization, self._project)
        secrets = (self._place.api_key,) if self._place.api_key else ()
        return ProviderModel(self._name, client, self._timeout, secrets), client
