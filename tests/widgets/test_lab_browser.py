"""The harness of the browser tests, on a notebook with a slider, a label and a button."""

import sys

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

pytest.importorskip("playwright")

import lab_browser as lab

pytestmark = pytest.mark.browser

WIDGETS = """
import ipywidgets as w
slider, label, button = w.IntSlider(3, 0, 10), w.HTML("at 3"), w.Button(description="pressed 0")
for name, widget in dict(slider=slider, label=label, button=button).items():
    widget.add_class(f"probe-{name}")
slider.observe(lambda change: setattr(label, "value", f"at {change.new}"), "value")
pressed = []
def press(_):
    pressed.append(1)
    button.description = f"pressed {len(pressed)}"
button.on_click(press)
w.VBox([slider, label, button])
"""
WHERE = "import os, sys; print(sys.executable, os.environ['RSLIB_STORE'], os.environ['OMP_NUM_THREADS'])"
STDERR = "import sys; print('a word', file=sys.stderr)"
CALLBACK = """
import ipywidgets as w
button = w.Button(description="break")
button.on_click(lambda _: 1 / 0)
button
"""
SECOND = "runs = globals().get('runs', 0) + 1; 1 / (2 - runs)"  # fails when run again
# A worker that the kernel forgets, in a process group of its own.
WORKER = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True);"

LABEL, BUTTON = ".probe-label .widget-html-content", ".probe-button"


def write(file, *cells):
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    node = new_notebook(metadata={"kernelspec": kernel})
    node.cells = [new_markdown_cell("# A test"), *map(new_code_cell, cells)]
    nbformat.write(node, file)


def family(server):
    parent = psutil.Process(server.pid)
    return [parent, *parent.children(recursive=True)]


def test_widgets_answer_keyboard_and_mouse(tmp_path):
    """Broken: what a reader does reaches no kernel, or the harness does not see the answer."""
    empty = [""] * 30  # the last output lies far below the window
    write(tmp_path / "widgets.ipynb", WIDGETS, *empty, WHERE)
    with lab.serve_lab(tmp_path) as server, lab.chromium() as browser:
        page = lab.open_notebook(browser, server, "widgets.ipynb")
        lab.run_all(page)
        lab.wait_for_text(page, LABEL, "at 3")
        where = lab.text_of(page, ".jp-OutputArea-output[data-mime-type*=stdout]")
        assert where.split() == [sys.executable, str(tmp_path / "store"), "1"]

        handle = page.locator(".probe-slider .noUi-handle")
        handle.focus()
        page.keyboard.press("ArrowRight")
        lab.wait_for_text(page, LABEL, "at 4")
        track = page.locator(".probe-slider .noUi-target").bounding_box()
        middle = track["y"] + track["height"] / 2
        page.mouse.click(track["x"] + track["width"] - 1, middle)  # the track's right end
        lab.wait_for_text(page, LABEL, "at 10")
        handle.hover()
        page.mouse.down()
        page.mouse.move(track["x"] - 20, middle, steps=5)  # past its left end
        page.mouse.up()
        lab.wait_for_text(page, LABEL, lambda text: int(text.split()[1]) == 0)
        assert lab.text_of(page, ".probe-slider .widget-readout") == "0"

        button = page.locator(BUTTON)
        button.focus()
        for count, key in enumerate(["Enter", "Space"], 1):
            page.keyboard.press(key)
            lab.wait_for_text(page, BUTTON, f"pressed {count}")
        button.click()
        lab.wait_for_text(page, BUTTON, "pressed 3")

        lab.restart_and_run_all(page)
        lab.wait_for_text(page, LABEL, "at 3")
        lab.wait_for_text(page, BUTTON, "pressed 0")
        assert page.problems == []
        running = family(server)
        assert len(running) > 1 and all(map(lab.alive, running))  # the server and a kernel
    assert not any(map(lab.alive, running))


def test_errors_are_not_missed(tmp_path):
    """Broken: a notebook that fails passes, or a process outlives the test that it failed."""
    write(tmp_path / "errors.ipynb", WORKER, STDERR, CALLBACK, SECOND)
    with lab.serve_lab(tmp_path) as server, lab.chromium() as browser:
        page = lab.open_notebook(browser, server, "errors.ipynb")
        with pytest.raises(AssertionError, match="a word"):
            lab.run_all(page)
        with pytest.raises(AssertionError, match="ZeroDivisionError: division") as raised:
            lab.run_all(page, stderr_ok=True)
        assert "a word" not in str(raised.value) and "\x1b" not in str(raised.value)
        with pytest.raises(AssertionError, match="None after 0 s"):
            lab.wait_for_text(page, ".no-such-thing", "", timeout=0)

        page.problems.clear()
        page.locator(".jupyter-button").click()
        lab.wait_for_text(page, "body", lambda _: page.problems)
        assert page.problems[0].startswith("kernel: ")
        assert "ZeroDivisionError: division by zero" in page.problems[0]
        assert "\x1b" not in page.problems[0]
        page.problems.clear()
        page.evaluate("setTimeout(() => { throw new Error('uncaught'); })")
        lab.wait_for_text(page, "body", lambda _: page.problems)
        assert "uncaught" in page.problems[0]
        running = family(server)
        assert "sleep" in [each.name() for each in running]
    assert not any(map(lab.alive, running))


def test_a_server_that_does_not_start_says_why(tmp_path):
    """Broken: a test waits for a server that did not start, or fails without its log."""
    with pytest.raises(RuntimeError, match=r"(?s)ended with 1\n.*no-such-folder"):
        with lab.serve_lab(tmp_path / "no-such-folder"):
            pass
