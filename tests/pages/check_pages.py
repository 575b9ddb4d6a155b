"""Looks at the pages of `penstock doctor --html` in a browser without a window:
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

WATCH = """<script>
window.problems = [];
window.addEventListener("error", (event) => problems.push(event.message));
</script>"""

# What a reader sees, as JSON in an element of its own.
LOOK = """<script>
(() => {
  const box = (element) => element.getBoundingClientRect();
  const all = (selector) => [...document.querySelectorAll(selector)];
  const shown = (selector) => all(selector).filter((element) => box(element).width > 0);
  const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
  const overlaps = () => all("svg").flatMap((svg) => {
    const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent !== "");
    return texts.flatMap((a, i) => texts.slice(i + 1).filter((b) => overlap(box(a), box(b)))
      .map((b) => `${a.textContent} / ${b.textContent}`));
  });
  const span = () => document.getElementById("timeline-span").textContent;
  const inside = () => {
    const plot = box(document.querySelector("#timeline .back"));
    return all("#timeline .mark").filter((mark) => mark.getAttribute("display") !== "none" &&
      box(mark).right >= plot.left && box(mark).left <= plot.right).length;
  };
  const click = (what) => document.querySelector(`[data-zoom=${what}]`).click();
  const press = (key) => document.querySelector("#timeline svg")
    .dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const ticks = () => all("#timeline .axis text").map((text) => `${text.textContent} ${Math.round(box(text).left)}`).join();
  const seen = { all: [span(), inside(), ticks()] };
  seen.overlaps = overlaps();
  for (let i = 0; i < 3; ++i) click("in");
  seen.closer = [span(), inside(), ticks()];
  seen.overlaps.push(...overlaps());
  press("ArrowRight");
  seen.moved = [span(), inside(), ticks()];
  press("-");
  seen.wider = [span(), inside(), ticks()];
  press("Home");
  seen.again = [span(), inside(), ticks()];
  document.querySelector("#timeline .mark").dispatchEvent(new MouseEvent("click", { bubbles: true }));
  seen.tip = document.getElementById("tip").textContent;
  seen.lanes = all("#timeline .lane-name").map((text) => text.textContent);
  seen.legend = all("#timeline-legend > span").map((text) => text.textContent);
  seen.copies = shown("#link circle").length;
  seen.rates = all("#link .grid text").map((text) => text.textContent);
  seen.curves = shown("#link .curve").length;
  seen.bars = all(".bar").map((bar) => [box(bar).width, [...bar.children].reduce((sum, part) => sum + box(part).width, 0)]);
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
  seen.problems = window.problems;
  const result = document.createElement("pre");
  result.id = "looked";
  result.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(seen))));
  document.body.append(result);
})();
</script>"""


# The slowest and the fastest copy of a picture of the link, in bytes a second.
RATES = ((10e9, 10e9), (9e9, 19e9), (5e9, 10e9), (6e9, 30e9), (1e9, 11e9), (3e9, 60e9), (0.8e9, 90e9), (0.1e9, 40e9),
         (30e6, 50e9), (2e6, 25e9), (0.1e6, 100e9))  # fmt: skip


def with_rates(text, slowest, fastest):
    """The text of a page whose link has a copy of each rate."""
    head, rest = text.split('id="data">', 1)
    data, tail = rest.split("</script>", 1)
    values = json.loads(data)
    kinds = {"kind": "pinned", "name": "copies from pinned memory", "count": 1, "seconds": 1}
    copies = [kinds | {"bytes": 1 << 20, "rate": slowest}, kinds | {"bytes": 1 << 24, "rate": fastest}]
    values["link"] = {"curves": [], "ceiling": 0, "copies": copies}
    return head + 'id="data">' + json.dumps(values).replace("<", "\\u003c") + "</script>" + tail


def look(browser, page, folder, width, dark):
    """Opens the page in a window of `width` pixels, and returns what LOOK saw."""
    text = page.read_text().replace("<head>", "<head>" + WATCH, 1)
    head, tail = text.rsplit("</body>", 1)
    watched = folder / "watched.html"
    watched.write_text(head + LOOK + "</body>" + tail)
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'browser'}", f"--window-size={width},1500"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", watched.as_uri()]
    result = subprocess.run(command, check=True, text=True, capture_output=True, timeout=120)
    found = re.search('<pre id="looked">([^<]*)</pre>', result.stdout)
    if not found:
        raise AssertionError(f"the page's scripts failed:\n{result.stderr[-2000:]}")
    return json.loads(base64.b64decode(found[1]))


def check(seen, page, width):
    where = f"{page.name} at {width} pixels"

    def expect(holds, what):
        if not holds:
            raise AssertionError(f"{where}: {what}\n{json.dumps(seen, indent=1)}")

    def milliseconds(view):
        number, unit = view[0].split(" of ")[0].split()
        return float(number) * {"s": 1e3, "ms": 1, "µs": 1e-3}[unit]

    expect(seen["problems"] == [], "a script failed")
    expect(seen["loaded"] == [], "it loads something")
    expect(seen["evil"] == "", "a name of the trace ran as a script")
    expect(seen["too_wide"] <= 0, "it is wider than the window")
    expect(seen["overlaps"] == [], "labels overlap")
    expect(len(set(seen["rates"])) == len(seen["rates"]), "two ticks of the link have one label")
    expect(all(abs(whole - parts) < 1 for whole, parts in seen["bars"]), "the account's parts do not fill its bar")
    expect(abs(milliseconds(seen["all"]) / milliseconds(seen["closer"]) - 8) < 0.2, "three clicks do not zoom 8 times")
    expect(0 < seen["closer"][1] < seen["all"][1], "zooming in shows as many bars")
    expect(seen["moved"][0] == seen["closer"][0], "moving zooms")
    expect(seen["moved"][2] != seen["closer"][2], "the arrow key does not move")
    expect(abs(milliseconds(seen["wider"]) / milliseconds(seen["moved"]) - 2) < 0.1, "the minus key does not zoom out")
    expect(seen["again"] == seen["all"], "the key Home does not show all")
    expect(seen["tip"] != "", "a tap on a bar shows nothing")
    expect(len(set(seen["legend"])) == len(seen["legend"]) > 3, "the legend is wrong")


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

        link = folder / "link.json"
        run(penstock, "link", "--device", "host", "--quick", "--max-bytes", "1MiB", "--repetitions", "2", "--profile", link)
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
        run(penstock, "doctor", trace, "--html", mistakes, "--profile", link)
        dense = folder / "dense.html"
        trace = folder / "dense.json"
        run(sys.executable, make_trace, trace, "--steps", "8", "--tensors", "40", "--bytes", "20000",
            "--kernels", "4000", "--kernel-us", "6", "--blocking")  # fmt: skip
        run(penstock, "doctor", trace, "--html", dense)
        several = folder / "several.html"
        run(penstock, "doctor", "--html", several, "--", "/bin/sh", "-c", f"{program} init steps=20; {program} init pinned=40",
            PENSTOCK_LIBCUPTI=cupti)  # fmt: skip
        several.write_text(several.read_text().replace(pathlib.Path(program).name, LONG_PROGRAM))
        backgrounds = set()
        for page in (mistakes, dense, several):
            for width, dark in ((1200, False), (420, True)):
                seen = look(browser, page, folder, width, dark)
                check(seen, page, width)
                backgrounds.add(seen["background"])
                if page == mistakes:
                    assert seen["copies"] == 2 and seen["curves"] == 3, seen
                    assert "pageable-copies" in seen["lanes"] and EVIL in seen["text"], seen
                    assert f"called from {EVIL_CALLER}" in seen["text"], seen
                    assert seen["unfolded"], seen
                    for folded, unfolded in zip(seen["folded"], seen["unfolded"], strict=True):
                        assert folded.count("called from") == 1 and unfolded.count("called from") > 1, seen
                elif page == several:
                    first, second, *again = seen["processes"]
                    assert first != second and again == [first, second], seen
                    assert seen["text"].count(LONG_PROGRAM) >= 2, seen
                    assert len(seen["bars"]) == 2 and f"are those of {first}." in seen["text"], seen
                else:
                    assert seen["all"][1] < 9000, "the picture's size is not bounded"
                    assert "small-copies" in seen["lanes"], seen
        ranges = folder / "ranges.html"
        for slowest, fastest in RATES:
            ranges.write_text(with_rates(mistakes.read_text(), slowest, fastest))
            seen = look(browser, ranges, folder, 1200, dark=False)
            check(seen, ranges, 1200)
            assert seen["copies"] == 2 and 2 <= len(seen["rates"]) < 12, (slowest, fastest, seen["rates"])
        assert len(backgrounds) == 2, f"light and dark look the same: {backgrounds}"
        assert dense.stat().st_size < 1 << 21, "the page's size is not bounded"
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
