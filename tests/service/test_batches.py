"""The render queue over HTTP."""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import Any

import httpx
import pytest
from gateway_kit import FakeClient, picture_bytes, render_next
from PIL import Image

from workers.store import Store

pytestmark = pytest.mark.anyio
LIST = """project,sequence,shot,image,prompt,seconds,seeds,tags
film,sq1,010,a.png,pan left,1,"1,2",hero
film,sq1,020,b.png,zoom in,1,3,
film,sq1,030,a.png,zoom out,1,,
"""


def form(text: str = LIST, *, without: str = "", **fields: str) -> dict[str, Any]:
    pictures = {"a.png": picture_bytes(), "b.png": picture_bytes((64, 64))}
    files = [("shots", ("list.csv", text.encode(), "text/csv"))]
    files += [("images", (n, d, "image/png")) for n, d in pictures.items() if n != without]
    return {"data": {"name": "reel", **fields}, "files": files}


async def test_a_list_makes_one_job_per_shot_and_seed(
    http: httpx.AsyncClient, client: FakeClient
) -> None:
    answer = await http.post("/batches", **form())
    batch = answer.json()
    assert answer.status_code == 202, batch
    assert (batch["num_new"], batch["num_reused"], batch["counts"]) == (4, 0, {"queued": 4})
    assert [(s["line"], s["shot"], s["seed"]) for s in batch["shots"][:3]] == [
        (2, "sq1_010", 1), (2, "sq1_010", 2), (3, "sq1_020", 3),
    ]  # fmt: skip
    assert batch["shots"][0]["job"]["tags"] == ["hero"]
    assert len(client.sent) == 4
    assert (await http.get(f"/batches/{batch['id']}")).json()["shots"][0]["job"][
        "id"
    ] == client.sent[0]
    listed = (await http.get("/batches")).json()
    assert [(b["id"], b["num_shots"], b["status"]) for b in listed["data"]] == [
        (batch["id"], 4, "queued")
    ]
    assert len((await http.get("/jobs", params={"batch": batch["id"]})).json()["data"]) == 4


async def test_a_dry_run_queues_nothing(http: httpx.AsyncClient, client: FakeClient) -> None:
    for answer in (
        await http.post("/batches", **form(dry_run="true")),
        await http.post("/batches?dry_run=true", **form()),
    ):
        assert answer.status_code == 200
        assert (answer.json()["id"], answer.json()["num_new"]) == (None, 4)
    assert client.sent == []
    assert (await http.get("/batches")).json()["data"] == []


async def test_all_problems_are_told_with_their_lines(
    http: httpx.AsyncClient, client: FakeClient
) -> None:
    text = (
        "shot,image,prompt,seconds,width,height,steps,model,colour\n"
        "010,a.png,pan,900,,,,,\n"
        "020,c.png,pan,1,100,64,,,\n"
        "030,a.png,,1,,,x,,\n"
        "040,a.png,pan,1,,,,nobody,\n"
        "010,a.png,pan,1,,,,,red\n"
    )
    answer = await http.post("/batches", **form(text))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (
        400,
        "shots",
        "invalid_shot_list",
    )
    for found in (
        "line 2, seconds",
        "line 3, image",
        "line 3, width",
        "line 4, prompt",
        "line 4, steps",
        "line 5, model",
        "line 1, colour",
    ):
        assert found in error["message"]
    assert len(error["message"].splitlines()) == 9
    assert client.sent == []


async def test_the_same_list_runs_only_what_changed_or_failed(
    http: httpx.AsyncClient, store: Store
) -> None:
    first = (await http.post("/batches", **form())).json()
    render_next(store)
    failed = render_next(store, failure="oom")
    changed = LIST.replace("zoom in", "zoom in fast")
    second = (await http.post("/batches", **form(changed))).json()
    assert (second["num_new"], second["num_reused"]) == (2, 2)
    reused = [shot["is_reused"] for shot in second["shots"]]
    assert reused == [True, False, False, True]
    assert failed not in {shot["job_id"] for shot in second["shots"]}
    assert second["shots"][3]["job_id"] == first["shots"][3]["job_id"]
    other = (await http.post("/batches", **form(name="other"))).json()
    assert other["num_reused"] == 0


