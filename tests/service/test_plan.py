"""The launch plan that a worker published, as JSON and as a gauge."""

from datetime import UTC, datetime

import pytest

from workers.protocol import WorkerFacts, WorkerState

pytestmark = pytest.mark.anyio

PLAN = {
    "hash": "abc",
    "no_fallback_score": 0.9,
    "scores": [{"phase": "prefill", "device": "sm_120", "flops": 0.97, "traffic": 0.9}],
}


def published(client):
    now = datetime.now(UTC)
    facts = WorkerFacts(
        id="llm-planned", role="llm", model="planned", state=WorkerState.IDLE, plan=PLAN,
        started_at=now, beat_at=now,
    )  # fmt: skip
    client.store.workers.publish(facts)


async def test_the_plan_of_a_worker_is_shown_and_counted(client, http):
    published(client)
    answer = await http.get("/v1/engine/plan")
    assert answer.status_code == 200
    found = {row["model"]: row["plan"] for row in answer.json()["data"]}
    assert found["planned"] == PLAN
    metrics = (await http.get("/metrics")).text
    assert (
        'lanewise_plan_no_fallback_ratio{device="sm_120",model="planned",of="flops",'
        'phase="prefill",role="llm"} 0.97' in metrics
    )
