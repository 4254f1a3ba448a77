"""Pytest plugin: no socket of this suite leaves the machine. Register it in tests/conftest.py:

    pytest_plugins = ["tests.no_network"]

An audit hook sees every connect, sendto and name look-up that Python makes, whichever library asks; a hook cannot be
taken out again. What it denies is also remembered, so that a library that swallows the error still fails the session.
Ray's workers are processes of their own: a module that they import calls `deny()`.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

ADDRESS_AT = {"socket.connect": 1, "socket.sendto": 1, "socket.sendmsg": 1,
              "socket.getaddrinfo": 0, "socket.gethostbyname": 0}
denied: list[str] = []
_on = False
_hooked = False


class NetworkDenied(RuntimeError):
    """Something tried to reach an address outside loopback."""


def is_local(address: object) -> bool:
    """Whether a socket address (or a host name) stays on this machine.

    >>> is_local(("127.0.0.1", 80)), is_local("/run/x.sock"), is_local(("8.8.8.8", 53)), is_local("example.org")
    (True, True, False, False)
    """
    if isinstance(address, tuple):  # (host, port, ...)
        address = address[0] if address else None
    if isinstance(address, bytes | bytearray):
        address = bytes(address).decode("utf-8", "replace")
    if address is None or isinstance(address, int):  # a connected socket; netlink and its like
        return True
    if not isinstance(address, str):
        return False
    if address in ("", "localhost", socket.gethostname()) or address[0] in "/\0":  # the last: unix sockets
        return True
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _audit(event: str, arguments: tuple) -> None:
    if not _on or (at := ADDRESS_AT.get(event)) is None:
        return
    address = arguments[at]
    if not is_local(address):
        denied.append(f"{event} {address!r}")
        raise NetworkDenied(f"{event} to {address!r}: tests reach loopback only; take the data from a fixture")


def deny() -> None:
    """From now on, in this process, every address outside loopback is denied."""
    global _on, _hooked
    if not _hooked:
        sys.addaudithook(_audit)
        for name in ("connect", "connect_ex"):
            setattr(socket.socket, name, _before_look_up(name))
        _hooked = True
    _on = True


def _before_look_up(name: str):
    """connect((host name, port)) asks a name server before its audit event: check the name first."""
    real = getattr(socket.socket, name)

    def checked(self, address, /):
        _audit("socket.connect", (self, address))
        return real(self, address)

    return checked


@contextmanager
def expected() -> Iterator[list[str]]:
    """For the tests of this plugin: the denials inside do not fail the session."""
    before = len(denied)
    seen: list[str] = []
    try:
        yield seen
    finally:
        seen += denied[before:]
        del denied[before:]


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Denies the network for the whole session; fails it if something tried."""
    global _on
    deny()
    try:
        yield
    finally:
        _on = False
        if denied:
            pytest.fail("the suite tried to reach the network: " + "; ".join(denied[:5]), pytrace=False)
