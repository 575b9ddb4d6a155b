(() => {
  const SECOND = 1e9; // in the data, times are nanoseconds
  const LEFT = 136;   // the lanes begin here, to the right of their names
  const LINE = 16;
  const MOST_LINES = 4;

  function formatBytes(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    const unit = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, bytes)) / 10)));
    return d3.format(".3~r")(bytes / 2 ** (10 * unit)) + " " + units[unit];
  }

  const lanes = data.lanes.map((lane) => ({ ...lane, bars: lane.bars.map(([begin, end, kind, count, bytes, busy, place]) => (
    { begin, end, name: data.kinds[kind][0], kind: data.kinds[kind][1], count, bytes, busy, place: data.places[place], tiles: lane.tiles })) }));

  function describe(bar) {
    const lines = [`${bar.name}: ${formatSeconds((bar.end - bar.begin) / SECOND)}`];
    if (bar.count > 1) {
      lines[0] = `${formatCount(bar.count)} records, most of all ${bar.name}: ${formatSeconds(bar.busy / SECOND)} within ` +
        formatSeconds((bar.end - bar.begin) / SECOND);
    }
    if (bar.bytes > 0) lines.push(`${formatBytes(bar.bytes)} at ${d3.format(".3~r")(bar.bytes / Math.max(1, bar.busy))} GB/s`);
    if (bar.place !== "") lines.push(`at ${bar.place}`);
    return lines.join("\n");
  }

  // What of the timeline is seen: kept when the window's width changes.
  let seen = [0, data.window];

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
    const whole = d3.scaleLinear([0, data.window], [LEFT, right]);
    svg.attr("tabindex", 0).attr("aria-label", "timeline; plus and minus zoom, arrow keys move");
    svg.append("clipPath").attr("id", "seen").append("rect").attr("x", LEFT).attr("width", right - LEFT).attr("height", height);
    svg.selectAll(".group").data(groups).enter().append("text").attr("class", "group").attr("y", (group) => group.top + 15)
      .text((group) => group.name);
    const row = svg.selectAll(".lane").data(lanes).enter().append("g").attr("transform", (lane) => `translate(0,${lane.top})`);
    row.append("text").attr("class", "lane-name").attr("x", 8).attr("y", 12).text((lane) => lane.name);
    row.append("rect").attr("class", "back").attr("x", LEFT).attr("width", right - LEFT).attr("height", (lane) => lane.lines * LINE);
    const inside = row.append("g").attr("clip-path", "url(#seen)");
    const marks = inside.selectAll(".mark").data((lane) => lane.bars).enter().append("rect").attr("class", (bar) => "mark " + bar.kind)
      .attr("y", (bar) => Math.min(bar.line, MOST_LINES - 1) * LINE + 1).attr("height", LINE - 2);
    // Of joined records, the colour says how much of the time they take.
    marks.filter((bar) => bar.count > 1 && !bar.tiles)
      .attr("fill-opacity", (bar) => Math.min(1, Math.max(0.3, bar.busy / Math.max(1, bar.end - bar.begin))));
    explain(marks, describe);
    const lines = svg.append("g").attr("clip-path", "url(#seen)");
    const axis = svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - 24})`);

    function render(x) {
      seen = x.domain();
      // Bars that leave no gaps are as wide as they are long, so that many in a pixel mix their colours.
      const widthOf = (bar) => {
        const width = x(bar.end) - x(bar.begin);
        return bar.tiles ? width : Math.max(0.8, width > 4 ? width - 0.5 : width);
      };
      const isSeen = (bar) => bar.end >= seen[0] && bar.begin <= seen[1];
      marks.attr("display", (bar) => isSeen(bar) ? null : "none").filter(isSeen)
        .attr("x", (bar) => x(bar.begin)).attr("width", widthOf);
      inside.selectAll("text").remove();
      // About 6 pixels a letter; the name stands in the part that is seen.
      const fits = (bar) => {
        const from = Math.max(LEFT, x(bar.begin));
        bar.label = bar.count > 1 ? `${bar.count} records` : bar.name;
        bar.middle = (from + Math.min(right, x(bar.end))) / 2;
        return bar.kind !== "evidence" && isSeen(bar) && bar.line < MOST_LINES && Math.min(right, x(bar.end)) - from > 6 * bar.label.length + 8;
      };
      inside.selectAll("text").data((lane) => lane.bars.filter(fits)).enter().append("text").attr("class", "inside")
        .attr("text-anchor", "middle").attr("x", (bar) => bar.middle).attr("y", (bar) => bar.line * LINE + 12).text((bar) => bar.label);
      lines.selectAll("*").remove();
      const step = lines.selectAll("g").data(data.steps).enter().append("g").attr("transform", (d) => `translate(${x(d[0])},0)`);
      step.append("line").attr("class", "step").attr("y1", 4).attr("y2", height - 24);
      step.filter((d) => x(d[1]) - x(d[0]) > 60).append("text").attr("class", "step-name").attr("x", 4).attr("y", 13).text((d) => `step ${d[2]}`);
      const seconds = d3.scaleLinear(seen.map((time) => time / SECOND), x.range());
      axis.call(d3.axisBottom(seconds).ticks(ticksFor(right - LEFT)).tickFormat(tickFormat(seconds)));
      document.getElementById("timeline-span").textContent =
        `${formatSeconds((seen[1] - seen[0]) / SECOND)} of ${formatSeconds(data.window / SECOND)}`;
    }

    const zoom = d3.zoom().scaleExtent([1, Math.max(1, data.window / 500)]).extent([[LEFT, 0], [right, height]])
      .translateExtent([[LEFT, 0], [right, height]])
      .filter(() => d3.event.type === "wheel" ? d3.event.ctrlKey || d3.event.metaKey : !d3.event.button)
      .on("zoom", () => { tip.hidden = true; render(d3.event.transform.rescaleX(whole)); });
    svg.call(zoom).on("dblclick.zoom", null);
    const factor = data.window / (seen[1] - seen[0]);
    svg.call(zoom.transform, d3.zoomIdentity.translate(LEFT, 0).scale(factor).translate(-whole(seen[0]), 0));
    const moves = {
      in: () => zoom.scaleBy(svg, 2), out: () => zoom.scaleBy(svg, 0.5),
      left: () => zoom.translateBy(svg, (right - LEFT) / 4 / d3.zoomTransform(svg.node()).k, 0),
      right: () => zoom.translateBy(svg, -(right - LEFT) / 4 / d3.zoomTransform(svg.node()).k, 0),
      all: () => zoom.transform(svg, d3.zoomIdentity),
    };
    const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", Home: "all", 0: "all" };
    svg.on("keydown", () => {
      const move = keys[d3.event.key];
      if (move === undefined || d3.event.ctrlKey || d3.event.metaKey || d3.event.altKey) return;
      d3.event.preventDefault();
      moves[move]();
    });
    d3.selectAll("[data-zoom]").on("click", function () { moves[this.dataset.zoom](); });
    legend("timeline-legend", "timeline", data.legend);
  }

  // Round rates for the ticks of a logarithmic axis: as many as leave room for their labels.
  function rateTicks(scale) {
    const ROOM = 24;
    const [low, high] = scale.domain();
    const powers = d3.range(Math.floor(Math.log10(low)), Math.log10(high));
    const ticksOf = (digits) => powers.flatMap((power) => digits.map((digit) => digit * 10 ** power))
      .filter((rate) => rate >= low && rate <= high);
    const haveRoom = (ticks) => d3.pairs(ticks, (a, b) => Math.abs(scale(a) - scale(b))).every((gap) => gap >= ROOM);
    return [d3.range(1, 10), [1, 2, 3, 5], [1, 2, 5], [1, 3]].map(ticksOf).find(haveRoom) || ticksOf([1]);
  }

  function drawLink() {
    const { curves, copies, ceiling } = data.link;
    if (copies.length === 0) return hide("link-section");
    const { svg, width, height } = canvas("link", 300);
    const points = curves.flatMap((curve) => curve.points);
    const rates = [...points.map((point) => point[1]), ...copies.map((copy) => copy.rate), ...(ceiling > 0 ? [ceiling] : [])];
    const sizes = [...points.map((point) => point[0]), ...copies.map((copy) => copy.bytes)];
    const x = d3.scaleLog().base(2).domain([d3.min(sizes) / 2, d3.max(sizes) * 2]).range([56, width - 8]);
    const y = d3.scaleLog().domain([d3.min(rates) / 2, d3.max(rates) * 2]).range([height - 30, 22]);
    const octaves = d3.range(Math.ceil(Math.log2(x.domain()[0])), Math.log2(x.domain()[1]));
    const every = Math.max(1, Math.ceil(octaves.length / ticksFor(width)));
    svg.append("g").attr("class", "axis grid").attr("transform", "translate(56,0)")
      .call(d3.axisLeft(y).tickValues(rateTicks(y)).tickSize(-(width - 64))
        .tickFormat((rate) => d3.format(".2~r")(rate / 1e9)));
    svg.append("text").attr("x", 0).attr("y", 11).text("GB/s");
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - 30})`)
      .call(d3.axisBottom(x).tickValues(octaves.filter((_, i) => i % every === 0).map((octave) => 2 ** octave)).tickFormat(formatBytes));
    if (ceiling > 0 && curves.length === 0) {
      svg.append("line").attr("class", "ceiling").attr("x1", 56).attr("x2", width - 8).attr("y1", y(ceiling)).attr("y2", y(ceiling));
    }
    svg.selectAll(".curve").data(curves).enter().append("path").attr("class", (curve) => "curve " + curve.kind)
      .attr("d", (curve) => d3.line().x((point) => x(point[0])).y((point) => y(point[1]))(curve.points));
    const radius = d3.scaleSqrt([0, d3.max(copies, (copy) => copy.seconds)], [3, 16]);
    const marks = svg.selectAll(".mark").data([...copies].sort((a, b) => b.seconds - a.seconds)).enter().append("circle")
      .attr("class", (copy) => "mark " + copy.kind).attr("cx", (copy) => x(copy.bytes)).attr("cy", (copy) => y(copy.rate))
      .attr("r", (copy) => radius(copy.seconds));
    explain(marks, (copy) => `${formatCount(copy.count)} times ${copy.name}\n${formatBytes(copy.bytes)} at ` +
      `${d3.format(".3~r")(copy.rate / 1e9)} GB/s\n${formatSeconds(copy.seconds)} in all`);
    const entries = new Map([...copies, ...curves].map((entry) => [entry.kind, entry.name]));
    const items = [...entries].map(([kind, name]) => [kind, name]);
    if (ceiling > 0 && curves.length === 0) items.push(["dash", "the best of these copies from pinned memory"]);
    d3.select("#link-legend").html("").selectAll("span").data(items).enter().append("span")
      .html((item) => `<i class="${item[0]}"></i>`).append("span").text((item) => item[1]);
  }

  drawAtEachWidth(() => {
    drawTimeline();
    drawLink();
  });
})();