async def test_one_list_sent_five_times_at_once_runs_once(
    http: httpx.AsyncClient, client: FakeClient
) -> None:
    answers = await asyncio.gather(*(http.post("/batches", **form()) for _ in range(5)))
    assert sorted(answer.json()["num_new"] for answer in answers) == [0, 0, 0, 0, 4]
    assert len(client.sent) == 4


async def test_json_shots_with_file_ids(http: httpx.AsyncClient) -> None:
    files = {"file": ("a.png", picture_bytes())}
    file_id = (await http.post("/v1/files", files=files, data={"purpose": "vision"})).json()["id"]
    shots = [{"shot": "1", "image": file_id, "prompt": "pan", "seeds": [1, 2], "size": "128x64"}]
    batch = (await http.post("/batches", json={"name": "j", "shots": shots})).json()
    assert [s["job"]["request"]["seed"] for s in batch["shots"]] == [1, 2]
    dry = await http.post("/batches", json={"name": "j", "shots": shots, "dry_run": True})
    assert (dry.json()["num_reused"], dry.json()["dry_run"]) == (2, True)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"shots": []}, "name"),
        ({"name": "", "shots": []}, "name"),
        ({"name": "x"}, "shots"),
        ({"name": "x", "shots": []}, "shots"),
        ({"name": "x", "shots": ["a"]}, "shots.0"),
        ({"name": "x", "shots": [{}]}, "shots"),
        ({"name": "x", "shots": {}}, "shots"),
        ({"name": "x", "shots": [{"shot": "1", "image": "file-x", "prompt": "p"}]}, "shots"),
        (
            {"name": "x", "shots": [{"shot": "1", "image": "http://127.0.0.1/", "prompt": "p"}]},
            "shots",
        ),
        ({"name": "x", "shots": [], "extra": 1}, "extra"),
    ],
)
async def test_bad_bodies_are_named(
    http: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    answer = await http.post("/batches", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_retry_takes_only_what_failed(http: httpx.AsyncClient, store: Store) -> None:
    batch = (await http.post("/batches", **form())).json()
    render_next(store)
    failed = render_next(store, failure="oom")
    await http.post(f"/jobs/{batch['shots'][3]['job_id']}/cancel")
    after = (await http.post(f"/batches/{batch['id']}/retry")).json()
    states = [shot["job"]["status"] for shot in after["shots"]]
    assert states == ["succeeded", "queued", "queued", "cancelled"]
    assert after["shots"][1]["job_id"] == failed
    assert after["status"] == "running"


async def test_the_contact_sheet_shows_every_shot(http: httpx.AsyncClient, store: Store) -> None:
    batch = (await http.post("/batches", **form())).json()
    render_next(store)
    await http.delete(f"/jobs/{batch['shots'][3]['job_id']}")
    answer = await http.get(f"/batches/{batch['id']}/contact_sheet.png")
    sheet = Image.open(BytesIO(answer.content))
    assert answer.headers["content-type"] == "image/png"
    assert sheet.size == (2 * 328 + 8, 2 * 214 + 8)
    assert (await http.get("/batches/batch_x/contact_sheet.png")).status_code == 404


async def test_batches_larger_than_the_queue_are_429(http: httpx.AsyncClient) -> None:
    seeds = ",".join(str(i) for i in range(60))
    text = f'shot,image,prompt,seeds\n1,a.png,pan,"{seeds}"\n'
    answer = await http.post("/batches", **form(text))
    assert answer.status_code == 429
    assert answer.headers["x-should-retry"] == "false"
