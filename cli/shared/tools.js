"use strict";
// What the pages share: d3 draws, and these tools format, explain and lay out.
const data = JSON.parse(document.getElementById("data").textContent);
const hide = (id) => { document.getElementById(id).hidden = true; };

function formatSeconds(seconds) {
  if (Math.abs(seconds) >= 1) return d3.format(".3~r")(seconds) + " s";
  if (Math.abs(seconds) >= 1e-3) return d3.format(".3~r")(seconds * 1e3) + " ms";
  return d3.format(".3~r")(seconds * 1e6) + " \u00b5s";
}
const formatCount = d3.format(",");
const formatPercent = (share) => (100 * share).toFixed(1) + " %";

function formatRate(rate) {
  if (rate >= 1e9) return d3.format(".3~r")(rate / 1e9) + " G";
  if (rate >= 1e6) return d3.format(".3~r")(rate / 1e6) + " M";
  if (rate >= 1e4) return d3.format(".3~r")(rate / 1e3) + " k";
  return d3.format(".3~r")(rate);
}

// The ticks of an axis share the unit that fits the largest.
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

// A legend of the kinds that the picture shows.
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

// Draws now, and again if the window's width changes.
function drawAtEachWidth(draw) {
  let width = 0;
  const redraw = () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    tip.hidden = true;
    draw();
  };
  window.addEventListener("resize", redraw);
  window.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
  redraw();
}
