"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const hide = (id) => { document.getElementById(id).hidden = true; };

  function formatSeconds(seconds) {
    if (Math.abs(seconds) >= 1) return d3.format(".3~r")(seconds) + " s";
    if (Math.abs(seconds) >= 1e-3) return d3.format(".3~r")(seconds * 1e3) + " ms";
    return d3.format(".3~r")(seconds * 1e6) + " \u00b5s";
  }
  const formatCount = d3.format(",");
  const formatPercent = d3.format(".0%");

  function formatRate(rate) {
    if (rate >= 1e9) return d3.format(".3~r")(rate / 1e9) + " G";
    if (rate >= 1e6) return d3.format(".3~r")(rate / 1e6) + " M";
    if (rate >= 1e4) return d3.format(".3~r")(rate / 1e3) + " k";
    return d3.format(".3~r")(rate);
  }

  // Ticks of an axis share the unit that the widest of them wants.
  function tickFormat(scale) {
    const [low, high] = scale.domain();
    const span = Math.max(Math.abs(low), Math.abs(high));
    const step = Math.abs(high - low) / 6;
    const [unit, factor] = span >= 1 && step >= 1e-3 ? ["s", 1] : span >= 1e-3 ? ["ms", 1e3] : ["\u00b5s", 1e6];
    return (value) => d3.format(".6~g")(value * factor) + " " + unit;
  }

  const tip = document.getElementById("tip");
  function showTip(text) {
    const event = d3.event;
    tip.textContent = text;
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18;
    const top = below + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : below;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = top + "px";
  }
  function explain(marks, text) {
    marks.on("mousemove click", (mark) => showTip(text(mark))).on("mouseleave", () => { tip.hidden = true; });
  }

  // Of the kinds that the picture shows.
  function legend(id, picture, entries) {
    const shown = entries.filter((entry) => document.querySelector(`#${picture} .mark.${entry[0]}`));
    d3.select("#" + id).html("").selectAll("span").data(shown).enter().append("span")
      .html((entry) => `<i class="${entry[0]}"></i>`).append("span").text((entry) => entry[1]);
  }

  function canvas(id, height) {
    const box = d3.select("#" + id);
    const width = Math.max(280, box.node().clientWidth);
    box.select("svg").remove();
    const svg = box.append("svg").attr("viewBox", `0 0 ${width} ${height}`).attr("role", "img");
    return { svg, width, height };
  }

  const ticksFor = (width) => Math.max(2, Math.floor(width / 95));

  function drawShares() {
    const s = data.total;
    const stalled = Math.max(0, s.stall_seconds - s.exposed_transfer_seconds);
    const rows = [
      { name: "consumer", parts: [["compute", "compute", s.compute_seconds],
                                  ["exposed", "waits for the transfer", s.exposed_transfer_seconds],
                                  ["late", "waits for something else", stalled]] },
      { name: "link", parts: [["transfer", "transfer", s.transfer_seconds]] },
      { name: "host", parts: [["gather", "host gather", s.gather_seconds]] },
      { name: "device", parts: [["kernel", "device gather", s.kernel_seconds]] },
      { name: "feed", parts: [["wait", "waits for a free slot", s.slot_wait_seconds]] },
    ].filter((row) => row.name === "consumer" || d3.sum(row.parts, (part) => part[2]) > 0);
    const total = Math.max(s.seconds, ...rows.map((row) => d3.sum(row.parts, (part) => part[2])));
    if (!(total > 0)) return hide("shares-section");
    const { svg, width, height } = canvas("shares", rows.length * 30 + 30);
    const x = d3.scaleLinear([0, total], [76, width - 8]);
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - 24})`)
      .call(d3.axisBottom(x).ticks(ticksFor(width)).tickFormat(tickFormat(x)));
    const line = svg.selectAll(".row").data(rows).enter().append("g").attr("transform", (_, i) => `translate(0,${i * 30 + 2})`);
    line.append("text").attr("x", 0).attr("y", 17).text((row) => row.name);
    line.append("rect").attr("class", "lane").attr("x", x(0)).attr("width", x(total) - x(0)).attr("height", 24);
    line.each(function (row) {
      let begin = 0;
      const parts = row.parts.map(([kind, name, seconds]) => ({ kind, name, seconds, begin: (begin += seconds) - seconds }));
      const marks = d3.select(this).selectAll(".mark").data(parts.filter((part) => part.seconds > 0)).enter().append("rect")
        .attr("class", (part) => "mark " + part.kind).attr("x", (part) => x(part.begin))
        .attr("width", (part) => Math.max(1, x(part.begin + part.seconds) - x(part.begin))).attr("height", 24);
      explain(marks, (part) => `${part.name}\n${formatSeconds(part.seconds)}, ${formatPercent(part.seconds / s.seconds)} of the whole time`);
    });
    legend("shares-legend", "shares", [["compute", "consumer computes"], ["exposed", "waits for the transfer"],
      ["late", "waits for something else"], ["transfer", "transfer"], ["gather", "host gather"],
      ["kernel", "device gather"], ["wait", "no free slot"]]);
  }

  // Bars that overlap get lines of their own.
  function stack(bars) {
    const ends = [];
    for (const bar of bars) {
      let line = ends.findIndex((end) => end <= bar.begin);
      if (line < 0) line = ends.length;
      ends[line] = bar.end;
      bar.line = line;
    }
    return Math.max(1, ends.length);
  }

  function lanesOf(batches, following) {
    const bars = (kind, name, begin, end) => batches
      .map((batch) => ({ kind, name, batch, begin: batch[begin], end: batch[end] })).filter((bar) => bar.end > bar.begin);
    const consumer = bars("stall", "waits", "asked", "arrived");
    batches.forEach((batch, i) => {
      const next = i + 1 < batches.length ? batches[i + 1] : following;
      if (next && next.asked > batch.arrived) {
        consumer.push({ kind: "compute", name: "computes", batch, begin: batch.arrived, end: next.asked });
      }
    });
    consumer.sort((a, b) => a.begin - b.begin);
    return [
      { name: "gather", bars: bars("gather", "host gather", "gather_begin", "gather_end") },
      { name: "transfer", bars: bars("transfer", "transfer", "transfer_begin", "transfer_end") },
      { name: "consumer", bars: consumer },
    ].filter((lane) => lane.bars.length > 0);
  }

  function describeBar(bar) {
    const batch = bar.batch;
    return `${bar.name}: ${formatSeconds(bar.end - bar.begin)}\nepoch ${batch.epoch + 1}, batch ${batch.batch}, ` +
      `${formatCount(batch.samples)} samples\n${formatCount(batch.link_bytes)} bytes over the link`;
  }

  function drawTimeline() {
    const slider = document.getElementById("window-start");
    const size = Number(document.getElementById("window-size").value);
    const all = data.timeline;
    if (all.length === 0) return hide("timeline-section");
    slider.max = Math.max(0, all.length - size);
    const from = Math.min(Number(slider.value), Number(slider.max));
    const lanes = lanesOf(all.slice(from, from + size), all[from + size]);
    if (lanes.length === 0) return hide("timeline-section");
    let top = 4;
    for (const lane of lanes) {
      lane.bars.sort((a, b) => a.begin - b.begin);
      lane.lines = stack(lane.bars);
      lane.top = top;
      lane.height = Math.max(30, lane.lines * 14 + 4);
      top += lane.height + 8;
    }
    const { svg, width } = canvas("timeline", top + 26);
    const edges = lanes.flatMap((lane) => lane.bars.flatMap((bar) => [bar.begin, bar.end]));
    const x = d3.scaleLinear(d3.extent(edges), [76, width - 8]);
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${top})`)
      .call(d3.axisBottom(x).ticks(ticksFor(width)).tickFormat(tickFormat(x)));
    const group = svg.selectAll(".lanes").data(lanes).enter().append("g").attr("transform", (lane) => `translate(0,${lane.top})`);
    group.append("rect").attr("class", "lane").attr("x", 76).attr("width", width - 84).attr("height", (lane) => lane.height);
    group.append("text").attr("y", (lane) => lane.height / 2 + 4).text((lane) => lane.name);
    group.each(function (lane) {
      const height = (lane.height - 4) / lane.lines;
      const marks = d3.select(this).selectAll(".mark").data(lane.bars).enter().append("rect")
        .attr("class", (bar) => `mark ${bar.kind}${bar.batch.batch % 2 ? " odd" : ""}`)
        .attr("x", (bar) => x(bar.begin)).attr("y", (bar) => 2 + bar.line * height)
        .attr("width", (bar) => Math.max(1, x(bar.end) - x(bar.begin))).attr("height", height - 1);
      explain(marks, describeBar);
    });
    legend("timeline-legend", "timeline", [["gather", "host gather"], ["transfer", "transfer"],
      ["stall", "consumer waits"], ["compute", "consumer computes"]]);
    const first = all[from];
    document.getElementById("window-text").textContent = `epoch ${first.epoch + 1}, batch ${first.batch} and after`;
  }

  // Rates over at least a hundredth of the run, so that single batches do not make noise of it.
  function ratesOf(marks) {
    const step = marks[marks.length - 1].seconds / 100;
    const rates = [];
    let from = marks[0];
    for (const mark of marks.slice(1)) {
      const seconds = mark.seconds - from.seconds;
      if (seconds <= 0 || seconds < step) continue;
      rates.push({ begin: from.seconds, seconds: mark.seconds, rate: (mark.samples - from.samples) / seconds,
                   bytes: (mark.bytes - from.bytes) / seconds });
      from = mark;
    }
    return rates;
  }

  function drawRate() {
    const rates = data.marks.length > 2 ? ratesOf(data.marks) : [];
    if (rates.length < 2) return hide("rate-section");
    const { svg, width, height } = canvas("rate", 240);
    const x = d3.scaleLinear([0, rates[rates.length - 1].seconds], [56, width - 8]);
    const y = d3.scaleLinear([0, d3.max(rates, (rate) => rate.rate) * 1.08], [height - 26, 26]).nice();
    svg.append("g").attr("class", "axis grid").attr("transform", "translate(56,0)")
      .call(d3.axisLeft(y).ticks(5).tickSize(-(width - 64)).tickFormat(formatRate));
    svg.append("text").attr("x", 0).attr("y", 11).text("samples/s");
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - 26})`)
      .call(d3.axisBottom(x).ticks(ticksFor(width)).tickFormat(tickFormat(x)));
    svg.selectAll(".epoch").data(data.epochs.slice(1)).enter().append("line").attr("class", "epoch")
      .attr("x1", (begin) => x(begin)).attr("x2", (begin) => x(begin)).attr("y1", y.range()[1]).attr("y2", y.range()[0]);
    const steps = [{ seconds: 0, rate: rates[0].rate }, ...rates];
    svg.append("path").attr("class", "area").datum(steps)
      .attr("d", d3.area().x((d) => x(d.seconds)).y0(y(0)).y1((d) => y(d.rate)).curve(d3.curveStepBefore));
    svg.append("path").attr("class", "line").datum(steps)
      .attr("d", d3.line().x((d) => x(d.seconds)).y((d) => y(d.rate)).curve(d3.curveStepBefore));
    const hits = svg.selectAll(".hit").data(rates).enter().append("rect").attr("fill", "transparent")
      .attr("x", (d) => x(d.begin)).attr("width", (d) => Math.max(1, x(d.seconds) - x(d.begin)))
      .attr("y", 0).attr("height", y(0));
    explain(hits, (d) => `${formatRate(d.rate)} samples/s\n${d3.format(".3~r")(d.bytes / 1e9)} GB/s delivered\n` +
      `${formatSeconds(d.begin)} to ${formatSeconds(d.seconds)}`);
  }

  function draw() {
    tip.hidden = true;
    drawShares();
    drawTimeline();
    drawRate();
  }

  const slider = document.getElementById("window-start");
  const size = Number(document.getElementById("window-size").value);
  slider.max = Math.max(0, data.timeline.length - size);
  slider.value = Math.floor(slider.max / 2);
  slider.addEventListener("input", drawTimeline);
  document.getElementById("window-size").addEventListener("change", drawTimeline);
  let width = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    draw();
  });
  window.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
  draw();
})();
