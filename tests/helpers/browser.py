"""Chromium without a window, driven through its DevTools protocol over a pipe: no driver, no package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One tab. ``messages`` has what the page wrote to the console, ``requests`` the addresses that it asked for."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        reads, self._out = os.pipe()
        self._in, writes = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4. Not every sh knows descriptors above 9.
        line = f'exec "$@" 3<&{reads} 4>&{writes}'
        command = ["bash", "-c", line, "bash", CHROMIUM, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(command, pass_fds=(reads, writes), stderr=subprocess.DEVNULL)
        os.close(reads)
        os.close(writes)
        self._buffer, self._session, self._last = b"", "", 0
        self.messages: list[str] = []
        self.requests: list[str] = []
        self._loaded: set[str] = set()
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Page.setLifecycleEventsEnabled", enabled=True)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    def send(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _receive(self) -> Any:
        while b"\0" not in self._buffer:
            read = os.read(self._in, 1 << 16)
            if not read:
                raise RuntimeError("Chromium has ended")
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, about: dict[str, Any]) -> None:
        if event in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.messages.append(json.dumps(about))
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif event == "Page.lifecycleEvent" and about["name"] == "load":
            self._loaded.add(about["loaderId"])

    def show(self, width: int = 1200, height: int = 900, scheme: str = "light", motion: str = "no-preference") -> None:
        """Choose the window's size in CSS pixels, "light" or "dark", and whether motion is to be "reduce"d."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2,
                  mobile=width < 600)  # fmt: skip
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        self.send("Emulation.setEmulatedMedia", features=[dict(name=k, value=v) for k, v in features.items()])

    def open(self, path: Path, fragment: str = "") -> None:
        """Load the page anew and wait until it is loaded."""
        self.send("Page.navigate", url="about:blank")
        page = self.send("Page.navigate", url=path.as_uri() + fragment)["loaderId"]
        while page not in self._loaded:
            self._receive()

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise."""
        answer = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def key(self, key: str, text: str = "") -> None:
        """Press and release a key, such as "Tab" or "ArrowRight"."""
        code = {"Tab": 9, "Enter": 13, " ": 32, "ArrowRight": 39, "ArrowLeft": 37}[key]
        about = dict(key=key, code="Space" if key == " " else key, windowsVirtualKeyCode=code)
        self.send("Input.dispatchKeyEvent", type="keyDown", **about, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **about)

    def picture(self, path: Path) -> None:
        """A picture of the whole page."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))
