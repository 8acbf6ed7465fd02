"""Two hosts on one machine: two network namespaces, and a wire between them that delays, loses and can be cut.

Each namespace has one network device, hr0, beside its loopback. What it sends comes out of a TUN device into this
process, which hands it to the other side, late or not at all. The kernel's own tool for that (tc netem) is a module
that not every machine has; this works wherever there are namespaces and /dev/net/tun, and loses the same packets for
the same seed.
"""
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time

TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x1001
TRAINER, ENGINE = "trainer", "engine"


class Unable(Exception):
    """This machine makes no network namespaces for this user."""


def run(*words):
    result = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if result.returncode != 0:
        raise Unable(f"{' '.join(words)}: {result.stderr.strip() or result.returncode}")


def ports(packet: bytes) -> tuple[int, ...]:
    """The TCP ports of an IPv4 packet; none of another."""
    if packet[0] >> 4 != 4 or packet[9] != 6:
        return ()
    return struct.unpack_from("!HH", packet, 4 * (packet[0] & 15))


class Wire(threading.Thread):
    """Forwards packets between two descriptors. Any thread may use the public methods."""

    def __init__(self, ends: list[int], delay: float, loss: float, seed: int, secret: bytes):
        super().__init__(daemon=True)
        self._ends = ends
        self._delay, self._loss = delay, loss
        self._random = random.Random(seed)
        self._secret = secret
        self._changed = threading.Condition()
        self._cut_after: int | None = None
        self._spare_port: int | None = None
        self._cut = False
        self._stop_reader, self._stop_writer = os.pipe()
        self.carried = 0  # bytes
        self.lost = 0  # packets, by chance
        self.cut_off = 0  # packets, since the last cut
        self.secrets = 0  # packets in which the secret can be read

    def cut_after(self, count: int, spare_port: int | None = None) -> None:
        """Once `count` further bytes got through, nothing does any more, except what is to or from TCP port
        `spare_port` (IPv4)."""
        with self._changed:
            self._cut_after, self._spare_port, self.cut_off = self.carried + count, spare_port, 0

    def wait_cut(self, packets: int, timeout: float) -> bool:
        """Waits until so many packets were cut off."""
        with self._changed:
            return self._changed.wait_for(lambda: self.cut_off >= packets, timeout)

    def heal(self) -> None:
        with self._changed:
            self._cut, self._cut_after = False, None

    def stop(self) -> None:
        os.write(self._stop_writer, b"x")
        self.join()
        os.close(self._stop_reader)
        os.close(self._stop_writer)

    def run(self) -> None:
        waiting: list[tuple[float, int, int, bytes]] = []  # due, order, end, packet
        order = 0
        while True:
            timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            ready, _, _ = select.select([*self._ends, self._stop_reader], [], [], timeout)
            if self._stop_reader in ready:
                return
            for fd in ready:
                packet = os.read(fd, 65536)
                if self._passes(packet):
                    order += 1
                    other = self._ends[1] if fd == self._ends[0] else self._ends[0]
                    heapq.heappush(waiting, (time.monotonic() + self._delay, order, other, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, fd, packet = heapq.heappop(waiting)
                try:
                    os.write(fd, packet)
                except OSError:
                    pass  # the device at that end is down

    def _passes(self, packet: bytes) -> bool:
        with self._changed:
            if self._secret in packet:
                self.secrets += 1
            if self._cut_after is not None and self.carried >= self._cut_after:
                self._cut = True
            if self._cut and self._spare_port not in ports(packet):
                self.cut_off += 1
                self._changed.notify_all()
                return False
            if self._random.random() < self._loss:
                self.lost += 1
                return False
            self.carried += len(packet)
            return True


class TwoHosts:
    """The hosts TRAINER and ENGINE. A context manager; entering raises Unable."""

    def __init__(self, *, ipv6: bool = False, delay: float = 0.002, loss: float = 0.01, seed: int = 1,
                 secret: bytes = b"no secret"):
        self.address = {TRAINER: "fd77::1", ENGINE: "fd77::2"} if ipv6 else {TRAINER: "10.77.0.1", ENGINE: "10.77.0.2"}
        self._prefix = 64 if ipv6 else 24
        self._settings = (delay, loss, seed, secret)
        self._names: dict[str, str] = {}
        self._ends: list[int] = []
        self.wire: Wire

    def __enter__(self) -> "TwoHosts":
        if os.geteuid() != 0:
            raise Unable("network namespaces are for root")
        try:
            for host in (TRAINER, ENGINE):
                self._make(host)
        except OSError as error:
            self._remove()
            raise Unable(str(error)) from error
        except BaseException:
            self._remove()
            raise
        self.wire = Wire(self._ends, *self._settings)
        self.wire.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.stop()
        self._remove()

    def _make(self, host: str) -> None:
        name = f"headrace-{os.getpid()}-{host}"
        run("ip", "netns", "add", name)
        self._names[host] = name
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        self._ends.append(fd)
        device = f"hr{os.getpid()}{host[0]}"[:15]
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN_NO_PI))
        run("ip", "link", "set", device, "netns", name, "name", "hr0")
        no_detection = ["nodad"] if ":" in self.address[host] else []
        run("ip", "-n", name, "addr", "add", f"{self.address[host]}/{self._prefix}", "dev", "hr0", *no_detection)
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "link", "set", "hr0", "up")

    def _remove(self) -> None:
        for fd in self._ends:
            os.close(fd)
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=60)

    def command(self, host: str, *words: str) -> list[str]:
        """What runs `words` on a host."""
        return ["ip", "netns", "exec", self._names[host], *words]
