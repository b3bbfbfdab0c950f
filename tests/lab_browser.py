"""Drives a real JupyterLab in a real headless Chromium, for tests of what a reader clicks on.

    with serve_lab(folder) as server, chromium() as browser:
        page = open_notebook(browser, server, "some.ipynb")
        run_all(page)
        wait_for_text(page, ".some-class .widget-html-content", "42")
        assert page.problems == []

Every wait has a bound and none assumes a speed: tests run beside other work on few cores.
"""

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
from playwright.sync_api import Browser, Page, sync_playwright
from playwright.sync_api import TimeoutError as BrowserTimeout

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
BOUND = 120  # seconds for anything to happen; idle machines need less than ten

SETTINGS = {
    # Otherwise cells out of sight are left out of the page, and so are their widgets.
    "notebook-extension/tracker": {"windowingMode": "none"},
    # Otherwise a notification asks whether to fetch news, and lies over the page.
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}

PANEL = "window.jupyterapp?.shell?.currentWidget"  # exposed by --expose-app-in-browser
KERNEL = f"{PANEL}?.sessionContext?.session?.kernel"
IDLE = f'{KERNEL}?.connectionStatus === "connected" && {KERNEL}.status === "idle"'
CELLS = f"{PANEL}.content.widgets.map(cell => cell.model).filter(m => m.type === 'code')"
STDERR = '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]'
COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # tracebacks are full of them


@dataclass
class Server:
    url: str
    token: str
    pid: int

    def rest(self, path, method="GET"):
        """The answer of the server's REST API; past any proxy, for the server is on this machine."""
        head = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}/{path}", headers=head, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            body = answer.read()
        return json.loads(body) if body else None


