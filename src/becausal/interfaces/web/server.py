"""The server: gradio's app with two routes of our own, uploads and downloads, behind the guard."""

import asyncio
import os
import re
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_DEFLATED, ZipFile

from becausal.api.compare import save_comparison
from becausal.api.explanation import Explanation
from becausal.core.comparison import Comparison
from becausal.core.contracts import Classifier
from becausal.core.errors import BecausalError, InputError, MissingExtraError
from becausal.interfaces.web.connections import group_address
from becausal.interfaces.web.guard import Guard
from becausal.interfaces.web.images import Upload, clean_name, make_examples
from becausal.interfaces.web.job_processes import JobProcesses, ModelSource
from becausal.interfaces.web.job_queue import JobQueue
from becausal.interfaces.web.limits import Limits
from becausal.interfaces.web.listening import LOOPBACK, return_memory
from becausal.interfaces.web.page_rules import UPLOAD_PATH, guard_page
from becausal.interfaces.web.rendering import read_static
from becausal.interfaces.web.sessions import IMAGE_FOLDER, Sessions, StoredResult
from becausal.interfaces.web.streams import Streams
from becausal.interfaces.web.theme import make_theme
from becausal.interfaces.web.upload_check import UploadChecks

if TYPE_CHECKING:
    from fastapi import FastAPI

CLEAN_UP_SECONDS = 20.0


def make_app(
    models: Mapping[str, Classifier],
    limits: Limits,
    *,
    sources: Mapping[str, ModelSource] | None = None,
    hosts: frozenset[str] | None = LOOPBACK,
    token: str | None = None,
) -> Guard:
    """The server as an ASGI app; raises MissingExtraError if gradio is not installed.

    models: by the name that is shown. sources: how each of them is loaded, by the same names; searches then run in
    processes, which can be ended at any time, and otherwise in threads. hosts: accepted host names; None for any. token:
    what clients must know, if any.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    try:
        import gradio as gr
        from fastapi import FastAPI
    except ImportError:
        raise MissingExtraError("gradio", "web", "the page") from None
    from becausal.interfaces.web.layout import build_blocks
    from becausal.interfaces.web.page import Page

    queue = JobQueue(limits, JobProcesses(models, sources) if sources is not None else None)
    sessions, streams, checks = Sessions(limits), Streams(), UploadChecks(limits)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        cleaning = asyncio.create_task(_clean_up(sessions))
        queue.start()
        yield
        cleaning.cancel()
        checks.close()
        await asyncio.to_thread(queue.close)

    api = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)
    _add_routes(api, sessions, checks)
    gr.mount_gradio_app(
        api,
        build_blocks(Page(models, sessions, queue, make_examples(), limits, streams)),
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
        theme=make_theme(gr),
        css=read_static("page.css"),
        head=f"<script>{read_static('page.js')}</script>",
    )
    return guard_page(streams.watch(api), limits=limits, hosts=hosts, token=token)


async def _clean_up(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(CLEAN_UP_SECONDS)
        sessions.clean_up()
        await asyncio.to_thread(return_memory)


def _add_routes(api: "FastAPI", sessions: Sessions, checks: UploadChecks) -> None:
    """Routes for uploads, downloads and images; all use tokens that only their page knows."""
    from fastapi import Request
    from fastapi.responses import JSONResponse, Response

    packing = asyncio.Semaphore(2)

    async def upload_image(request: Request) -> Response:
        upload = Upload(clean_name(request.query_params.get("name", "")), await request.body())
        try:
            if not upload.data:
                raise InputError(f"{upload.name} is empty")
            await checks.check(upload, group_address(request.client.host if request.client else ""))
        except BecausalError as error:
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse({"token": sessions.add_upload(upload)})

    async def download_result(request: Request) -> Response:
        result = sessions.find_result(request.path_params["token"])
        if result is None:
            return JSONResponse({"error": "this result is no longer available: explain the image again"}, 404)
        async with packing:
            name, data = await asyncio.to_thread(pack_result, result)
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        return Response(data, media_type="application/zip", headers=headers)

    async def show_image(request: Request) -> Response:
        image = sessions.find_image(request.path_params["token"])
        if image is None:
            return JSONResponse({"error": "this image is no longer available"}, 404)
        return Response(image.content, media_type=image.media_type, headers={"Cache-Control": "no-store"})

    api.add_route(UPLOAD_PATH, upload_image, methods=["POST"])
    api.add_route("/download/{token}", download_result, methods=["GET"])
    api.add_route(f"/{IMAGE_FOLDER}/{{token}}", show_image, methods=["GET"])


def name_zip(content: Explanation | Comparison) -> str:
    """The file name of a download: ASCII letters, digits and dashes."""
    label = content.label if isinstance(content, Explanation) else f"{content.first.label}-compared"
    return f"becausal-{re.sub(r'[^A-Za-z0-9]+', '-', label).strip('-')[:40].lower() or 'answer'}.zip"


def pack_result(result: StoredResult) -> tuple[str, bytes]:
    """The folder in which a result is saved, as a zip file: its name and content; nothing stays on disk."""
    content = result.content
    name = name_zip(content)
    folder_name = name.removesuffix(".zip")
    buffer = BytesIO()
    with tempfile.TemporaryDirectory(prefix="becausal-") as temporary, ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        folder = Path(temporary) / folder_name
        if isinstance(content, Explanation):
            content.save(folder)
        else:
            save_comparison(content, folder)
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{folder_name}/{file.name}")
    return name, buffer.getvalue()
