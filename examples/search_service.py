"""A web service that answers with the nearest images of a folder: FastAPI on `excb.embed`.

Run: pip install fastapi uvicorn python-multipart
     PHOTOS=photos uvicorn --app-dir examples search_service:app
     curl -F image=@query.jpg 'http://127.0.0.1:8000/search?k=5'

The folder is embedded once, at the start; later starts read the cache. CKPT names the network (default: conv4_photos).
With APPROXIMATE=1 searches go through a graph, which is built at the start: faster among many images, and not exact.
"""

import io
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query, UploadFile
from PIL import Image, UnidentifiedImageError

import excb


@asynccontextmanager
async def with_embeddings(app: FastAPI) -> AsyncIterator[None]:
    """Embed the folder before the first request."""
    app.state.embeddings = excb.embed(os.environ.get("CKPT", "conv4_photos"), os.environ["PHOTOS"])
    app.state.approximate = os.environ.get("APPROXIMATE") == "1"
    if app.state.approximate:
        print(f"the graph finds {100 * app.state.embeddings.graph.recall():.1f} % of the ten nearest images")
    yield


app = FastAPI(title="nearest images", lifespan=with_embeddings)


@app.post("/search")
def search(image: UploadFile, k: Annotated[int, Query(ge=1, le=100)] = 5) -> list[dict[str, str | float]]:
    """The k images of the folder that are most similar to the one sent, the nearest first."""
    try:
        query = Image.open(io.BytesIO(image.file.read()))
        query.load()
    except (UnidentifiedImageError, OSError) as error:
        raise HTTPException(status_code=422, detail=f"not an image that can be read: {error}") from None
    matches = app.state.embeddings.search(query, k=k, approximate=app.state.approximate)
    return [{"path": match.path, "cosine": match.cosine} for match in matches]
