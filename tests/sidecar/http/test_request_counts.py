"""What is asked of the sidecar, as a scrape has it."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families as parsed
from support.brokers import embedded_kafka
from support.sidecars import running_sidecar, wait_until_ready

kafka = embedded_kafka()


async def test_requests_are_counted_by_endpoint_and_status_whatever_refuses_them(kafka):
    kafka.create_topic("counted", 1)
    async with running_sidecar(kafka.bootstrap, producer={}) as http:
        await wait_until_ready(http)
        body = {"valueFormat": "string", "records": [{"value": "a"}]}
        for topic in ("counted", "counted", "missing"):
            await http.post(f"/producers/{topic}", json=body)
        page = {"Origin": "http://page.example"}
        assert (await http.post("/producers/counted", json=body, headers=page)).status_code == 403
        assert (await http.get("/producers/counted")).status_code == 405
        scrape = (await http.get("/metrics")).text
    found = {family.name: family.samples for family in parsed(scrape)}
    counted = {
        (sample.labels["endpoint"], sample.labels["status"]): sample.value
        for sample in found["gateway_sidecar_requests"]
        if sample.name.endswith("_total")
    }
    post = "POST /producers/{topic}"
    assert (counted[post, "200"], counted[post, "404"]) == (2, 1)
    assert counted["", "403"] == 1  # refused before any endpoint
    assert counted["GET /producers/{topic}", "405"] == 1
    lasted = {
        sample.labels["endpoint"]: sample.value
        for sample in found["gateway_sidecar_seconds"]
        if sample.name.endswith("_count")
    }
    assert lasted[post] == 3
