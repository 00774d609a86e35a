"""A headless Chromium for the tests, driven through its debugging pipe: no package is needed but the browser itself."""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser() -> str | None:
    """The browser to use: GLOBULAR_BROWSER, or one that is on the path."""
    named = os.environ.get("GLOBULAR_BROWSER")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of a headless browser; `problems` gathers what its console and its network complain of."""

    def __init__(self, executable: str, profile: Path, *, width: int = 1240, height: int = 900) -> None:
        read_by_browser, self._write = os.pipe()
        self._read, written_by_browser = os.pipe()
        command = [
            executable, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}",
            f"--window-size={width},{height}", "about:blank",
        ]  # fmt: skip

        def give_pipes() -> None:  # the browser reads commands from descriptor 3 and answers on 4
            high_in, high_out = os.dup(read_by_browser), os.dup(written_by_browser)
            os.dup2(high_in, 3)
            os.dup2(high_out, 4)

        self._process = subprocess.Popen(
            command, preexec_fn=give_pipes, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_by_browser)
        os.close(written_by_browser)
        self._pending = b""
        self._number = 0
        self.problems: list[str] = []
        target = self._send("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
        attached = self._send("Target.attachToTarget", {"targetId": target, "flatten": True}, session=None)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        """Give the page another size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._send("Emulation.setDeviceMetricsOverride", size)

    def open(self, page: Path, *, seconds: float = 30.0) -> float:
        """Load a file and wait until it says it is ready; returns the seconds that took."""
        begun = time.perf_counter()
        self._send("Page.navigate", {"url": page.resolve().as_uri()})
        self.wait_for("Boolean(window.globularReport && window.globularReport.ready)", seconds)
        return time.perf_counter() - begun

    def wait_for(self, expression: str, seconds: float = 10.0) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} did not come true; the browser says {self.problems}")
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._send("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", "JavaScript failed"))
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """Move the mouse."""
        self._mouse("mouseMoved", x, y, button="none")

    def click(self, x: float, y: float) -> None:
        """Click with the left button."""
        self.move(x, y)
        self._mouse("mousePressed", x, y)
        self._mouse("mouseReleased", x, y)

    def type(self, text: str) -> None:
        """Type into what has the focus; a line break is the Enter key."""
        for sign in text:
            key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"} if sign == "\n" else {}
            for kind in ("keyDown", "keyUp"):
                self._send("Input.dispatchKeyEvent", {"type": kind, "text": sign, "key": sign, **key})

    def wheel(self, x: float, y: float, delta: float) -> None:
        """Turn the wheel; a negative delta is upwards."""
        self._send("Input.dispatchMouseEvent", {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": delta})

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def _mouse(self, kind: str, x: float, y: float, button: str = "left") -> None:
        event = {"type": kind, "x": x, "y": y, "button": button, "clickCount": 0 if button == "none" else 1}
        self._send("Input.dispatchMouseEvent", event)

    def _send(self, method: str, parameters: dict[str, Any] | None = None, session: str | None = "page") -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters or {}}
        if session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(60.0)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def _receive(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._pending:
            if not select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._read, 1 << 16)
            if not part:
                raise RuntimeError("the browser has ended")
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\0")
        return dict(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        """Keep what a page should not do: throw, complain, or ask for something from outside."""
        method, told = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(told["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(told["args"])[:500])
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.problems.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not told["request"]["url"].startswith(
            ("file:", "data:", "about:", "blob:")
        ):
            self.problems.append(f"asked for {told['request']['url']}")
