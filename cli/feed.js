(() => {
  // The rows begin here, to the right of their names.
  const LEFT = 104;

  function drawShares() {
    if (data.shares.length === 0) return hide("shares-section");
    const right = 64;
    const { svg, width, height } = canvas("shares", data.shares.length * 30 + 30);
    const x = d3.scaleLinear([0, 1], [LEFT, width - right]);
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - 24})`)
      .call(d3.axisBottom(x).ticks(Math.min(10, ticksFor(width))).tickFormat((share) => d3.format(".0f")(100 * share) + " %"));
    const line = svg.selectAll(".row").data(data.shares).enter().append("g")
      .attr("transform", (_, i) => `translate(0,${i * 30 + 2})`);
    line.append("text").attr("x", 0).attr("y", 17).text((row) => row.name);
    line.append("text").attr("x", width).attr("y", 17).attr("text-anchor", "end")
      .text((row) => formatPercent(row.parts[0].share));
    line.append("rect").attr("class", "back").attr("x", LEFT).attr("width", x(1) - LEFT).attr("height", 24);
    line.each(function (row) {
      let begin = 0;
      const parts = row.parts.map((part) => ({ ...part, begin: (begin += part.share) - part.share }));
      const marks = d3.select(this).selectAll(".mark").data(parts.filter((part) => part.seconds > 0)).enter().append("rect")
        .attr("class", (part) => "mark " + part.kind).attr("x", (part) => x(part.begin))
        .attr("width", (part) => Math.max(1, x(part.begin + part.share) - x(part.begin))).attr("height", 24);
      explain(marks, (part) => `${part.name}\n${formatSeconds(part.seconds)}, ${formatPercent(part.share)} of the time`);
    });
    legend("shares-legend", "shares", data.shares.flatMap((row) => row.parts.map((part) => [part.kind, part.name])));
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
    const edges = rows.flatMap((row) => row.bars.flatMap((bar) => [bar.begin, bar.end]));
    const x = d3.scaleLinear(d3.extent(edges), [LEFT, width - 8]);
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${top})`)
      .call(d3.axisBottom(x).ticks(ticksFor(width)).tickFormat(tickFormat(x)));
    const group = svg.selectAll(".rows").data(rows).enter().append("g").attr("transform", (row) => `translate(0,${row.top})`);
    group.append("rect").attr("class", "back").attr("x", LEFT).attr("width", width - 8 - LEFT).attr("height", (row) => row.height);
    group.append("text").attr("y", (row) => row.height / 2 + 4).text((row) => row.name);
    group.each(function (row) {
      const height = (row.height - 4) / row.lines;
      const marks = d3.select(this).selectAll(".mark").data(row.bars).enter().append("rect")
        .attr("class", (bar) => `mark ${bar.kind}${bar.batch.batch % 2 ? " odd" : ""}`)
        .attr("x", (bar) => x(bar.begin)).attr("y", (bar) => 2 + bar.line * height)
        .attr("width", (bar) => Math.max(1, x(bar.end) - x(bar.begin))).attr("height", height - 1);
      explain(marks, describeBar);
    });
    legend("timeline-legend", "timeline", [["gather", "host gather"], ["transfer", "transfer"],
      ["kernel", "device gather"], ["stall", "your step waits for data"], ["compute", "your step works"]]);
    const first = all[from];
    const bars = rows.flatMap((row) => row.bars);
    const seconds = (kind) => d3.sum(bars, (bar) => bar.kind === kind ? bar.end - bar.begin : 0);
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
  drawAtEachWidth(draw);
})();
