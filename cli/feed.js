(() => {
  // The rows begin here, to the right of their names.
  const LEFT = 104;

  function drawShares() {
    if (data.shares.length === 0) return hide("shares-section");
    const { svg, width, height } = canvas("shares", data.shares.length * 30 + 30);
    const x = linear([0, 1], [LEFT, width - 64]);
    axisBelow(svg, height - 24, x, ticksOf(x, Math.min(10, ticksFor(width))), (share) => round(100 * share) + " %");
    data.shares.forEach((row, i) => {
      const line = draw(svg, "g", { transform: `translate(0,${i * 30 + 2})` });
      draw(line, "text", { y: 17 }, row.name);
      draw(line, "text", { x: width, y: 17, "text-anchor": "end" }, formatPercent(row.parts[0].share));
      draw(line, "rect", { class: "back", x: LEFT, width: x(1) - LEFT, height: 24 });
      let begin = 0;
      for (const part of row.parts) {
        const end = begin + part.share;
        if (part.seconds > 0) {
          const mark = draw(line, "rect", { class: "mark " + part.kind, x: x(begin), width: Math.max(1, x(end) - x(begin)), height: 24 });
          explain(mark, () => `${part.name}\n${formatSeconds(part.seconds)}, ${formatPercent(part.share)} of the time`);
        }
        begin = end;
      }
    });
    legend("shares-legend", drawn("shares", data.shares.flatMap((row) => row.parts.map((part) => [part.kind, part.name]))));
  }

  function rowsOf(batches, following) {
    const bars = (kind, name, begin, end, chosen = () => true) => batches.filter(chosen)
      .map((batch) => ({ kind, name, batch, begin: batch[begin], end: batch[end] })).filter((bar) => bar.end > bar.begin);
    const consumer = bars("stall", "waits for data", "asked", "arrived");
    batches.forEach((batch, i) => {
      const next = i + 1 < batches.length ? batches[i + 1] : following;
      if (next && next.asked > batch.arrived) {
        consumer.push({ kind: "compute", name: "your step works", batch, begin: batch.arrived, end: next.asked });
      }
    });
    consumer.sort((a, b) => a.begin - b.begin);
    return [
      { name: "host gather", bars: bars("gather", "host gather", "gather_begin", "gather_end") },
      { name: "transfer", bars: bars("transfer", "transfer", "transfer_begin", "transfer_end", (batch) => batch.link_bytes > 0) },
      { name: "device gather",
        bars: bars("kernel", "device gather", "transfer_begin", "transfer_end", (batch) => batch.link_bytes === 0) },
      { name: "your step", bars: consumer },
    ].filter((row) => row.bars.length > 0);
  }

  function describeBar(bar) {
    const batch = bar.batch;
    return `${bar.name}: ${formatSeconds(bar.end - bar.begin)}\nepoch ${batch.epoch + 1}, batch ${batch.batch + 1}, ` +
      `${formatCount(batch.samples)} samples\n${formatCount(batch.link_bytes)} bytes over the link`;
  }

  function drawTimeline() {
    const slider = document.getElementById("window-start");
    const size = Number(document.getElementById("window-size").value);
    const all = data.timeline;
    if (all.length === 0) return hide("timeline-section");
    slider.max = Math.max(0, all.length - size);
    const from = Math.min(Number(slider.value), Number(slider.max));
    const rows = rowsOf(all.slice(from, from + size), all[from + size]);
    if (rows.length === 0) return hide("timeline-section");
    let top = 4;
    for (const row of rows) {
      row.bars.sort((a, b) => a.begin - b.begin);
      row.lines = stack(row.bars);
      row.top = top;
      row.height = Math.max(30, row.lines * 14 + 4);
      top += row.height + 8;
    }
    const { svg, width } = canvas("timeline", top + 26);
    const bars = rows.flatMap((row) => row.bars);
    const edges = bars.flatMap((bar) => [bar.begin, bar.end]);
    const x = linear([Math.min(...edges), Math.max(...edges)], [LEFT, width - 8]);
    axisBelow(svg, top, x, ticksOf(x, ticksFor(width)), timeFormat(x));
    for (const row of rows) {
      const group = draw(svg, "g", { transform: `translate(0,${row.top})` });
      draw(group, "rect", { class: "back", x: LEFT, width: width - 8 - LEFT, height: row.height });
      draw(group, "text", { y: row.height / 2 + 4 }, row.name);
      const height = (row.height - 4) / row.lines;
      for (const bar of row.bars) {
        const mark = draw(group, "rect", { class: `mark ${bar.kind}${bar.batch.batch % 2 ? " odd" : ""}`, x: x(bar.begin),
          y: 2 + bar.line * height, width: Math.max(1, x(bar.end) - x(bar.begin)), height: height - 1 });
        explain(mark, () => describeBar(bar));
      }
    }
    legend("timeline-legend", drawn("timeline", [["gather", "host gather"], ["transfer", "transfer"],
      ["kernel", "device gather"], ["stall", "your step waits for data"], ["compute", "your step works"]]));
    const first = all[from];
    const seconds = (kind) => bars.reduce((sum, bar) => bar.kind === kind ? sum + bar.end - bar.begin : sum, 0);
    document.getElementById("window-text").textContent = `epoch ${first.epoch + 1}, batch ${first.batch + 1} and after: ` +
      `${formatPercent(seconds("stall") / Math.max(1e-12, seconds("stall") + seconds("compute")))} waiting`;
  }

  // Rates over at least a hundredth of the run, so that single batches do not show as noise.
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
    const x = linear([0, rates[rates.length - 1].seconds], [56, width - 8]);
    const most = 1.08 * Math.max(...rates.map((rate) => rate.rate));
    const step = tickStep(most, 10);
    const y = linear([0, step * Math.ceil(most / step)], [height - 26, 26]);
    gridLines(svg, 56, width - 8, y, ticksOf(y, 5), formatRate);
    draw(svg, "text", { y: 11 }, "samples/s");
    axisBelow(svg, height - 26, x, ticksOf(x, ticksFor(width)), timeFormat(x));
    for (const begin of data.epochs.slice(1)) draw(svg, "line", { class: "epoch", x1: x(begin), x2: x(begin), y1: 26, y2: y(0) });
    const line = `M${x(0)},` + rates.map((rate) => `${y(rate.rate)}H${x(rate.seconds)}`).join("V");
    draw(svg, "path", { class: "area", d: `${line}V${y(0)}H${x(0)}Z` });
    draw(svg, "path", { class: "line", d: line });
    for (const rate of rates) {
      const hit = draw(svg, "rect", { fill: "transparent", x: x(rate.begin), width: Math.max(1, x(rate.seconds) - x(rate.begin)), height: y(0) });
      explain(hit, () => `${formatRate(rate.rate)} samples/s\n${round(rate.bytes / 1e9)} GB/s delivered\n` +
        `${formatSeconds(rate.begin)} to ${formatSeconds(rate.seconds)}`);
    }
  }

  function drawAll() {
    drawShares();
    drawTimeline();
    drawRate();
  }

  const slider = document.getElementById("window-start");
  const size = Number(document.getElementById("window-size").value);
  slider.max = Math.max(0, data.timeline.length - size);
  slider.value = data.window;
  slider.addEventListener("input", drawTimeline);
  document.getElementById("window-size").addEventListener("change", drawTimeline);
  drawAtEachWidth(drawAll);
})();
