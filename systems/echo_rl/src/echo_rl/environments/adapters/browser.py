"""One headless Chromium, which ends with this process in whatever way the process ends."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from echo_core import ConfigError
from echo_rl.environments.base import EnvironmentFailure

__all__ = ["BROWSERS", "DRIVERS", "Browser"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
DRIVERS = ("chromedriver", "chromium.chromedriver")
START = 60
"""Seconds in which the browser has to start."""
_LATE = 2.0  # seconds after its time in which the driver can end a call itself
#: Waits until its input ends, which it does when the process that holds the other end is gone, and then ends the driver's group of processes.
_WATCH = 'read -r line; kill -9 "-$1" 2>/dev/null; rm -rf -- "$2"'


class Browser:
    """A browser without a window, a profile of its own, and no way to the network.

    Args:
        browser, driver: the programs of Chromium and of its driver; None looks for them.
        timeout: for how many seconds a call may take. After that the browser is ended.

    Raises ConfigError if there is no such program, and EnvironmentFailure if the browser does not start.
    """

    def __init__(self, browser: str | None, driver: str | None, timeout: float) -> None:
        program = _program("browser", browser, *BROWSERS)
        driver_program = _program("driver", driver, *DRIVERS)
        options: Any = importlib.import_module("selenium.webdriver.chrome.options").Options()
        service: Any = importlib.import_module("selenium.webdriver.chrome.service").Service
        self._keys: Any = importlib.import_module("selenium.webdriver.common.action_chains").ActionChains
        self._folder = tempfile.mkdtemp(prefix="echo-miniwob-")
        self._timeout = timeout
        self._watch: subprocess.Popen[bytes] | None = None
        self._driver: Any = None
        options.binary_location = program
        for argument in (
            "--headless=new",
            f"--user-data-dir={self._folder}",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--window-size=500,400",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--disable-background-networking",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # Chromium refuses to start as root otherwise. The pages are those of the package.
        ):
            options.add_argument(argument)
        self._service = service(driver_program, popen_kw={"start_new_session": True})
        try:
            self._service.start()
            group = str(self._service.process.pid)
            self._watch = subprocess.Popen(["/bin/sh", "-c", _WATCH, "sh", group, self._folder], stdin=subprocess.PIPE, start_new_session=True)
            remote: Any = importlib.import_module("selenium.webdriver.remote.client_config").ClientConfig
            config = remote(remote_server_addr=self._service.service_url, timeout=int(timeout) + START)
            base: Any = importlib.import_module("selenium.webdriver.remote.webdriver").WebDriver
            self._driver = base(command_executor=self._service.service_url, options=options, client_config=config)
            self._driver.set_page_load_timeout(timeout)
            self._driver.set_script_timeout(timeout)
            # The pages handle focus as in the window in front, which a browser without windows may not have.
            self._driver.command_executor.add_command("cdp", "POST", "/session/$sessionId/goog/cdp/execute")
            self._driver.execute("cdp", {"cmd": "Emulation.setFocusEmulationEnabled", "params": {"enabled": True}})
        except Exception as error:
            self.close()
            raise EnvironmentFailure(f"miniwob: the browser does not start: {str(error)[:300]}") from error

    def open(self, url: str) -> None:
        """Load a page anew. Raises EnvironmentFailure."""
        # On a busy machine the driver may answer before it has begun to load a page that is open already. The mark is gone with the old page.
        self.run("window.leftByEcho = true;")
        self._call("the page", lambda driver: driver.get(url))
        self.until("return !window.leftByEcho && document.readyState === 'complete';")

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page and return what it returns. Raises EnvironmentFailure."""
        return self._call("a script", lambda driver: driver.execute_script(script, *arguments))

    def until(self, script: str) -> None:
        """Wait until a script returns true. Raises EnvironmentFailure after the time of one call."""
        end = time.monotonic() + self._timeout
        while not self.run(script):
            if time.monotonic() > end:
                self.close()
                raise EnvironmentFailure(f"miniwob: the page is not ready after {self._timeout} s; raise timeout")
            time.sleep(0.02)

    def keys(self, text: str) -> None:
        """Press the keys of a text. Raises EnvironmentFailure."""
        self._call("the keyboard", lambda driver: self._keys(driver, duration=0).send_keys(text).perform())

    def close(self) -> None:
        """End the driver, the browser and all that they have started."""
        driver, self._driver = self._driver, None
        if driver is not None:
            with suppress(Exception):  # a browser that does not end by itself is killed
                driver.quit()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.communicate()
        process = getattr(self._service, "process", None)
        if process is not None:
            self._kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _call(self, what: str, call: Any) -> Any:
        if self._driver is None:
            raise EnvironmentFailure("miniwob: the browser has ended; make another environment")
        # The driver cannot end a script that never returns to the page's loop.
        hangs = threading.Timer(self._timeout + _LATE, self._kill)
        hangs.start()
        try:
            return call(self._driver)
        except Exception as error:
            self._driver = None  # It is not asked to end, because a page that hangs would let it wait: it is killed.
            self.close()
            words = (str(error) or repr(error)).splitlines()[0][:300]
            raise EnvironmentFailure(f"miniwob: {what} failed, and the browser is closed: {words}") from error
        finally:
            hangs.cancel()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):  # it has ended already
            os.killpg(self._service.process.pid, signal.SIGKILL)


def _program(field: str, wanted: str | None, *names: str) -> str:
    if wanted is not None:
        if not os.access(wanted, os.X_OK) or not Path(wanted).is_file():
            raise ConfigError(f"miniwob: {field}={wanted!r} is no program")
        return wanted
    for name in names:
        if found := shutil.which(name):
            return found
    raise ConfigError(f"miniwob: there is no {names[0]}; install it (on Debian: apt install chromium chromium-driver), or name the program by {field}")
