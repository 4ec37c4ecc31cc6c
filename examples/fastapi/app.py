"""A shop's application: its login, its page, its figures, and in it the gateway's streams.

KAFKA=localhost:9092 uvicorn app:app --app-dir examples/fastapi --port 8001
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel
from starlette.requests import HTTPConnection

from gateway import RequestError, create_app, load
from gateway.config import Route

FOLDER = Path(__file__).parent
PASSWORDS = {"ada": "lovelace", "grace": "hopper"}  # yours are hashed, and elsewhere
sessions: dict[str, str] = {}  # cookie -> who; yours are where all processes see them


async def check_login(
    route: Route, params: Mapping[str, str], connection: HTTPConnection, token: str | None
) -> None:
    """The gateway asks this before every stream."""
    if connection.cookies.get("session") not in sessions:
        raise RequestError(401, "Not logged in", "log in first")


kafka = create_app(load(FOLDER / "gateway.yaml"), access=check_login)
app = FastAPI(lifespan=kafka.lifespan)  # it begins and ends with the application


class Login(BaseModel):
    name: str
    password: str


@app.post("/login", status_code=204)
async def login(who: Login, response: Response) -> None:
    if PASSWORDS.get(who.name) != who.password:
        raise HTTPException(403, "no such name and password")
    session = secrets.token_urlsafe()
    sessions[session] = who.name
    # Behind HTTPS also secure=True.
    response.set_cookie("session", session, httponly=True, samesite="strict")


@app.get("/paid/{customer}")
async def get_paid_total(customer: str) -> dict[str, float]:
    """What the orders that a customer has paid come to: read from the topic, to its end as it is
    now, by the connections that the streams use."""
    orders = kafka.gateway.subscribe(
        "orders",
        start="earliest",
        until="latest",
        filters={"key": customer, "value": {"/status": "paid"}},
    )
    totals = [record.json()["total"] async for record in orders]
    return {customer: round(sum(totals), 2)}


@app.get("/")
async def get_page() -> FileResponse:
    return FileResponse(FOLDER / "index.html")


@app.get("/style.css")
async def get_style() -> FileResponse:
    return FileResponse(FOLDER.parent / "style.css")


app.mount("/kafka", kafka)
