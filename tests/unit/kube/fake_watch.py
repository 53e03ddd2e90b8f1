"""An API server that only lets itself be watched: it lists one object of each kind, and its streams never end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web
from ebbtide_operator.kube.kinds import Kind

NAMESPACES = Kind("", "v1", "namespaces", "Namespace")


class Watched:
    """See the module. `streams` counts the watches that are open."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self.kinds, self.streams = kinds, 0

    def found(self, kind: Kind) -> dict[str, object]:
        metadata = {"name": "x", "namespace": "models", "uid": f"uid-{kind.plural}", "resourceVersion": "7"}
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path in ("/api", "/apis"):
            return web.json_response(self._groups() if request.path == "/apis" else {"versions": ["v1"]})
        for kind in self.kinds:
            if request.path == kind.path("models"):
                return await self._stream(request) if "watch" in request.query else self._list(kind)
        known = [kind for kind in (*self.kinds, NAMESPACES) if request.path == kind.path().rpartition("/")[0]]
        return web.json_response({"resources": [self._resource(kind) for kind in known]})

    def _groups(self) -> dict[str, object]:
        versions = {kind.group: {"groupVersion": kind.api_version, "version": kind.version} for kind in self.kinds}
        return {
            "groups": [
                {"name": group, "versions": [version], "preferredVersion": version}
                for group, version in versions.items()
                if group
            ]
        }

    def _resource(self, kind: Kind) -> dict[str, object]:
        verbs = ["list", "watch", "patch", "get"]
        return {"name": kind.plural, "singularName": "", "namespaced": True, "kind": kind.kind, "verbs": verbs}

    def _list(self, kind: Kind) -> web.Response:
        return web.json_response(
            {"kind": f"{kind.kind}List", "metadata": {"resourceVersion": "7"}, "items": [self.found(kind)]}
        )

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        self.streams += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.streams -= 1
        return answer


@contextlib.asynccontextmanager
async def served(watched: Watched) -> AsyncIterator[str]:
    """Serve it; yield its URL."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", watched.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
