"""A schedule on a device: a stream of the device for each stream of the schedule.

Unverified: no machine with several devices has run it. The order in which nodes are issued and
the events between streams are tested; overlap on hardware is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernels.collectives.schedules.graph import Schedule
from kernels.collectives.schedules.threads import Actions


def run_streams(
    schedule: Schedule,
    rank: int,
    actions: Actions,
    device: torch.device,
    streams: Mapping[str, Any] | None = None,
) -> None:
    """Issue a rank's nodes; returns before they have run. The caller's stream waits for them all.

    Nodes are issued in an order that no node waits against, so one thread is enough and a graph
    can be captured. An event follows a node that another stream waits for.
    """
    module = torch.get_device_module(device)
    own = schedule.streams(rank)
    lanes = streams or {name: module.Stream(device=device) for name in own}
    outer = module.current_stream(device)
    for lane in lanes.values():
        lane.wait_stream(outer)
    awaited = {name for node in schedule.nodes if node.rank == rank for name in node.after}
    events: dict[str, Any] = {}
    for owner, name in schedule.order:
        if owner != rank:
            continue
        node = schedule.by_place[owner, name]
        lane = lanes[node.stream]
        for earlier in node.after:
            if schedule.by_place[rank, earlier].stream != node.stream:
                lane.wait_event(events[earlier])
        with module.stream(lane):
            actions[name]()
        if name in awaited:
            events[name] = module.Event()
            events[name].record(lane)
    for lane in lanes.values():
        outer.wait_stream(lane)
