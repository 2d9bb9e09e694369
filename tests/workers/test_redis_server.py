"""Which Redis is used, and what happens to what an earlier run left behind."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from redis import Redis

from workers.deployment import redis_server
from workers.deployment.redis_server import (
    RedisUnusable,
    check_policy,
    clear_leftover,
    find_server,
    plan_redis,
    socket_path,
)
from workers.settings import Settings


def fake_server(folder, version):
    """A program that says it is a Redis of that version."""
    folder.mkdir()
    path = folder / "redis-server"
    path.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0:0 malloc=libc bits=64'\n")
    path.chmod(0o755)
    return path


def test_the_system_server_is_used_when_new_enough(tmp_path, monkeypatch):
    path = fake_server(tmp_path / "bin", "6.2.20")
    monkeypatch.setenv("PATH", str(path.parent))
    assert find_server() == (str(path), (6, 2, 20), "redis-server")


def test_an_old_system_server_gives_way_to_the_bundled_one(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{fake_server(tmp_path / 'bin', '6.2.19').parent}:/bin")
    plan = plan_redis(Settings(data_dir=tmp_path / "d"))
    assert "bundled redis-server 6.2.14" in plan.description
    assert plan.warning is not None
    assert "6.2.14 lacks security fixes" in plan.warning


def test_without_any_server_the_message_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(redis_server.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(RedisUnusable, match="LANEWISE_REDIS_URL"):
        plan_redis(Settings(data_dir=tmp_path))


def test_a_given_redis_is_used_and_its_password_is_not_shown():
    plan = plan_redis(Settings(redis_url="redis://:secret@example.com:6379/0"))
    assert plan.command is None
    assert "secret" not in plan.description


def test_a_long_path_gets_a_short_private_socket(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp")
    run_dir = tmp_path / ("deep" * 30)
    path = socket_path(run_dir)
    assert len(os.fsencode(path)) <= 100
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert socket_path(run_dir) == path
    path.parent.chmod(0o755)
    with pytest.raises(RedisUnusable, match="private"):
        socket_path(run_dir)
    path.parent.rmdir()


def test_the_own_server_is_private_and_durable(place):
    with place.redis_connection() as redis:
        for name, value in {
            "port": "0",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "protected-mode": "yes",
        }.items():
            assert redis.config_get(name) == {name: value}
    path = Path(place.redis.url.removeprefix("unix://"))
    assert path.stat().st_mode & 0o777 == 0o700
    assert (place.folder / "run" / "redis.pid").exists()


def test_a_dead_socket_is_removed(folder):
    plan = plan_redis(Settings(data_dir=folder))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(plan.socket))
    assert clear_leftover(plan) == "removed the socket of a Redis that is gone"
    assert not plan.socket.exists()
    assert clear_leftover(plan) is None


def test_a_leftover_server_is_stopped_and_its_data_kept(place):
    with place.redis_connection() as redis:
        redis.set("kept", "yes")
    assert "left behind" in clear_leftover(place.redis.plan)
    place.redis.start()
    with place.redis_connection() as redis:
        assert redis.get("kept") == b"yes"


def test_a_redis_that_evicts_is_refused(place):
    assert check_policy(place.redis.url) is None
    with place.redis_connection() as redis:
        redis.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(RedisUnusable, match="allkeys-lru, must be noeviction"):
        check_policy(place.redis.url)


def test_a_policy_that_cannot_be_read_is_told(folder):
    config = folder / "redis.conf"
    sock = folder / "r.sock"
    config.write_text(f'port 0\nunixsocket {sock}\nsave ""\nrename-command CONFIG ""\n')
    server = subprocess.Popen(
        [shutil.which("redis-server"), str(config)], stdout=subprocess.DEVNULL
    )
    try:
        with Redis(unix_socket_path=str(sock), retry_on_error=[ConnectionError]) as redis:
            while not sock.exists() or not redis.ping():
                pass
        assert "cannot be read" in check_policy(f"unix://{sock}")
    finally:
        server.terminate()
        server.wait()
