(() => {
  const SECOND = 1e9; // in the data, times are nanoseconds
  const LEFT = 136;   // the lanes begin here, to the right of their names
  const LINE = 16;
  const MOST_LINES = 4;
  const SHORTEST = 500; // that is seen, in nanoseconds

  function formatBytes(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    const unit = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, bytes)) / 10)));
    return round(bytes / 2 ** (10 * unit)) + " " + units[unit];
  }

  const lanes = data.lanes.map((lane) => ({ ...lane, bars: lane.bars.map(([begin, end, kind, count, bytes, busy, place]) => (
    { begin, end, name: data.kinds[kind][0], kind: data.kinds[kind][1], count, bytes, busy, place: data.places[place], tiles: lane.tiles })) }));

  function describe(bar) {
    const lines = [`${bar.name}: ${formatSeconds((bar.end - bar.begin) / SECOND)}`];
    if (bar.count > 1) {
      lines[0] = `${formatCount(bar.count)} records, most of all ${bar.name}: ${formatSeconds(bar.busy / SECOND)} within ` +
        formatSeconds((bar.end - bar.begin) / SECOND);
    }
    if (bar.bytes > 0) lines.push(`${formatBytes(bar.bytes)} at ${round(bar.bytes / Math.max(1, bar.busy))} GB/s`);
    if (bar.place !== "") lines.push(`at ${bar.place}`);
    return lines.join("\n");
  }

  // What of the timeline is seen: kept when the window's width changes.
  let seen = [0, data.window];
  let render = () => {};

  function show(begin, length) {
    const from = Math.min(Math.max(0, begin), data.window - length);
    seen = [from, from + length];
    tip.hidden = true;
    render();
  }
  // `at`: the part of what is seen that stays where it is, from 0 to 1.
  function zoom(factor, at = 0.5) {
    const before = seen[1] - seen[0];
    const length = Math.min(data.window, Math.max(Math.min(SHORTEST, data.window), before / factor));
    show(seen[0] + (before - length) * at, length);
  }
  const move = (part) => show(seen[0] + (seen[1] - seen[0]) * part, seen[1] - seen[0]);
  const moves = { in: () => zoom(2), out: () => zoom(0.5), left: () => move(-0.25), right: () => move(0.25),
    all: () => show(0, data.window) };

  function drawTimeline() {
    if (lanes.length === 0) return hide("timeline-section");
    let top = 22;
    const groups = [];
    for (const lane of lanes) {
      if (groups.length === 0 || groups[groups.length - 1].name !== lane.group) {
        groups.push({ name: lane.group, top });
        top += 22;
      }
      lane.top = top;
      lane.lines = Math.min(MOST_LINES, stack(lane.bars));
      top += lane.lines * LINE + 6;
    }
    const { svg, width, height } = canvas("timeline", top + 26);
    const right = width - 6;
    svg.setAttribute("tabindex", 0);
    svg.setAttribute("aria-label", "timeline; plus and minus zoom, arrow keys move");
    draw(draw(svg, "clipPath", { id: "seen" }), "rect", { x: LEFT, width: right - LEFT, height });
    for (const group of groups) draw(svg, "text", { class: "group", y: group.top + 15 }, group.name);
    for (const lane of lanes) {
      const row = draw(svg, "g", { transform: `translate(0,${lane.top})` });
      draw(row, "text", { class: "lane-name", x: 8, y: 12 }, lane.name);
      draw(row, "rect", { class: "back", x: LEFT, width: right - LEFT, height: lane.lines * LINE });
      const inside = draw(row, "g", { "clip-path": "url(#seen)" });
      for (const bar of lane.bars) {
        bar.mark = draw(inside, "rect", { class: "mark " + bar.kind, y: Math.min(bar.line, MOST_LINES - 1) * LINE + 1, height: LINE - 2 });
        // Of joined records, the colour says how much of the time they take.
        const share = bar.busy / Math.max(1, bar.end - bar.begin);
        if (bar.count > 1 && !bar.tiles) bar.mark.setAttribute("fill-opacity", Math.min(1, Math.max(0.3, share)));
        explain(bar.mark, () => describe(bar));
      }
      lane.labels = draw(inside, "g");
    }
    const steps = draw(svg, "g", { "clip-path": "url(#seen)" });
    const below = draw(svg, "g");

    function place(bar, x, labels) {
      const isSeen = bar.end >= seen[0] && bar.begin <= seen[1];
      bar.mark.setAttribute("display", isSeen ? "inline" : "none");
      if (!isSeen) return;
      const begin = x(bar.begin);
      const end = x(bar.end);
      // Bars that leave no gaps are as wide as they are long, so that many in a pixel mix their colours.
      const width = bar.tiles ? end - begin : Math.max(0.8, end - begin > 4 ? end - begin - 0.5 : end - begin);
      bar.mark.setAttribute("x", begin);
      bar.mark.setAttribute("width", width);
      if (bar.kind === "evidence" || bar.line >= MOST_LINES) return;
      // About 6 pixels a letter; the name stands in the part that is seen.
      const label = bar.count > 1 ? `${bar.count} records` : bar.name;
      const from = Math.max(LEFT, begin);
      const to = Math.min(right, end);
      if (to - from <= 6 * label.length + 8) return;
      draw(labels, "text", { class: "inside", "text-anchor": "middle", x: (from + to) / 2, y: bar.line * LINE + 12 }, label);
    }

    render = () => {
      const x = linear(seen, [LEFT, right]);
      for (const lane of lanes) {
        lane.labels.replaceChildren();
        for (const bar of lane.bars) place(bar, x, lane.labels);
      }
      steps.replaceChildren();
      for (const [begin, end, number] of data.steps) {
        draw(steps, "line", { class: "step", x1: x(begin), x2: x(begin), y1: 4, y2: height - 24 });
        if (x(end) - x(begin) > 60) draw(steps, "text", { class: "step-name", x: x(begin) + 4, y: 13 }, `step ${number}`);
      }
      const seconds = linear(seen.map((time) => time / SECOND), x.range);
      below.replaceChildren();
      axisBelow(below, height - 24, seconds, ticksOf(seconds, ticksFor(right - LEFT)), timeFormat(seconds));
      document.getElementById("timeline-span").textContent =
        `${formatSeconds((seen[1] - seen[0]) / SECOND)} of ${formatSeconds(data.window / SECOND)}`;
    };
    render();
    const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", Home: "all", 0: "all" };
    svg.addEventListener("keydown", (event) => {
      const name = keys[event.key];
      if (name === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      moves[name]();
    });
    // Where the pointer is on the timeline, from 0 to 1.
    const partOf = (event) => {
      const box = svg.getBoundingClientRect();
      return ((event.clientX - box.left) * width / box.width - LEFT) / (right - LEFT);
    };
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(2 ** (-event.deltaY * (event.deltaMode === 1 ? 0.05 : 0.002)), partOf(event));
    });
    svg.addEventListener("pointerdown", (event) => { if (!event.button) pointers.set(event.pointerId, partOf(event)); });
    drag = (event) => {
      const before = [...pointers.values()];
      pointers.set(event.pointerId, partOf(event));
      const after = [...pointers.values()];
      if (after.length === 1) return move(before[0] - after[0]);
      // Two fingers zoom. What is below the one that rests stays there.
      const rests = after[0] === before[0] ? 0 : 1;
      const [was, is] = [before, after].map((parts) => parts[1 - rests] - parts[rests]);
      if (was * is > 0) zoom(is / was, after[rests]);
    };
    legend("timeline-legend", drawn("timeline", data.legend));
  }

  // Of each pointer that is down, where it is on the timeline.
  const pointers = new Map();
  let drag = () => {};
  window.addEventListener("pointermove", (event) => { if (pointers.has(event.pointerId)) drag(event); });
  for (const kind of ["pointerup", "pointercancel"]) {
    window.addEventListener(kind, (event) => pointers.delete(event.pointerId));
  }
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => moves[button.dataset.zoom]());
  }

  // Round rates for the ticks of a logarithmic axis: as many as leave room for their labels.
  function rateTicks(scale) {
    const ROOM = 24;
    const [low, high] = scale.domain;
    const lowest = Math.floor(Math.log10(low));
    const powers = Array.from({ length: Math.ceil(Math.log10(high)) - lowest }, (_, i) => lowest + i);
    const ticksWith = (digits) => powers.flatMap((power) => digits.map((digit) => digit * 10 ** power))
      .filter((rate) => rate >= low && rate <= high);
    const haveRoom = (ticks) => ticks.every((tick, i) => i === 0 || Math.abs(scale(tick) - scale(ticks[i - 1])) >= ROOM);
    return [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 5], [1, 2, 5], [1, 3]].map(ticksWith).find(haveRoom) || ticksWith([1]);
  }

  function drawLink() {
    const { curves, copies, ceiling } = data.link;
    if (copies.length === 0) return hide("link-section");
    const { svg, width, height } = canvas("link", 300);
    const points = curves.flatMap((curve) => curve.points);
    const rates = [...points.map((point) => point[1]), ...copies.map((copy) => copy.rate), ...(ceiling > 0 ? [ceiling] : [])];
    const sizes = [...points.map((point) => point[0]), ...copies.map((copy) => copy.bytes)];
    const x = logarithmic([Math.min(...sizes) / 2, Math.max(...sizes) * 2], [56, width - 8]);
    const y = logarithmic([Math.min(...rates) / 2, Math.max(...rates) * 2], [height - 30, 22]);
    gridLines(svg, 56, width - 8, y, rateTicks(y), (rate) => round(rate / 1e9, 2));
    draw(svg, "text", { y: 11 }, "GB/s");
    const [first, last] = x.domain.map(Math.log2);
    const every = Math.max(1, Math.ceil((last - first) / ticksFor(width)));
    const octaves = [];
    for (let octave = Math.ceil(first); octave <= last; octave += every) octaves.push(2 ** octave);
    axisBelow(svg, height - 30, x, octaves, formatBytes);
    const isBest = ceiling > 0 && curves.length === 0;
    if (isBest) draw(svg, "line", { class: "ceiling", x1: 56, x2: width - 8, y1: y(ceiling), y2: y(ceiling) });
    for (const curve of curves) {
      draw(svg, "path", { class: "curve " + curve.kind, d: "M" + curve.points.map(([bytes, rate]) => `${x(bytes)},${y(rate)}`).join("L") });
    }
    const longest = Math.max(...copies.map((copy) => copy.seconds));
    for (const copy of [...copies].sort((a, b) => b.seconds - a.seconds)) {
      const mark = draw(svg, "circle", { class: "mark " + copy.kind, cx: x(copy.bytes), cy: y(copy.rate),
        r: 3 + 13 * Math.sqrt(copy.seconds / (longest || 1)) });
      explain(mark, () => `${formatCount(copy.count)} times ${copy.name}\n${formatBytes(copy.bytes)} at ` +
        `${round(copy.rate / 1e9)} GB/s\n${formatSeconds(copy.seconds)} in all`);
    }
    const names = new Map([...copies, ...curves].map((entry) => [entry.kind, entry.name]));
    legend("link-legend", [...names, ...(isBest ? [["dash", "the best of these copies from pinned memory"]] : [])]);
  }

  drawAtEachWidth(() => {
    drawTimeline();
    drawLink();
  });
})();