@contextmanager
def serve_lab(folder: Path):
    """A JupyterLab on `folder` that knows nothing of the user's own; it and its kernels end here."""
    with tempfile.TemporaryDirectory(prefix="lab_", ignore_cleanup_errors=True) as own:
        own = Path(own)
        for name, values in SETTINGS.items():
            file = own / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        token = secrets.token_hex(16)
        # What the test has set (its store, say) reaches the kernels; what names the user's own
        # Jupyter does not, so that the first python3 to be found is this interpreter's.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTER")} | {
            "JUPYTER_CONFIG_DIR": str(own / "config"),
            "JUPYTER_DATA_DIR": str(own / "data"),
            "JUPYTER_RUNTIME_DIR": str(own / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(own / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(own / "workspaces"),
            "IPYTHONDIR": str(own / "ipython"),
            "JUPYTER_TOKEN": token,
            "OMP_NUM_THREADS": "1",
        }
        command = [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
            *("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"),
            *(f"--ServerApp.root_dir={Path(folder).resolve()}", "--expose-app-in-browser"),
            "--LabApp.extension_manager=readonly",  # the other one asks PyPI
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            # Should the tests be killed, only the server itself is left to end the server.
            "--MappingKernelManager.cull_idle_timeout=600",
            "--ServerApp.shutdown_no_activity_timeout=600",
        ]
        log = own / "server.log"
        with log.open("w") as out:
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            process = subprocess.Popen(command, env=environment, start_new_session=True, **streams)
        server = Server(f"http://127.0.0.1:{port}", token, process.pid)
        try:
            _wait_for_answer(server, process, log)
            yield server
        finally:
            _end(server, process)


def _wait_for_answer(server, process, log):
    deadline = time.monotonic() + BOUND
    while True:
        with suppress(OSError):  # refused, reset or too slow, as it has not started yet
            server.rest("api/status")
            return
        late = time.monotonic() > deadline
        if late or process.poll() is not None:
            why = f"no answer in {BOUND} s" if late else f"ended with {process.returncode}"
            raise RuntimeError(f"JupyterLab: {why}\n{log.read_text()}")
        time.sleep(0.1)


def _end(server, process):
    """Kernels lead process groups of their own, so the family is written down before it parts."""
    family = []
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    with suppress(OSError):
        for kernel in server.rest("api/kernels"):
            server.rest(f"api/kernels/{kernel['id']}", "DELETE")
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    with suppress(ProcessLookupError):  # the server's group is empty already, as usual
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    _, stubborn = psutil.wait_procs(family, timeout=5)  # workers that a kernel has forgotten
    for each in stubborn:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    deadline = time.monotonic() + 15
    while left := [each for each in family if alive(each)]:
        assert time.monotonic() < deadline, f"JupyterLab left behind {left}"
        time.sleep(0.1)


def alive(process: psutil.Process):
    """Whether it runs; not so a zombie, which waits for a parent that is none of ours."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@contextmanager
def chromium():
    """Debian's Chromium, without a window; playwright brings none of its own."""
    with sync_playwright() as playwright:
        start = {"executable_path": CHROMIUM, "args": FLAGS, "timeout": BOUND * 1000}
        browser = playwright.chromium.launch(**start)
        try:
            yield browser
        finally:
            browser.close()


def open_notebook(browser: Browser, server: Server, name: str) -> Page:
    """Open a notebook in a new page, with its kernel ready.

    `page.problems` gathers what a reader does not see: errors on the browser's console, uncaught
    exceptions, and tracebacks of the kernel, also those of a widget's callback, which no cell shows.
    """
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(BOUND * 1000)
    page.problems = problems = []

    def note(message):
        if message.type == "error":
            problems.append(f"{COLOUR.sub('', message.text)} ({message.location.get('url')})")

    page.on("console", note)
    page.on("pageerror", lambda error: problems.append(f"{error}\n{error.stack}"))
    # A workspace of its own: two pages of one server would fight over the default one.
    place = f"lab/workspaces/{secrets.token_hex(4)}/tree/{quote(name)}"
    page.goto(f"{server.url}/{place}?token={server.token}", wait_until="domcontentloaded")
    _wait(page, f"{PANEL}?.context?.path === {json.dumps(name)}", f"{name} to open")
    _wait(page, IDLE, "the kernel to be ready")
    page.evaluate(
        f"""() => {PANEL}.sessionContext.iopubMessage.connect((_, message) => {{
            if (message.header.msg_type === "error")
                console.error("kernel: " + message.content.traceback.join("\\n"));
        }})"""
    )
    return page


def _wait(page, condition, what):
    """Wait until a JavaScript condition holds, and return its value."""
    try:
        options = {"timeout": BOUND * 1000, "polling": 100}
        return page.wait_for_function(f"() => {condition}", **options).json_value()
    except BrowserTimeout:  # most often a dialog is in the way: which kernel to use?
        dialog, problems = text_of(page, ".jp-Dialog"), page.problems
        raise AssertionError(f"{BOUND} s for {what}; dialog: {dialog!r}; problems: {problems}")


def run_all(page: Page, stderr_ok=False):
    """Choose Run > Run All Cells and wait for its end; raises if a cell shows an error or stderr."""
    _run(page, "notebook:run-all-cells", stderr_ok)


def restart_and_run_all(page: Page, stderr_ok=False):
    """Choose Kernel > Restart Kernel and Run All Cells, confirm its dialog, and go on as `run_all`."""
    _run(page, "notebook:restart-run-all", stderr_ok, confirm=True)


def _run(page, command, stderr_ok, confirm=False):
    # The command's promise is kept when the last cell has ended; waiting for it inside evaluate
    # would have no bound, so it leaves a word and wait_for_function looks for that.
    page.evaluate(
        """command => {
            window.ran = null;
            window.jupyterapp.commands.execute(command).then(
                () => { window.ran = "ended"; }, error => { window.ran = String(error); });
        }""",
        command,
    )
    if confirm:
        page.locator(".jp-Dialog .jp-Dialog-button.jp-mod-accept").click()
    ran = _wait(page, "window.ran", f"{command} to end")
    assert ran == "ended", f"{command}: {ran}"
    _wait(page, IDLE, "the kernel to be idle")
    # JupyterLab draws an error as if it were stderr, so errors are read from the notebook itself.
    shown = page.evaluate(
        f"""() => {CELLS}.flatMap(m => m.outputs.toJSON())
            .filter(o => o.output_type === "error").map(o => o.traceback.join("\\n"))"""
    )
    if not shown and not stderr_ok:
        shown = page.locator(STDERR).all_inner_texts()
    assert not shown, f"{command}: a cell shows\n" + COLOUR.sub("", "\n".join(shown))
    skipped = page.evaluate(
        f"""() => {CELLS}.filter(m => m.sharedModel.source.trim() && !m.executionCount)
            .map(m => m.sharedModel.source)"""
    )
    assert not skipped, f"{command}: not run\n" + "\n".join(skipped)


def text_of(page: Page, css: str):
    """Read the text of the first element that `css` finds, None if it finds none; does not wait."""
    texts = page.locator(css).all_inner_texts()
    return texts[0].strip() if texts else None


def wait_for_text(page: Page, css: str, expected, timeout=BOUND):
    """Wait until the text is `expected`, or `expected(text)` is true, and return it."""
    deadline = time.monotonic() + timeout
    while True:
        text = text_of(page, css)
        if text is not None and (expected(text) if callable(expected) else text == expected):
            return text
        assert time.monotonic() < deadline, (
            f"{css}: {text!r} after {timeout} s, not {expected!r}; {page.problems}"
        )
        page.wait_for_timeout(50)  # unlike time.sleep, lets the browser's events in
