"""The server: gradio's app with two doors of our own, images in and answers out, behind the guard."""

import asyncio
import logging
import os
import re
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_DEFLATED, ZipFile

from becausal.api.compare import save_comparison
from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.errors import BecausalError, InputError, MissingExtraError
from becausal.interfaces.web.guard import App, Guard
from becausal.interfaces.web.limits import Limits
from becausal.interfaces.web.pictures import Upload, clean_name, draw_examples, read_picture
from becausal.interfaces.web.sessions import Found, Sessions
from becausal.interfaces.web.style import COLOURS, FONT, MONO, STYLE
from becausal.interfaces.web.work import Desk

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
TIDYING = 20.0  # seconds


def make_app(models: Mapping[str, Classifier], limits: Limits, *, hosts: frozenset[str] | None = LOOPBACK) -> App:
    """The whole server as an ASGI app. Raises MissingExtraError where gradio is not installed.

    models: by the name that is shown. hosts: the names it may be called by; None for any.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio looks; the page calls nobody
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    try:
        import gradio as gr
        from fastapi import FastAPI
    except ImportError:
        raise MissingExtraError("gradio", "web", "the page") from None
    from becausal.interfaces.web.layout import lay_out
    from becausal.interfaces.web.page import Page

    sessions, desk = Sessions(limits), Desk(limits)
    blocks = lay_out(Page(models, sessions, desk, draw_examples(), limits))

    @asynccontextmanager
    async def living(_: Any) -> AsyncIterator[None]:
        tidying = asyncio.create_task(_tidy(sessions))
        yield
        tidying.cancel()
        await asyncio.to_thread(desk.close)

    api = FastAPI(lifespan=living, openapi_url=None, docs_url=None, redoc_url=None)
    _open_doors(api, sessions, limits)
    gr.mount_gradio_app(
        api,
        blocks,
        path="/",
        run_history=False,
        footer_links=[],
        show_error=False,
        allowed_paths=[],
        max_file_size=limits.upload_bytes,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        enable_monitoring=False,
        theme=_theme(gr),
        css=STYLE,
    )
    return Guard(api, limits=limits, hosts=hosts)


def _theme(gr: Any) -> Any:
    """System type and the report's colours; no font is fetched from anywhere."""
    theme = gr.themes.Base(
        font=list(FONT), font_mono=list(MONO), radius_size=gr.themes.sizes.radius_md, text_size=gr.themes.sizes.text_md
    )
    light = {name: pair[0] for name, pair in COLOURS.items()}
    return theme.set(
        color_accent=COLOURS["border_color_accent"][0],
        input_border_width="1px",
        **light,
        **{f"{name}_dark": pair[1] for name, pair in COLOURS.items()},
    )


async def _tidy(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(TIDYING)
        sessions.tidy()


def _open_doors(api: "FastAPI", sessions: Sessions, limits: Limits) -> None:
    """Images in, answers out; both by tokens that only their page knows."""
    from fastapi import Request
    from fastapi.responses import JSONResponse, Response

    packing = asyncio.Semaphore(2)

    async def take_picture(request: Request) -> Response:
        upload = Upload(clean_name(request.query_params.get("name", "")), await request.body())
        try:
            if not upload.data:
                raise InputError(f"{upload.name} is empty: 0 bytes")
            await asyncio.to_thread(read_picture, upload, limits)
        except BecausalError as error:
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse({"token": sessions.put(upload)})

    async def give_answer(request: Request) -> Response:
        found = sessions.find(request.path_params["token"])
        if found is None:
            return JSONResponse({"error": "this answer is no longer here: explain the image again"}, 404)
        async with packing:
            data = await asyncio.to_thread(pack, found)
        headers = {"Content-Disposition": f'attachment; filename="{name_file(found)}"', "Cache-Control": "no-store"}
        return Response(data, media_type="application/zip", headers=headers)

    api.add_route("/picture", take_picture, methods=["POST"])
    api.add_route("/download/{token}", give_answer, methods=["GET"])


def name_file(found: Found) -> str:
    """What a downloaded answer is called: ASCII letters, digits and dashes."""
    label = found.answer.label if isinstance(found.answer, Explanation) else f"{found.answer.first.label}-compared"
    return f"becausal-{re.sub(r'[^A-Za-z0-9]+', '-', label).strip('-')[:40].lower() or 'answer'}.zip"


def pack(found: Found) -> bytes:
    """The folder an answer is saved to, as a zip file; nothing is left on disk."""
    folder_name = name_file(found).removesuffix(".zip")
    buffer = BytesIO()
    with tempfile.TemporaryDirectory(prefix="becausal-") as place, ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        folder = Path(place) / folder_name
        if isinstance(found.answer, Explanation):
            found.answer.save(folder)
        else:
            save_comparison(found.answer, folder)
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{folder_name}/{file.name}")
    return buffer.getvalue()


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound already, so that a port in use is said at once. Raises InputError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"cannot listen on {host}: {error.strerror or error}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        reason = error.strerror or str(error)
        raise InputError(f"cannot listen on port {port} of {host}: {reason}; choose another with --port") from None
    return bound


def make_server(app: App) -> "uvicorn.Server":
    """The server of an app; `run(sockets=[…])` serves until it is told to stop."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=1,
        limit_concurrency=600,
    )
    server = uvicorn.Server(config)
    # Open pages hold a connection each; that they are cut off when the server ends is no error.
    logging.getLogger("uvicorn.error").addFilter(lambda record: not server.should_exit)
    return server
