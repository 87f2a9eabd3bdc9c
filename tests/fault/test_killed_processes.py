"""Processes of a running server are killed under writers that send again what was not answered.

The right values: every acknowledged row is there once, no other row is, and the server goes on.
Each request keeps its id over all its tries, as clients do that retry inside one call.
"""

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from tests.clients.running_server import RunningServer, running_server
from tests.contract.domain import ipc
from tests.processes import OwnProcesses

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

WRITERS = 4
SECONDS_EACH = 2.0
VICTIMS = ("ray::Table", "ray::ServeReplica")
TRY_AGAIN_S = 120.0


def client_of(server: RunningServer) -> httpx.Client:
    headers = {"x-api-key": server.admin_key}
    return httpx.Client(base_url=server.url, headers=headers, timeout=60)


def send(client: httpx.Client, path: str, **body: object) -> httpx.Response:
    """Send until there is an answer that is final."""
    headers = {"x-request-id": str(uuid.uuid4())}
    deadline = time.monotonic() + TRY_AGAIN_S
    while time.monotonic() < deadline:
        try:
            answer = client.post(path, headers=headers, **body)  # type: ignore[arg-type]
        except httpx.TransportError:
            time.sleep(0.05)
            continue
        if answer.status_code < 500:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"{path}: no final answer within {TRY_AGAIN_S} s")


@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, times: int) -> None:
    victims = VICTIMS * times
    own = OwnProcesses()
    with running_server(tmp_path) as server:
        with client_of(server) as client:
            rows = pa.table({"id": pa.array([0]), "n": pa.array([0])})
            assert send(client, "/v1/table/t/create", content=ipc(rows)).status_code == 200
            assert send(client, "/v1/table/t/insert", content=ipc(rows)).status_code == 200
        stop = threading.Event()

        def write(number: int) -> tuple[int, int]:
            inserted = added = 0
            row = ipc(pa.table({"id": pa.array([1 + number]), "n": pa.array([0])}))
            with client_of(server) as mine:
                while not stop.is_set():
                    assert send(mine, "/v1/table/t/insert", content=row).status_code == 200
                    inserted += 1
                    update = {"updates": [["n", "n + 1"]], "predicate": "id = 0"}
                    if inserted % 5 == 0:
                        answer = send(mine, "/v1/table/t/update", json=update)
                        assert answer.json()["updated_rows"] == 2
                        added += 1
            return inserted, added

        with ThreadPoolExecutor(WRITERS) as pool:
            writers = [pool.submit(write, number) for number in range(WRITERS)]
            killed = 0
            deadline = time.monotonic() + TRY_AGAIN_S
            for victim in victims:
                time.sleep(SECONDS_EACH)
                # The next one may take longer to start than the pause is.
                while not (found := own.named(victim)) and time.monotonic() < deadline:
                    time.sleep(0.05)
                for process in found[:1]:
                    process.kill()
                    killed += 1
            time.sleep(SECONDS_EACH)
            stop.set()
            done = [writer.result() for writer in writers]
        assert killed == len(victims)
        inserted = sum(count for count, _ in done)
        added = sum(count for _, count in done)
        assert inserted > WRITERS and added > 0
        with client_of(server) as client:
            answer = send(client, "/v1/table/t/count_rows", json={})
            assert int(answer.text) == 2 + inserted
            answer = send(client, "/v1/table/t/count_rows", json={"predicate": f"n = {added}"})
            assert int(answer.text) == 2
