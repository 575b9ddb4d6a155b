"""Looks at the pages of `penstock doctor --html` and `penstock feed --report` in a browser without a window:
check_pages.py PENSTOCK MAKE_TRACE RECORDED_PROGRAM LIBCUPTI.

Ends with status 77 if there is no Chromium; `tools/setup.sh pages` gets it.
"""

import base64
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
LONG_PROGRAM = "a_program_whose_name_is_longer_than_a_narrow_window_is_wide"
EVIL = "train.py(14): </script><script>window.evil = 1</script><img src=x onerror=evil()>"
EVIL_CALLER = "train.py(40): </li></script><img src=x onerror=evil()>"

# What a reader sees, as JSON in an element of its own.
LOOK = """<script>
(() => {
  const box = (element) => element.getBoundingClientRect();
  const all = (selector) => [...document.querySelectorAll(selector)];
  const seen = {};
  seen.bars = all(".bar").map((bar) => [box(bar).width, [...bar.children].reduce((sum, part) => sum + box(part).width, 0)]);
  seen.pictures = all(".lane, .rates").map((picture) => picture.children.length);
  seen.outside = all(".lane > *, .rates > *").filter((part) => box(part).left < box(part.parentElement).left - 2 ||
    box(part).right > box(part.parentElement).right + 2 || box(part).top < box(part.parentElement).top - 2).length;
  const folded = all("details.callers");
  seen.folded = folded.map((details) => details.innerText);
  for (const details of folded) details.open = true;
  seen.unfolded = folded.map((details) => details.innerText);
  seen.processes = all("h3.process").map((heading) => heading.textContent);
  seen.too_wide = document.documentElement.scrollWidth - window.innerWidth;
  seen.background = getComputedStyle(document.body).backgroundColor;
  seen.loaded = performance.getEntriesByType("resource").map((entry) => entry.name);
  seen.evil = window.evil === undefined && all("img").length === 0 ? "" : "ran";
  seen.text = document.querySelector("main").innerText;
  const result = document.createElement("pre");
  result.id = "looked";
  result.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(seen))));
  document.body.append(result);
})();
</script>"""


def look(browser, page, folder, width, dark):
    """Opens the page in a window of `width` pixels, and returns what LOOK saw."""
    head, tail = page.read_text().rsplit("</body>", 1)
    watched = folder / "watched.html"
    watched.write_text(head + LOOK + "</body>" + tail)
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'browser'}", f"--window-size={width},1500"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", watched.as_uri()]
    result = subprocess.run(command, check=True, text=True, capture_output=True, timeout=120)
    found = re.search('<pre id="looked">([^<]*)</pre>', result.stdout)
    if not found:
        raise AssertionError(f"the page could not be looked at:\n{result.stderr[-2000:]}")
    return json.loads(base64.b64decode(found[1]))


def check(seen, page, width):
    where = f"{page.name} at {width} pixels"

    def expect(holds, what):
        if not holds:
            raise AssertionError(f"{where}: {what}\n{json.dumps(seen, indent=1)}")

    expect(seen["loaded"] == [], "it loads something")
    expect(seen["evil"] == "", "a name of the trace ran as a script")
    expect(seen["too_wide"] <= 0, "it is wider than the window")
    expect(seen["outside"] == 0, "a part of a picture is outside of it")
    bars = seen["bars"][:1] if page.name == "feed.html" else seen["bars"]
    expect(bars and all(abs(whole - parts) < 1 for whole, parts in bars), "the account's parts do not fill its bar")


def main(penstock, make_trace, program, cupti):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("There is no Chromium: tools/setup.sh pages")
        return 77
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = {"HOME": name, "LC_ALL": "C"}

        def run(*command, **more):
            subprocess.run(command, check=True, cwd=folder, env=environment | more, capture_output=True)

        mistakes = folder / "mistakes.html"
        trace = folder / "mistakes.json"
        run(sys.executable, make_trace, trace, "--pageable", "--item", "--loader-us", "300", "--kernels", "40")
        names = {"train.py(14): to_gpu": EVIL, "train.py(40): train": EVIL_CALLER}
        text = trace.read_text()
        for name, evil in names.items():
            text = text.replace(name, json.dumps(evil)[1:-1])
        values = json.loads(text)
        steps = [event for event in values["traceEvents"] if event["name"] == EVIL_CALLER]
        values["traceEvents"] += [step | {"name": "train.py(50): main"} for step in steps]
        trace.write_text(json.dumps(values))
        run(penstock, "doctor", trace, "--html", mistakes)
        feed = folder / "feed.html"
        head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (20000, 100), }".ljust(117) + b"\n"
        samples = folder / (LONG_PROGRAM + ".npy")
        samples.write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(20000 * 100))
        run(penstock, "feed", samples, "--device", "host:late=1", "--gather", "host", "--shuffle", "--epochs", "3",
            "--step-ms", "0.2", "--report", feed)  # fmt: skip
        several = folder / "several.html"
        run(penstock, "doctor", "--html", several, "--", "/bin/sh", "-c", f"{program} init steps=20; {program} init pinned=40",
            PENSTOCK_LIBCUPTI=cupti)  # fmt: skip
        several.write_text(several.read_text().replace(pathlib.Path(program).name, LONG_PROGRAM))
        backgrounds = set()
        for page in (mistakes, feed, several):
            for width, dark in ((1200, False), (420, True)):
                seen = look(browser, page, folder, width, dark)
                check(seen, page, width)
                backgrounds.add(seen["background"])
                if page == mistakes:
                    assert "pageable-copies" in seen["text"] and EVIL in seen["text"], seen
                    assert f"called from {EVIL_CALLER}" in seen["text"], seen
                    assert seen["unfolded"], seen
                    for folded, unfolded in zip(seen["folded"], seen["unfolded"], strict=True):
                        assert folded.count("called from") == 1 and unfolded.count("called from") > 1, seen
                elif page == several:
                    first, second, *again = seen["processes"]
                    assert first != second and again == [first, second], seen
                    assert seen["text"].count(LONG_PROGRAM) >= 2, seen
                    assert len(seen["bars"]) == 2, seen
                else:
                    *lanes, rates = seen["pictures"]
                    assert len(lanes) >= 3 and max(lanes) == 16 and 2 <= rates <= 102, seen
        assert len(backgrounds) == 2, f"light and dark look the same: {backgrounds}"
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
