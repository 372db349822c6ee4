"""A TCP proxy before PostgreSQL that can lose connections at chosen moments, as networks do."""

import contextlib
import socket
import threading


class Proxy:
    """Listens on a port of its own. Use with `with`.

    Attributes:
        down: while True, every connection is closed and none is accepted.
        cut: "before" closes a connection instead of passing its next COMMIT on; "after" passes the COMMIT on, waits
            for the answer, and closes the connection without handing the answer over. Back to None once done.
    """

    def __init__(self, host, port):
        self._target = (host, port)
        self._pairs = []
        self._down = False
        self.cut = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @classmethod
    def before(cls, url):
        """A proxy before the server of a URL, and the URL through it."""
        address = url.split("@")[1].split("/")[0]
        host, port = address.split(":")
        proxy = cls(host, int(port))
        return proxy, url.replace(address, f"127.0.0.1:{proxy.port}")

    @property
    def down(self):
        return self._down

    @down.setter
    def down(self, value):
        self._down = value
        if value:
            for pair in self._pairs:
                _close(*pair)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.down = True
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._down:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._pairs.append((client, server))
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(source, sink, client), daemon=True).start()

    def _pump(self, source, sink, client):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source is client and b"COMMIT" in data and self.cut is not None:
                    moment, self.cut = self.cut, None
                    if moment == "after":
                        # The pump of the other direction finds its client gone and drops the answer.
                        client.shutdown(socket.SHUT_RD)
                        with contextlib.suppress(OSError):
                            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                        client.close()
                        sink.sendall(data)
                        sink.shutdown(socket.SHUT_WR)
                        return
                    break
                sink.sendall(data)
        _close(source, sink)


def _close(*ends):
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
